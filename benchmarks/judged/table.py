#!/usr/bin/env python3
"""The judgements of `benchmarks/judged/run` as tables in Markdown: table.py OUTPUT_DIR/judged.jsonl"""

import json
import sys

FIGURES = ["ndcg@10", "recall@100", "mrr"]
rows = {}
for line in open(sys.argv[1]):
    found = json.loads(line)
    name, method, rerank, hybrid = found["key"].split()
    table = rows.setdefault(f"{name}: {found['documents']:,} documents, {found['queries']:,} queries", {})
    for way in found["ways"]:
        own = way["way"] not in ("BM25", "exact float")
        label = way["way"]
        if label.startswith("hybrid"):
            label = f"hybrid {hybrid}, {int(rerank):,} re-ranked"
        label = label.replace(f"{rerank} re-ranked", f"{int(rerank):,} re-ranked")
        table[(method if own else "", label)] = [way[figure] for figure in FIGURES]
for title, table in rows.items():
    print(f"## {title}\n\n| codes of | search | nDCG@10 | recall@100 | MRR |\n|---|---|---|---|---|")
    for (method, label), figures in sorted(table.items(), key=lambda row: (row[0][0], row[0][1].startswith("hybrid"), len(row[0][1]), row[0][1])):
        print(f"| {method} | {label} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |")
    print()
