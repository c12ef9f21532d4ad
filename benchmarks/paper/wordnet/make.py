#!/usr/bin/env python3
"""WordNet's glosses as a corpus: a row per synset, its gloss as the text and its lexicographer file as the label.

usage: make.py WORDNET OUT     WORDNET holds data.noun, data.verb, data.adj and data.adv (Debian's wordnet-base: usr/share/wordnet)

Writes OUT/wordnet/documents.csv and queries.csv: 2,000 glosses drawn by Python's random with seed 1 are the queries.
"""
import csv
import random
import sys
from pathlib import Path

source, out = Path(sys.argv[1]), Path(sys.argv[2]) / "wordnet"
rows = []
for part in ["noun", "verb", "adj", "adv"]:
    for line in (source / f"data.{part}").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue  # the licence
        head, _, gloss = line.partition(" | ")
        # Labels of CSV files are read as they are; "file 05" is lexicographer file 5.
        rows.append((f"file {head.split()[1]}", gloss.strip()))
random.Random(1).shuffle(rows)
out.mkdir(parents=True, exist_ok=True)
for name, some in [("queries", rows[:2000]), ("documents", rows[2000:])]:
    with open(out / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(some)
    print(f"{out / name}.csv: {len(some)} rows, {len({label for label, _ in some})} labels")
