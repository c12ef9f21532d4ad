#!/usr/bin/env python3
"""The JSON of benchmarks/second-stage/run as Markdown tables: table.py FOLDER"""
import glob
import json
import os
import sys


def cell(row, key, form):
    return form.format(row[key]) if key in row else "-"


for path in sorted(glob.glob(os.path.join(sys.argv[1], "*-*.json"))):
    result = json.load(open(path, encoding="utf-8"))
    corpus = os.path.basename(path).rsplit("-", 1)[0]
    print(f"### {corpus}, {result['bits']} bits: {result['documents']:,} documents, {result['queries']:,} queries, "
          f"{result['duplicates']:,} near-duplicates of each kind\n")
    print("| search | P@100 | recall 10@100 | crop first | view first | bytes per document | µs per query |")
    print("|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        cells = [cell(row, k, f) for k, f in
                 [("p100", "{:.2f}"), ("fidelity", "{:.1f}"), ("crop", "{:.1f}"), ("view", "{:.1f}"), ("bytes", "{:,}"), ("microseconds", "{:.0f}")]]
        print(f"| {row['search']} | {' | '.join(cells)} |")
    print()
