#!/usr/bin/env python3
"""Reuters-21578 as the npm package has it (JSON arrays) to one JSONL file, and the single-topic stories split by id.

usage: reuters.py FOLDER_OF_ARRAYS OUTPUT_FOLDER
"""
import collections
import datetime
import glob
import json
import os
import sys


def day(stamp):
    """' 3-MAR-1987 09:18:21.26' -> '1987-03-03', or None where the wire garbled it."""
    try:
        return datetime.datetime.strptime(stamp.split()[0], "%d-%b-%Y").date().isoformat()
    except (ValueError, IndexError, AttributeError):
        return None


def stories(folder):
    for path in sorted(glob.glob(os.path.join(folder, "reuters-*.json"))):
        for story in json.load(open(path, encoding="utf-8")):
            text = " ".join(f"{story.get('title') or ''}. {story.get('body') or ''}".split()).strip(". ")
            if not text:
                continue
            yield {
                "id": int(story["id"]),
                "title": story.get("title") or "",
                "text": text,
                "topics": story.get("topics") or [],
                "places": story.get("places") or [],
                "date": day(story.get("date")),
            }


def write(path, rows):
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(partial, path)
    print(f"{len(rows):6} stories  {os.path.relpath(path)}")


def main(folder, output):
    every = list(stories(folder))
    single = [s for s in every if len(s["topics"]) == 1]
    # Ids to 14818 are the training part of the usual split, the later ones the test part; a topic counts when both
    # parts have it.
    train = [s for s in single if s["id"] <= 14818]
    test = [s for s in single if s["id"] > 14818]
    count = collections.Counter
    both = set(count(s["topics"][0] for s in train)) & set(count(s["topics"][0] for s in test))
    write(os.path.join(output, "single-train.jsonl"), [s for s in train if s["topics"][0] in both])
    write(os.path.join(output, "single-test.jsonl"), [s for s in test if s["topics"][0] in both])
    write(os.path.join(output, "stories.jsonl"), every)


if __name__ == "__main__":
    main(*sys.argv[1:3])
