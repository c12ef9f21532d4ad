#!/usr/bin/env python3
"""From a JSONL file to a durable, searchable index: micpq beside what a user would write instead. `make bench-build`.

    make bench-build ARGS="--documents 20000 --rounds 3"

Contestants take turns within a round, each in a process of its own with an empty cache; a ratio compares times of one round. Every contestant
reads the file, tokenises and encodes with all-MiniLM-L6-v2 (texts cut at 64 tokens), and leaves an index on disk, synced. micpq also trains its codes,
unless it is given a model. The most memory is that of the process, as the system counts it.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MICPQ = ROOT / "target/release/micpq"
sys.path.insert(0, str(ROOT / "benchmarks/query"))
TOKENS = 64


def peer(precision, kind, corpus, out, encoder, onnx):
    """ONNX Runtime on all cores over batches of texts of one length, so that nothing is padded; then an index on disk."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    documents = [json.loads(line) for line in open(corpus)]
    tokenizer = Tokenizer.from_file(f"{encoder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    ids = [encoding.ids for encoding in tokenizer.encode_batch([document["text"] for document in documents])]
    session = onnxruntime.InferenceSession(f"{onnx}/{precision}.onnx", providers=["CPUExecutionProvider"])
    vectors = np.empty((len(ids), 384), np.float32)
    by_length = {}
    for row, tokens in enumerate(ids):
        by_length.setdefault(len(tokens), []).append(row)
    for rows in by_length.values():
        for at in range(0, len(rows), 32):
            part = rows[at : at + 32]
            vectors[part] = session.run(None, {"input_ids": np.array([ids[row] for row in part])})[0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    if kind == "faiss":
        import faiss

        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        faiss.write_index(index, f"{out}.faiss")
        os.sync()
    elif kind == "lance":
        import lancedb

        rows = [{"id": d["id"], "text": d["text"], "vector": v} for d, v in zip(documents, vectors)]
        lancedb.connect(out).create_table("news", rows)
        os.sync()


def contestants(args, corpus, work):
    """Commands by name; each gets its output folder."""
    def ours(*options):
        return lambda out: [MICPQ, "--quiet", "build", corpus, "--max-tokens", str(TOKENS), "--cache", f"{out}.cache", *options, "-o", out]

    def other(precision, kind):
        return lambda out: [sys.executable, __file__, "--peer", precision, kind, corpus, out, args.encoder, work / "onnx"]

    given = work / "given.micpq"
    if not given.exists():
        subprocess.run(ours("--bits", "64")(given), check=True)
    return {
        "micpq, training included": ours("--bits", "64"),
        "micpq, a given model": lambda out: [MICPQ, "--quiet", "build", corpus, "--model", given / "model", "-o", out],
        "ONNX Runtime f32, encode alone": other("f32", "none"),
        "ONNX Runtime int8, encode alone": other("int8", "none"),
        "ONNX Runtime f32 + FAISS": other("f32", "faiss"),
        "ONNX Runtime f32 + LanceDB": other("f32", "lance"),
    }


def run(command, out):
    """Seconds, and the most resident memory in MiB."""
    begun = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{command}: {error.decode()}")
    took = time.perf_counter() - begun
    for left in out.parent.glob(f"{out.name}*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    return took, usage.ru_maxrss / 1024


def report(found):
    from bench import spread

    lines = [
        "# From JSONL to a searchable index", "",
        f"`{found['command']}`, {found['date']}; {found['machine']}; {found['documents']:,} documents, cut at {TOKENS} tokens; micpq {found['commit']}; load average "
        f"{found['load'][0]:.1f} at the start, {found['load'][1]:.1f} at the end.", "",
        "Medians of rounds (least .. most). Ratio: the contestant's time over that of micpq with training, within a round; above 1 is slower.", "",
        "| contestant | documents/s | seconds | ratio | MiB, most |", "|---|---|---|---|---|",
    ]
    ours = "micpq, training included"
    for name in found["rounds"][0]:
        seconds = [r[name][0] for r in found["rounds"]]
        rates = [found["documents"] / s for s in seconds]
        ratios = [r[name][0] / r[ours][0] for r in found["rounds"]]
        memory = max(r[name][1] for r in found["rounds"])
        lines.append(f"| {name} | {spread(rates, 0)} | {spread(seconds, 1)} | {spread(ratios)} | {memory:.0f} |")
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(*sys.argv[2:])
    from bench import machine

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=pathlib.Path, default=ROOT / "work/demo/stories.jsonl", help="JSONL with id and text")
    p.add_argument("--documents", type=int, default=0, help="the first of the corpus; 0 is all of them")
    p.add_argument("--encoder", default="~/.cache/micpq/models/all-MiniLM-L6-v2")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "benchmarks/results/build.md")
    args = p.parse_args()
    args.encoder = str(pathlib.Path(args.encoder).expanduser())
    work = ROOT / "work/bench-build"
    work.mkdir(parents=True, exist_ok=True)
    import onnx_bert

    onnx_bert.export(pathlib.Path(args.encoder), work / "onnx")
    lines = open(args.corpus).readlines()
    lines = lines[: args.documents or len(lines)]
    corpus = work / "corpus.jsonl"
    corpus.write_text("".join(lines))
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    found = {"command": " ".join(["make bench-build", f'ARGS="{" ".join(sys.argv[1:])}"'][: 1 + bool(sys.argv[1:])]), "commit": commit,
             "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(),
             "documents": len(lines), "load": [os.getloadavg()[0]], "rounds": []}
    made = contestants(args, corpus, work)
    for number in range(args.rounds):
        names = list(made)
        # Every round begins with another contestant.
        order = names[number % len(names):] + names[: number % len(names)]
        taken = {name: run(made[name](work / "out"), work / "out") for name in order}
        found["rounds"].append({name: taken[name] for name in names})
        print({name: f"{seconds:.1f} s" for name, (seconds, _) in taken.items()}, flush=True)
    found["load"].append(os.getloadavg()[0])
    args.out.write_text(report(found))
    print(args.out.read_text())


if __name__ == "__main__":
    main()
