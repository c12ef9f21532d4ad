"""Duplicates and topics of a million documents: seconds and memory.

    .venv-dedup/bin/python benchmarks/dedup/scale.py WORK [--documents 1000000]

WORK is the folder of an earlier `bench.py --work WORK`. A document joins the halves of two of its texts, and its vector is the sum of
both vectors with noise. One document in twenty is a copy of another with more noise, at a cosine of about 0.95, and a word less.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from bench import MICPQ, run


def make(work: Path, folder: Path, count: int) -> np.ndarray:
    """Writes vectors and texts. Returns the document that each one copies, or -1."""
    draw = np.random.default_rng(1)
    texts = [json.loads(line)["text"].split() for line in open(work / "corpus.jsonl")]
    base = np.load(work / "vectors.npy").astype(np.float32)
    width = base.shape[1]
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", mode="w+", dtype=np.float16, shape=(count, width))
    copies = np.full(count, -1)
    late = np.arange(count // 20, count)
    chosen = draw.choice(late, count // 20, replace=False)
    copies[chosen] = (draw.random(len(chosen)) * chosen).astype(int)
    # A copy of a copy would be two steps of noise away.
    copies[chosen[copies[copies[chosen]] >= 0]] = -1
    pairs = draw.integers(0, len(base), (count, 2))
    with open(folder / "corpus.jsonl", "w") as file:
        for start in range(0, count, 10_000):
            end = min(start + 10_000, count)
            original = np.where(copies[start:end] >= 0, copies[start:end], np.arange(start, end))
            rows = base[pairs[original, 0]] + base[pairs[original, 1]]
            # Noise that depends on the original alone, so that a copy has it too.
            rows += 0.02 * np.stack([np.random.default_rng(int(o)).standard_normal(width) for o in original])
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            is_copy = copies[start:end] >= 0
            rows += np.where(is_copy, 0.33, 0.0)[:, None] * draw.standard_normal(rows.shape) / np.sqrt(width)
            vectors[start:end] = rows
            for i, o, copy in zip(range(start, end), original, is_copy):
                a, b = (texts[p] for p in pairs[o])
                words = a[: len(a) // 2] + b[len(b) // 2 :]
                file.write(json.dumps({"id": i, "text": " ".join(words[1:] if copy else words)}) + "\n")
    vectors.flush()
    return copies


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--documents", type=int, default=1_000_000)
    args = parser.parse_args()
    folder = args.work / f"scale-{args.documents}"
    folder.mkdir(exist_ok=True)
    copies = make(args.work, folder, args.documents)
    index = folder / "i.micpq"
    if not index.exists():
        model = args.work / "news.micpq" / "model"
        source = [folder / "vectors.npy", "--documents", folder / "corpus.jsonl"]
        seconds, memory, _ = run([MICPQ, "import", *source, "--model", model, "-o", index])
        print(f"index: {seconds:.0f} s, {memory:.0f} MB")
    seconds, memory, out = run([MICPQ, "dedup", index, "--json", "--quiet"])
    found = json.loads(out)
    group_of = {}
    for number, group in enumerate(found["groups"]):
        group_of.update({id: number for id in [group["representative"], *(d["id"] for d in group["duplicates"])]})
    planted = np.flatnonzero(copies >= 0)
    together = sum(i in group_of and group_of[i] == group_of.get(int(copies[i])) for i in planted.tolist())
    print(f"dedup: {seconds:.0f} s, {memory:.0f} MB, {found['exact']} exact, {found['near']} near; "
          f"{together} of {len(planted)} planted ones found")
    for number in ([], ["--topics", "50"]):
        seconds, memory, out = run([MICPQ, "topics", index, "--json", "--quiet", *number])
        print(f"topics {number}: {seconds:.0f} s, {memory:.0f} MB, {len(json.loads(out)['topics'])} topics")
    print(time.strftime("%Y-%m-%d"))


if __name__ == "__main__":
    main()
