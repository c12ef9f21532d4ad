"""Means over seeds of the lines that `document_and_kind` printed: table.py FILE.jsonl ... prints Markdown."""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

FIGURES = ["p100", "recall_10_at_100", "recall_10_at_200", "recall_10_at_400", "recall_10_at_800", "recall_10_at_1600"]


def cell(values):
    mean = statistics.fmean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


for path in sys.argv[1:]:
    groups = defaultdict(dict)
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        method, bits, seed, *options = (row["run"].split(":", 3) + ["0", "0"])[:3] + row["run"].split(":", 3)[3:]
        groups[(int(bits), method, ",".join(options))][seed] = row
    print(f"\n## {Path(path).stem}\n")
    print("| bits | method | seeds | P@100 | recall 10@100 | 10@200 | 10@400 | 10@800 | 10@1600 | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (bits, method, options), rows in sorted(groups.items()):
        rows = list(rows.values())
        name = f"{method} {options}".strip()
        if method == "float":
            print(f"| | exact float | | {cell([row['p100'] for row in rows])} | 100 | 100 | 100 | 100 | 100 | |")
            continue
        figures = [cell([row[figure] for row in rows]) for figure in FIGURES]
        seconds = f"{statistics.fmean(row['seconds'] for row in rows):.0f}"
        print(f"| {bits} | {name} | {len(rows)} | {' | '.join(figures)} | {seconds} |")
