"""Means over seeds of the lines that `document_and_kind` printed, and paired comparisons: table.py FILE.jsonl ... prints Markdown."""

import json
import random
import statistics
import sys
from collections import defaultdict
from pathlib import Path

FIGURES = ["p100", "recall_10_at_100", "recall_10_at_200", "recall_10_at_400", "recall_10_at_800", "recall_10_at_1600"]
RESAMPLES = 2000


def cell(values):
    mean = statistics.fmean(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ± {statistics.stdev(values):.2f}"


def read(path):
    """(bits, method with options, kind) -> seed -> line; and the line of exact float search."""
    groups, exact = defaultdict(dict), None
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        if row["run"] == "float":
            exact = exact or row
            continue
        method, bits, seed, *options = row["run"].split(":", 3)
        groups[(int(bits), " ".join([method, *options]), row.get("kind", 0.0))][seed] = row
    return groups, exact


def difference(own, other, what, scale):
    """The mean difference in percent over the seeds that both have, and its 95 % interval by resampling queries."""
    seeds = sorted(own.keys() & other.keys())
    each = [[a - b for a, b in zip(own[s]["hits"][what], other[s]["hits"][what])] for s in seeds]
    queries = [scale * statistics.fmean(values) for values in zip(*each)]
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(queries, k=len(queries))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return f"{statistics.fmean(queries):+.2f} ({low:+.2f} to {high:+.2f})"


def name(method, kind):
    return f"{method}, kind {kind:g}" if method.startswith("distilled") else method


for path in sys.argv[1:]:
    groups, exact = read(path)
    print(f"\n## {Path(path).stem}\n")
    print("| bits | method | seeds | P@100 | recall 10@100 | 10@200 | 10@400 | 10@800 | 10@1600 |")
    print("|---|---|---|---|---|---|---|---|---|")
    if exact:
        print(f"| | exact float | | {exact['p100']:.2f} | 100 | 100 | 100 | 100 | 100 |")
    for (bits, method, kind), rows in sorted(groups.items()):
        figures = [cell([row[figure] for row in rows.values()]) for figure in FIGURES]
        print(f"| {bits} | {name(method, kind)} | {len(rows)} | {' | '.join(figures)} |")
    print("\n| bits | P@100 of `distilled`, kind 1, less that of `micpq` | recall 10@100 of `distilled`, kind 0, less that of `opq` |")
    print("|---|---|---|")
    for bits in sorted({bits for bits, _, _ in groups}):
        find = lambda method, kind=0.0: groups.get((bits, method, kind), {})
        pairs = [(find("distilled", 1.0), find("micpq"), "of_kind", 1.0), (find("distilled"), find("opq"), "nearest", 10.0)]
        print(f"| {bits} | {' | '.join(difference(*pair) if pair[0] and pair[1] else '' for pair in pairs)} |")
