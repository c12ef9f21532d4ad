#!/usr/bin/env python3
"""The reproduction's table out of results.jsonl, beside the paper's figures and those of the PyTorch reference.

    table.py RESULTS.jsonl TABLE.md TABLE.json
"""

import json
import statistics
import sys

LENGTHS = (16, 32, 64, 128)
PAPER = {
    ("agnews", "cls", "full"): (80.36, 81.84, 82.93, 83.29),
    ("agnews", "mean", "full"): (81.60, 83.00, 83.85, 84.04),
    ("agnews", "cls", "no-mi"): (79.68, 80.97, 81.79, 82.23),
    ("agnews", "cls", "no-gumbel"): (79.60, 81.61, 82.58, 82.69),
    ("dbpedia14", "cls", "full"): (96.51, 97.00, 97.03, 97.21),
    ("dbpedia14", "mean", "full"): (94.47, 95.87, 95.76, 95.71),
}
# Three seeds each, but for the ablations.
REFERENCE = {
    ("agnews", "cls", "full"): (79.81, 81.46, 82.23, 81.98),
    ("agnews", "mean", "full"): (80.90, 82.40, 83.01, 82.82),
    ("agnews", "cls", "no-mi"): (None, 81.24, None, None),
    ("agnews", "cls", "no-gumbel"): (None, 81.39, None, None),
    ("dbpedia14", "cls", "full"): (96.38, 96.49, 96.83, 97.13),
    ("dbpedia14", "mean", "full"): (94.19, 95.15, 95.55, 95.62),
    ("dbpedia14", "cls", "no-mi"): (None, 96.63, None, None),
    ("dbpedia14", "cls", "no-gumbel"): (None, 96.43, None, None),
}
NAMES = {"agnews": "AGNews", "dbpedia14": "DBpedia", "cls": "CLS", "mean": "mean"}
VARIANTS = {"full": "full", "no-mi": "no MI", "no-gumbel": "no Gumbel"}


def main(results, markdown, record):
    with open(results) as file:
        lines = [line for line in map(json.loads, file) if "failed" not in line]
    cells = {}
    for line in lines:
        cells.setdefault((line["corpus"], line["pooling"], line["variant"], line["bits"]), {})[line["seed"]] = line
    out, rows, off = [], [], []

    def show(value):
        return "-" if value is None else f"{value:.2f}"

    out.append("| corpus | pooling | model | | " + " | ".join(f"{b} bits" for b in LENGTHS) + " |")
    out.append("|---|---|---|---|" + "---|" * len(LENGTHS))
    for corpus in ("agnews", "dbpedia14"):
        for pooling in ("cls", "mean"):
            for variant in VARIANTS:
                where = (corpus, pooling, variant)
                head = f"| {NAMES[corpus]} | {NAMES[pooling]} | {VARIANTS[variant]} "
                seeds = sorted({s for b in LENGTHS for s in cells.get(where + (b,), {})})
                for seed in seeds:
                    values = [cells.get(where + (b,), {}).get(seed, {}).get("test") for b in LENGTHS]
                    out.append(f"{head}| micpq, seed {seed} | " + " | ".join(map(show, values)) + " |")
                    head = "| | | "
                for name, table in (("reference", REFERENCE), ("paper", PAPER)):
                    if where in table:
                        out.append(f"{head}| {name} | " + " | ".join(map(show, table[where])) + " |")
                        head = "| | | "
                for bits, reference, paper in zip(LENGTHS, REFERENCE.get(where, [None] * 4), PAPER.get(where, [None] * 4)):
                    runs = cells.get(where + (bits,), {})
                    if not runs:
                        continue
                    mean = statistics.mean(run["test"] for run in runs.values())
                    rows.append(
                        dict(corpus=corpus, pooling=pooling, variant=variant, bits=bits, mean=mean, reference=reference,
                             paper=paper, seeds={str(s): {k: v for k, v in r.items() if k != "curve"} for s, r in sorted(runs.items())})
                    )
                    if reference is not None and abs(mean - reference) > 1:
                        off.append(f"{NAMES[corpus]} {NAMES[pooling]} {VARIANTS[variant]} {bits}: {mean - reference:+.2f}")
    compared = [r for r in rows if r["reference"] is not None]
    apart = [abs(r["mean"] - r["reference"]) for r in compared]
    if compared:
        out.append("")
        out.append(f"{len(compared)} cells have a reference: the largest difference of our mean over seeds is {max(apart):.2f} "
                   f"points, the mean difference {statistics.mean(apart):.2f}; more than a point: {', '.join(off) or 'none'}.")
    pairs = [[r["test"] for r in runs.values()] for runs in cells.values() if len(runs) > 1]
    if pairs:
        spread = [abs(a - b) for a, b in pairs]
        out.append(f"Two seeds of one cell differ by {statistics.mean(spread):.2f} points on average, {max(spread):.2f} at most.")
    out.append("")
    out.append("| bits | seconds per epoch (AGNews, training + validation) | (DBpedia) | epochs to the end, AGNews | DBpedia | stopped by patience |")
    out.append("|---|---|---|---|---|---|")
    for bits in LENGTHS:
        row = [str(bits)]
        for what in ("seconds", "epochs"):
            for corpus in ("agnews", "dbpedia14"):
                some = [l for l in lines if l["bits"] == bits and l["corpus"] == corpus]
                if not some:
                    row.append("-")
                elif what == "seconds":
                    training = statistics.median(l["training_seconds"] / l["epochs"] for l in some)
                    validation = statistics.median(l["validation_seconds"] / l["epochs"] for l in some)
                    row.append(f"{training:.1f} + {validation:.1f}")
                else:
                    row.append(f"{min(l['epochs'] for l in some)} to {max(l['epochs'] for l in some)}")
        some = [l for l in lines if l["bits"] == bits]
        row.append(f"{sum(l['stopped'] == 'patience' for l in some)} of {len(some)}")
        out.append("| " + " | ".join(row) + " |")
    with open(markdown, "w") as file:
        file.write("\n".join(out) + "\n")
    with open(record, "w") as file:
        json.dump(rows, file, indent=1)
        file.write("\n")
    print("\n".join(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
