"""Our exact search against FAISS and others over the same codes: `make bench-search`.

Stages, each of which can run alone (`make bench-search ARGS="scan --bits 64 --documents 1000000"`):

  prepare  trains models on Reuters-21578 and encodes it, for the codes called "model"
  scan     codes in memory against FAISS: 1M and 10M documents, 16 to 128 bits
  large    the same at 100M documents
  growth   the same at 100,000 documents, which with the others shows how time grows
  index    an index on disk: build, open, filtered search, add, delete, compact
  others   against ScaNN and USearch, where they are installed
  report   search.md and the plots from all parts there are

Every part is a file in benchmarks/results/search; a part measured again replaces the old one.
"""

import argparse
import json
import os
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path

import corpus
import data
import lifecycle
import plots
import report
import scan
from contestants import ROOT, commit, machine

LENGTHS = [16, 32, 64, 128]
STAGES = ["prepare", "scan", "large", "growth", "index", "others", "report"]
DOCUMENTS = {
    "scan": [1_000_000, 10_000_000],
    "large": [100_000_000],
    "growth": [100_000],
    "index": [100_000, 1_000_000, 10_000_000],
    "others": [100_000],
}
BITS = {"scan": LENGTHS, "large": [32, 64], "growth": LENGTHS, "index": [64], "others": [64]}
DATA = {"scan": ["model", "clustered"], "large": ["model"], "growth": ["model"], "index": ["model"], "others": ["model"]}
MEASURE = {
    "scan": scan.against_faiss,
    "large": scan.against_faiss,
    "growth": scan.against_faiss,
    "index": lifecycle.measure,
    "others": scan.against_others,
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("stages", nargs="*", metavar="STAGE", help="default: all of them")
    p.add_argument("--rounds", type=int, default=9, help="timed rounds of every cell (9)")
    p.add_argument("--verify", type=int, default=16, help="queries compared with brute force for each set (16)")
    p.add_argument("--data", nargs="+", choices=data.KINDS, help="codes: of our model, clustered, or noise")
    p.add_argument("--bits", nargs="+", type=int, choices=LENGTHS)
    p.add_argument("--documents", nargs="+", type=int)
    p.add_argument("--threads", nargs="+", type=int, default=sorted({1, os.cpu_count() or 1}), help="1 and all")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--scratch", type=Path, help="where codes and indexes lie meanwhile (the system's place)")
    p.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    args = p.parse_args()
    unknown = [s for s in args.stages if s not in STAGES]
    if unknown:
        p.error(f"no stage is called {unknown[0]}; there are {', '.join(STAGES)}")
    args.stages = args.stages or STAGES
    if args.rounds < 1 or not 1 <= args.verify <= 64 or min(args.threads) < 1:
        p.error("rounds and threads are at least 1, verify 1 to 64")
    if args.documents and min(args.documents) < 1000:
        p.error("at least 1000 documents")
    return args


def run(stage, args):
    for documents in args.documents or DOCUMENTS[stage]:
        for bits in args.bits or BITS[stage]:
            for kind in args.data or DATA[stage]:
                # How many documents there are is no other kind of part.
                part_of = "scan" if MEASURE[stage] is scan.against_faiss else stage
                case = {"stage": part_of, "data": kind, "bits": bits, "documents": documents}
                print(f"{stage}: {kind} codes of {bits} bits, {documents:,} documents", flush=True)
                part = {
                    "case": case,
                    "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                    "command": " ".join(["make bench-search", 'ARGS="' + shlex.join(sys.argv[1:]) + '"'][: 1 + bool(sys.argv[1:])]),
                    "commit": commit(),
                    "machine": machine(),
                    "k": scan.K,
                    "rounds": args.rounds,
                    **MEASURE[stage](case, args),
                }
                folder = args.out / "search"
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{part_of}-{kind}-{bits}-{documents}.json"
                path.with_suffix(".partial").write_text(json.dumps(part, indent=1) + "\n")
                path.with_suffix(".partial").replace(path)


def main():
    args = arguments()
    for stage in args.stages:
        if stage == "prepare":
            corpus.prepare(args.bits or LENGTHS)
        elif stage in MEASURE:
            run(stage, args)
    parts = [json.loads(p.read_text()) for p in sorted((args.out / "search").glob("*.json"))]
    if not parts:
        return
    (args.out / "search.md").write_text(report.markdown(parts, plots.write(parts, args.out)))
    print("\n".join(report.targets(parts)[1]))
    print(f"written: {args.out / 'search.md'}")


if __name__ == "__main__":
    main()
