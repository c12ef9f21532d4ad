#!/usr/bin/env python3
"""Trains the table of MICPQ on a frozen encoder: corpora x poolings x lengths, the full model with two seeds and the
two ablations, one process a model, all from one copy of each corpus' views.

    run.py MICPQ DATA ENCODER WORK [--slots N] [--reserve N] [--until UNIX_SECONDS] [--cap 16=S,32=S,64=S,128=S]

MICPQ is the binary, DATA holds agnews/ and dbpedia14/ with train, val and test.csv.gz, ENCODER is a name or directory.
Every finished model is a line of WORK/results.jsonl at once, so that a machine taken away leaves what is done; lines that
are there already are not made again. The first model of a corpus and pooling makes the views (on a GPU where there is
one), the others wait for it. A model is stopped at its cap, or all at --until, and gives its best epoch so far.
--reserve keeps slots free while WORK/busy exists. What follows a -- goes to micpq train.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time

PRESETS = {"agnews": "paper:agnews", "dbpedia14": "paper:dbpedia"}
VARIANTS = {"full": [], "no-mi": ["--prob-weight", "0"], "no-gumbel": ["--no-gumbel"]}


def order(corpora, poolings, lengths, seeds):
    """Cells by importance; within a rank the longest codes first."""
    ranked = []
    for corpus in corpora:
        for pooling in poolings:
            for bits in lengths:
                ranked += [(0 if seed == 0 else 2, -bits, corpus, pooling, "full", seed) for seed in seeds]
                ranked += [(1 if bits == 32 else 3, -bits, corpus, pooling, v, 0) for v in VARIANTS if v != "full"]
    return [(corpus, pooling, variant, -bits, seed) for _, bits, corpus, pooling, variant, seed in sorted(ranked)]


class Model:
    def __init__(self, cell, options):
        self.cell, self.begun = cell, time.time()
        corpus, pooling, variant, bits, seed = cell
        self.cap, self.first, self.stopped, self.viewed = options.cap[bits], None, None, False
        name = "-".join(map(str, cell))
        data = f"{options.data}/{corpus}"
        command = [options.micpq, "train", f"{data}/train.csv.gz", "--validation", f"{data}/val.csv.gz"]
        command += ["--test", f"{data}/test.csv.gz", "--preset", PRESETS[corpus], "--bits", str(bits)]
        command += ["--seed", str(seed), "--encoder", options.encoder, "--pooling", pooling, "--clean", "faithful"]
        command += ["--max-tokens", "51", "--cache", f"{options.work}/cache", "-o", f"{options.work}/models/{name}"]
        command += ["--json", "--threads", str(options.threads), "--device", options.device]
        command += VARIANTS[variant] + options.more
        self.out, self.log = f"{options.work}/logs/{name}.json", f"{options.work}/logs/{name}.log"
        with open(self.out, "wb") as out, open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=out, stderr=log)

    def look(self):
        """Whether the views are made, and whether the first epoch is over, from where the cap counts."""
        if self.first is None:
            with open(self.log, errors="replace") as log:
                said = log.read()
            self.viewed = "epoch 1:" in said or re.search(r"^encoding views +[0-9.]+ s", said, re.M) is not None
            if "epoch 1:" in said:
                self.first = time.time()

    def stop(self):
        if self.stopped is None:
            self.stopped = time.time()
            self.process.send_signal(signal.SIGINT)

    def result(self):
        corpus, pooling, variant, bits, seed = self.cell
        line = dict(corpus=corpus, pooling=pooling, variant=variant, bits=bits, seed=seed, wall=time.time() - self.begun)
        try:
            with open(self.out) as file:
                metrics = json.load(file)["metrics"]
        except (ValueError, KeyError):
            with open(self.log, errors="replace") as log:
                return dict(line, failed=log.read()[-600:])
        test = metrics["test"]
        squared = next(d for d in test["distances"] if d["distance"] == "squared")
        return dict(
            line,
            test=test["precision"]["100"],
            squared=squared["precision"]["100"],
            test_10=test["precision"]["10"],
            map=test["map"],
            validation=metrics["best"],
            best_epoch=metrics["best_epoch"],
            epochs=metrics["epochs"],
            stopped="cap" if self.stopped else metrics["stopped"],
            training_seconds=metrics["seconds"]["training"],
            validation_seconds=metrics["seconds"]["validation"],
            evaluation_seconds=test["seconds"]["encode"] + test["seconds"]["search"],
            encoding_seconds=metrics["encoding_seconds"],
            views_seconds=metrics["views_seconds"],
            distinct=test["codewords"]["distinct"],
            curve=[round(e["validation"], 2) for e in metrics["curve"]],
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("micpq", "data", "encoder", "work"):
        parser.add_argument(name)
    parser.add_argument("--slots", type=int, default=os.cpu_count())
    parser.add_argument("--reserve", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of a model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--until", type=float, default=float("inf"))
    parser.add_argument("--cap", default="16=inf,32=inf,64=inf,128=inf")
    parser.add_argument("--corpora", default="agnews,dbpedia14")
    parser.add_argument("--poolings", default="cls,mean")
    parser.add_argument("--lengths", default="16,32,64,128")
    parser.add_argument("--seeds", default="0,1")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    options.more = given[cut + 1 :]
    options.cap = {int(k): float(v) for k, v in (pair.split("=") for pair in options.cap.split(","))}
    for folder in ("logs", "models", "cache"):
        os.makedirs(f"{options.work}/{folder}", exist_ok=True)
    results = f"{options.work}/results.jsonl"
    done = set()
    if os.path.exists(results):
        with open(results) as file:
            for line in map(json.loads, file):
                if "failed" not in line:
                    done.add((line["corpus"], line["pooling"], line["variant"], line["bits"], line["seed"]))
    integers = lambda text: [int(v) for v in text.split(",")]
    cells = order(options.corpora.split(","), options.poolings.split(","), integers(options.lengths), integers(options.seeds))
    waiting = [cell for cell in cells if cell not in done]
    print(f"{len(waiting)} models to train, {len(done)} done", flush=True)
    running, ready, maker, failures = [], set(), None, 0
    while waiting or running:
        for model in list(running):
            if model.process.poll() is None:
                model.look()
                capped = model.first is not None and time.time() - model.first > model.cap
                if capped or time.time() > options.until:
                    model.stop()
                continue
            running.remove(model)
            line = model.result()
            failures += "failed" in line
            with open(results, "a") as file:
                file.write(json.dumps(line) + "\n")
            shown = {k: v for k, v in line.items() if k not in ("curve",)}
            print(time.strftime("%H:%M:%S"), json.dumps(shown), flush=True)
            if model is maker:
                ready.update({model.cell[:2]} if "failed" not in line else ())
                maker = None
        if maker and maker.viewed:
            ready.add(maker.cell[:2])
            maker = None
        if time.time() > options.until - 20:
            waiting = []
        free = options.slots - len(running) - (options.reserve if os.path.exists(f"{options.work}/busy") else 0)
        for cell in list(waiting):
            if free <= 0:
                break
            if cell[:2] in ready or maker is None:
                model = Model(cell, options)
                if cell[:2] not in ready:
                    maker = model
                running.append(model)
                waiting.remove(cell)
                free -= 1
        time.sleep(0.25)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
