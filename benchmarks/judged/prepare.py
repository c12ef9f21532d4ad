"""Judged sets from corpora with titles: prepare.py DATA_DIR OUTPUT_DIR writes a BEIR folder for each of Reuters and 20 Newsgroups.

A title is a query, and the body below it is what it should find; the body holds no title. Messages of 20 Newsgroups with the same
subject are one conversation: all of them are relevant. 1,000 queries of each set are drawn by a fixed seed.
"""

import gzip
import json
import random
import re
import sys
from collections import defaultdict
from pathlib import Path

QUERIES = 1_000


def lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def reuters(folder):
    for row in lines(folder / "reuters21578" / "docs.jsonl.gz"):
        yield str(row["id"]), (row["title"] or "").strip(), (row["body"] or "").strip()


def newsgroups(folder):
    for part in ["train", "test"]:
        for row in lines(folder / "20ng" / f"{part}.jsonl.gz"):
            head, _, body = row["text"].partition("\n\n")
            subject = re.search(r"^Subject:\s*(.*)$", head, re.MULTILINE)
            title = re.sub(r"^((re|fwd?)(\[\d+\])?:\s*)+", "", subject.group(1).strip(), flags=re.IGNORECASE) if subject else ""
            yield f"{part}-{row['id']}", title, body.strip()


def write(rows, folder):
    rows = [(name, title, body) for name, title, body in rows if len(title.split()) >= 3 and len(body.split()) >= 20]
    same = defaultdict(list)
    for name, title, _ in rows:
        same[" ".join(title.lower().split())].append((name, title))
    # A title of very many messages names no particular one.
    groups = [group for group in same.values() if len(group) <= 50]
    random.Random(0).shuffle(groups)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "w") as file:
        for name, _, body in rows:
            file.write(json.dumps({"_id": name, "title": "", "text": body}) + "\n")
    with open(folder / "queries.jsonl", "w") as queries, open(folder / "qrels" / "test.tsv", "w") as qrels:
        qrels.write("query-id\tcorpus-id\tscore\n")
        for number, group in enumerate(groups[:QUERIES]):
            queries.write(json.dumps({"_id": f"q{number}", "text": group[0][1]}) + "\n")
            qrels.writelines(f"q{number}\t{name}\t1\n" for name, _ in group)
    print(f"{folder}: {len(rows)} documents, {min(len(groups), QUERIES)} queries")


data, out = Path(sys.argv[1]), Path(sys.argv[2])
write(reuters(data), out / "reuters")
write(newsgroups(data), out / "20ng")
