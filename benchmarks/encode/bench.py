"""Our encoder against its peers on one machine, interleaved.

    bench.py [--encoders minilm,base] [--threads 1,all] [--rounds 5] [--documents 64] [--peers ort-f32,...]
             [--data DIR] [--name encode] [--quick]

Every contestant is a process of its own that holds the same token ids and waits. In each round each of them is asked
once, in turn, so that what else the machine does meets all alike. One thread is compared by processor time, which other
programs bend less; all threads by both. Results go to results/NAME.json and results/NAME.md beside this folder's. bf16 takes
part where the processor multiplies it.
"""

import argparse
import csv
import gzip
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODELS = pathlib.Path(os.environ.get("MICPQ_MODELS") or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "micpq" / "models")
ENCODERS = {"minilm": "all-MiniLM-L6-v2", "base": "bert-base-uncased"}
OURS = ["micpq-f32", "micpq-bf16", "micpq-int8"]
PEERS = ["torch-f32", "torch-bf16", "torch-int8", "st-f32", "candle-f32", "ort-f32", "ort-int8", "ov-f32", "ov-bf16", "ov-int8"]
CANDLE = ROOT / "target/candle/release/candle-peer"


class Contestant:
    def __init__(self, name, encoder, onnx, sequences, threads):
        self.name, self.answer = name, None
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false")
        if name.startswith("micpq"):
            program = [ROOT / "target/release/encoding", encoder, name.split("-")[1], sequences]
        elif name.startswith("candle"):
            program = [CANDLE, encoder, sequences]
        else:
            program = [sys.executable, HERE / "peer.py", name, encoder, onnx, sequences, threads]
        self.log = tempfile.TemporaryFile("w+")
        self.process = None
        if pathlib.Path(program[0]).exists():
            self.process = subprocess.Popen(
                [str(p) for p in program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
            )

    def start(self):
        line = self.process.stdout.readline() if self.process else ""
        if not line:
            self.log.seek(0)
            print(f"{self.name} does not run here: {self.log.read().strip().splitlines()[-1:]}", file=sys.stderr)
            return False
        self.answer = json.loads(line)
        return True

    def ask(self, task):
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def real_sequences(encoder, data, limit=512):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    with gzip.open(data / "agnews/test.csv.gz", "rt", newline="") as file:
        texts = [row[1] for row, _ in zip(csv.reader(file), range(limit))]
    return [e.ids for e in tokenizer.encode_batch(texts)]


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return dot / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def race(which, encoder, onnx, sequences, threads, args, tasks, keep):
    """The contestants' answers, task by task, and what each said of itself, given to `keep` after every round: a run that is
    ended early leaves what it has."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(sequences, file)
        file.flush()
        names = [n for n in OURS + args.peers if args.bf16 or not n.endswith("bf16")]
        all_of_them = [Contestant(n, encoder, onnx, file.name, threads) for n in names]
        field = [c for c in all_of_them if c.start()]
        rows = {c.name: {"self": c.answer, "tasks": {t: [] for t in tasks}} for c in field}
        base = None
        for c in field:
            vectors = c.ask("vectors 0 4")["vectors"]
            base = base or vectors
            rows[c.name]["cosine"] = min(cosine(a, b) for a, b in zip(vectors, base))
        for turn in range(args.rounds):
            for task in tasks:
                for c in field[turn % len(field) :] + field[: turn % len(field)]:
                    if task.startswith("dropout") and not c.name.startswith("micpq"):
                        continue
                    rows[c.name]["tasks"][task].append(c.ask(task))
            print(f"{which} {threads} threads: round {turn + 1} of {args.rounds}", file=sys.stderr)
            keep(rows)
        for c in field:
            c.stop()


def measure(args):
    found = {"machine": machine(), "encoders": {}}
    peak = subprocess.run([ROOT / "target/release/peak"], capture_output=True, text=True, check=True).stdout
    found["peak"] = [json.loads(line) for line in peak.splitlines()]
    found["cold"] = cold()
    for which in args.encoders:
        encoder, onnx = MODELS / ENCODERS[which], ROOT / "work/bench-encode" / ENCODERS[which]
        real = real_sequences(encoder, args.data)
        if any(p.startswith(("ort", "ov")) for p in args.peers):
            # What is measured comes from the first of them, what calibrates from the last.
            export(encoder, onnx, real[-64:])
        for threads in args.threads:
            n = args.documents // (4 if which == "base" else 1)
            cell = {"documents": n, "tokens": sum(map(len, real[:n]))}
            tasks = [f"clean 0 {n}", f"dropout 0 {n}"] + (["query 10"] if threads > 1 or args.quick else [])
            found["encoders"].setdefault(which, {})[str(threads)] = cell

            def keep_as(text):
                def keep(rows):
                    cell[text] = rows
                    write(found, args.name)

                return keep

            race(which, encoder, onnx, real, threads, args, tasks, keep_as("real"))
            if not args.quick:
                synthetic = [[101] + [2000 + (i * 37 + j * 101) % 20000 for j in range(62)] + [102] for i in range(32)]
                race(which, encoder, onnx, synthetic, threads, args, ["clean 0 32"], keep_as("synthetic"))
    return found


def export(encoder, onnx, texts):
    onnx.mkdir(parents=True, exist_ok=True)
    (onnx / "calibration.json").write_text(json.dumps(texts))
    subprocess.run([sys.executable, HERE / "export.py", encoder, onnx], check=True, stdout=sys.stderr)


def cold(rounds=15):
    """Milliseconds from starting the program to its end with one query's vector on disk, MiniLM, files in the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "query.txt").write_text("oil prices rise as supply falls again\n")
        command = [ROOT / "target/release/micpq", "encode", folder / "query.txt", "--device", "cpu", "-q", "-o", folder / "query.npy"]
        times = []
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            subprocess.run([str(c) for c in command], check=True, capture_output=True)
            times.append(1e3 * (time.perf_counter() - begun))
    return sorted(times[1:])


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").exists() else ""
    of = lambda key: next((l.split(":", 1)[1].strip() for l in text.splitlines() if l.startswith(key)), "unknown")
    wanted = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "avx_vnni")
    flags = [f for f in of("flags").split() if f in wanted]
    return {"cpu": of("model name"), "cores": len(os.sched_getaffinity(0)), "features": flags, "python": platform.python_version(), "load": os.getloadavg()}


