"""Duplicates found by micpq, by all pairs of floats, by semhash and by MinHash, on news with planted copies.

    make bench-dedup                               20,000 documents of AGNews
    make bench-dedup ARGS="--documents 40000"

Every contestant groups the same documents; those that read vectors read the same ones. Each gets several thresholds, and its best
one by F1 is reported. Seconds are those of finding duplicates, without encoding; memory is the peak of the process.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import corpus

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MICPQ = ROOT / "target" / "release" / "micpq"
#: A short training: codes only give candidates.
TRAINING = ["--views", "noise:4", "--epochs", "4"]
COSINES = [0.8, 0.84, 0.88, 0.9, 0.94]
JACCARDS = [0.3, 0.4, 0.5, 0.6]


def run(command: list, **options) -> tuple[float, float, str]:
    """Seconds, peak memory in MB, and standard output."""
    begun = time.time()
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True, **options)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{command} failed")
    return time.time() - begun, usage.ru_maxrss / 1000, out


def ours(by: str, index: Path, rows: list[dict], thresholds: list[float]) -> list[dict]:
    results = []
    for threshold in thresholds:
        seconds, memory, out = run([MICPQ, "dedup", index, "--by", by, "--threshold", threshold, "--json", "--quiet"])
        found = json.loads(out)
        groups = [[g["representative"], *(d["id"] for d in g["duplicates"])] for g in found["groups"]]
        results.append(entry(f"micpq, {by}", threshold, seconds, memory, rows, groups))
    return results


def theirs(folder: Path, name: str, rows: list[dict], thresholds: list[float]) -> list[dict]:
    out = folder / f"{name}.jsonl"
    command = [sys.executable, HERE / "peers.py", name, folder / "corpus.jsonl", folder / "vectors.npy", out, *thresholds]
    _, memory, _ = run(command)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return [entry(name, line["threshold"], line["seconds"], memory, rows, line["groups"]) for line in lines]


def entry(name: str, threshold: float, seconds: float, memory: float, rows: list[dict], groups: list) -> dict:
    line = {"contestant": name, "threshold": threshold, "seconds": seconds, "memory": memory, **corpus.score(rows, groups)}
    print(f"{name} {threshold}: F1 {line['f1']:.4f}, {seconds:.1f} s", file=sys.stderr)
    return line


def table(lines: list[dict]) -> str:
    head = ["", "threshold", "precision", "recall", "F1", *corpus.KINDS, "seconds", "peak MB"]
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for line in lines:
        shares = [f"{line[name]:.3f}" for name in ("precision", "recall", "f1", *corpus.KINDS)]
        cells = [line["contestant"], f"{line['threshold']:.2f}", *shares, f"{line['seconds']:.1f}", f"{line['memory']:.0f}"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("MICPQ_SHARED", ROOT.parent / "shared")) / "data")
    parser.add_argument("--work", type=Path, help="folder that keeps corpus, vectors and indexes between runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "dedup.md")
    args = parser.parse_args()
    folder = args.work or Path(tempfile.mkdtemp(prefix="micpq-dedup-"))
    folder.mkdir(parents=True, exist_ok=True)
    rows = corpus.make(args.data, args.documents)
    corpus.write(rows, folder / "corpus.jsonl")
    vectors, index = folder / "vectors.npy", folder / "news.micpq"
    if not vectors.exists():
        run([MICPQ, "encode", folder / "corpus.jsonl", "-o", vectors])
    if not index.exists():
        run([MICPQ, "build", folder / "corpus.jsonl", "-o", index, "--cache", folder / "cache", *TRAINING])
    lines = ours("words", index, rows, JACCARDS)
    lines += ours("vectors", index, rows, COSINES)
    lines += theirs(folder, "floats", rows, COSINES)
    lines += theirs(folder, "semhash", rows, COSINES)
    lines += theirs(folder, "datasketch", rows, JACCARDS)
    best = {}
    for line in lines:
        name = line["contestant"]
        if name not in best or line["f1"] > best[name]["f1"]:
            best[name] = line
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    args.out.write_text(f"""# Duplicates

`make bench-dedup`, {time.strftime("%Y-%m-%d")}; {cpu}, {os.cpu_count()} cores; {run([MICPQ, "--version"])[2].strip()}.

{len(rows)} documents of AGNews; {sum(row["kind"] != "news" for row in rows)} of them are copies: edited (a tenth of the words
replaced, dropped, inserted or misspelt), truncated (the last fifth of the words dropped), upper case, or with their sentences
reordered. News that share a fifth of their word pairs or more were left out first, so that every duplicate is a planted one. **This
makes the precision of those that compare word pairs (micpq by words, datasketch) close to 1 by construction: only their recall is a
measurement.** The precision by vectors is a measurement: it counts news of one event as false. Precision and recall count pairs of documents in one group; the columns of the kinds are the share of copies found. Vectors are those of
all-MiniLM-L6-v2, the same for all; encoding is not counted. "floats" compares all pairs by cosine. The codes of micpq have 64 bits,
trained with `{" ".join(TRAINING)}`. Load average while measuring: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, so seconds are upper bounds.

## Each with its best threshold

{table(list(best.values()))}

## All thresholds

{table(lines)}
""")
    args.out.with_suffix(".json").write_text(json.dumps(lines, indent=1) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
