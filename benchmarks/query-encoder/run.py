#!/usr/bin/env python3
"""What a fast query encoder loses and costs, on the demo's stories and on AGNews: benchmarks/query-encoder/run.py [OPTIONS].

Builds an index of each corpus at 64 bits, distils its encoder with each seed, and asks labelled queries that are not in it. Writes
benchmarks/results/query-encoder.md. Finished parts stay in work/query-encoder, so a stopped run continues.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target/release"


def run(*command):
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return done.stdout


def corpora(args):
    demo, agnews = ROOT / "work/demo", pathlib.Path(args.shared) / "data/agnews"
    stories = ["--label-field", "topics", "--max-tokens", "64", "--method", "micpq", "--views", "noise:6", "--epochs", str(args.epochs)]
    return {
        "stories, by title": (demo / "single-train.jsonl", demo / "single-test.jsonl", stories, "topics", "title"),
        "stories, by text": (demo / "single-train.jsonl", demo / "single-test.jsonl", stories, "topics", ""),
        "AGNews, by text": (agnews / "train.csv.gz", agnews / "test.csv.gz",
                            ["--max-tokens", "64", "--method", "micpq", "--views", "noise:6", "--epochs", str(args.epochs)], "", ""),
    }


def measure(args, work, name, corpus, queries, flags, label, field, seed):
    result = work / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}.json"
    if result.exists():
        return json.loads(result.read_text())
    index = work / f"{name.split(',')[0]}.micpq"
    if not index.exists():
        run(BIN / "micpq", "build", corpus, *flags, "--cache", work / "cache", "-o", index, "--quiet")
    info = json.loads(run(BIN / "micpq", "distill", index, "--seed", seed, "--json", "--quiet"))
    measured = json.loads(run(BIN / "query_encoder", index, queries, label, field))
    measured["distilled"] = info
    result.write_text(json.dumps(measured))
    return measured


def spread(values, digits):
    middle = statistics.mean(values)
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", default=ROOT.parent / "shared", help="folder above data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=25, help="of the model's training")
    parser.add_argument("--only", default="", help="corpora whose name contains this")
    args = parser.parse_args()
    work = ROOT / "work/query-encoder"
    work.mkdir(parents=True, exist_ok=True)
    lines = [
        "# The fast query encoder beside the full one",
        "",
        f"`make bench-query-encoder`; all-MiniLM-L6-v2, 64 bits, {args.seeds} seeds of `micpq distill` (mean ± standard deviation). P@100 is by code. Recall is",
        "against exact float search with the full encoder on both sides: @10 with the default re-ranking, 10@100 by code. Times are medians on one",
        "thread, from the text to the vectors, and to the distance table.",
        "",
        "| queries | documents | words of a query | query encoder | P@100 | recall@10 | recall 10@100 | to vectors, us | to the table, us | 99th percentile, us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    facts = []
    for name, (corpus, queries, flags, label, field) in corpora(args).items():
        if args.only not in name:
            continue
        runs = [measure(args, work, name, corpus, queries, flags, label, field, seed) for seed in range(args.seeds)]
        for row in range(2):
            rows = [run["rows"][row] for run in runs]
            take = lambda key: [100 * r[key] for r in rows]
            times = lambda key: [r["microseconds"][key] for r in rows]
            cells = [name, f"{runs[0]['documents']:,}", f"{runs[0]['words']:.0f}", rows[0]["query_encoder"],
                     spread(take("p100"), 1), spread(take("recall_10"), 1), spread(take("recall_10_at_100"), 1),
                     spread(times("encoded"), 1), spread(times("table"), 1), spread(times("table_p99"), 1)]
            lines.append("| " + " | ".join(cells) + " |")
        distilled = [run["distilled"] for run in runs]
        facts.append(f"- {name.split(',')[0]}: {distilled[0]['bytes'] / 1e6:.1f} MB, width {distilled[0]['width']}, learned from "
                     f"{distilled[0]['documents']:,} documents in {statistics.median(d['seconds'] for d in distilled):.0f} s.")
    lines += ["", *dict.fromkeys(facts), ""]
    (ROOT / "benchmarks/results/query-encoder.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