def write(found, name):
    import report

    results = HERE.parent / "results"
    (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / f"{name}.md").write_text(report.text(found, name))


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", default="minilm,base", type=lambda v: v.split(","))
    parser.add_argument("--threads", default="1,all", type=lambda v: sorted({cores if t == "all" else int(t) for t in v.split(",")}))
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--documents", default=128, type=int, help="AGNews texts a task; a quarter of it for base")
    parser.add_argument("--peers", default=PEERS, type=lambda v: v.split(","))
    parser.add_argument("--data", default=pathlib.Path(os.environ.get("MICPQ_SHARED", ROOT.parent / "shared")) / "data", type=pathlib.Path)
    parser.add_argument("--name", default="encode", help="of the result's files")
    parser.add_argument("--quick", action="store_true", help="real text alone")
    args = parser.parse_args()
    args.bf16 = any("bf16" in feature for feature in machine()["features"])
    if "candle-f32" in args.peers:
        # A project of its own: the workspace must not carry a peer's crates.
        built = ["cargo", "build", "--release", "--manifest-path", str(HERE / "candle/Cargo.toml"), "--target-dir", str(ROOT / "target/candle")]
        subprocess.run(built, check=False)
    if not (args.data / "agnews/test.csv.gz").exists():
        parser.error(f"{args.data} has no agnews/test.csv.gz; name a folder that has with --data")
    found = measure(args)
    import report

    print(report.text(found, args.name))


if __name__ == "__main__":
    main()
