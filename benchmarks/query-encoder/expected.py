#!/usr/bin/env python3
"""Titles of stories as queries, with the ids the program finds by the fast query encoder: expected.py MICPQ DEMO OUTPUT."""

import json
import pathlib
import subprocess
import sys
import tempfile

program, demo, output = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
titles = (json.loads(line)["title"] for line in open(demo / "stories.jsonl", encoding="utf-8"))
queries = list(dict.fromkeys(" ".join(title.split()) for title in titles if title.strip()))[::400]
queries += ["OPEC and the price of crude", "Crème brûlée à Paris", "日本 経済", "[MASK] bank", "don't raise $1,000.50 (50%)!"]
with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
    file.write("".join(query + "\n" for query in queries))
    file.flush()
    options = ["-k", "10", "--query-encoder", "fast", "--rerank", "off", "--ids", "--json", "--quiet"]
    lines = subprocess.run([program, "search", demo / "news.micpq", "--queries", file.name, *options], check=True, capture_output=True, text=True)
found = {query: [] for query in queries}
for line in lines.stdout.splitlines():
    hit = json.loads(line)
    found[queries[hit["query"]]].append(hit["id"])
output.write_text(json.dumps(found))
