"""Draws 20,000 documents and 2,000 queries of a corpus: sample.py FOLDER OUTPUT_PREFIX."""

import csv
import gzip
import random
import sys
from pathlib import Path

folder, prefix = Path(sys.argv[1]), sys.argv[2]
for name, count, seed in [("train", 20_000, 0), ("test", 2_000, 1)]:
    with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as file:
        rows = [row[:2] for row in csv.reader(file)]
    random.Random(seed).shuffle(rows)
    with open(f"{prefix}-{name}.csv", "w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows[:count])
