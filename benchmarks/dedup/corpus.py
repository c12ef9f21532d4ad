"""A corpus with planted duplicates: news, and copies of some of them that were edited, truncated, upper-cased or reordered.

News that share a fifth of their word pairs are left out first, so that every duplicate is a planted one. Words decide that, not
embeddings, which the contestants use.
"""

import csv
import gzip
import json
import random
import re
from collections import defaultdict
from pathlib import Path

KINDS = ("edited", "truncated", "upper", "reordered")
#: Share of the words that an edit changes.
EDITED = 0.1
#: Share of the words that truncation drops.
TRUNCATED = 0.2
#: News with this Jaccard similarity of word pairs or more are taken for natural duplicates.
NATURAL = 0.2


def shingles(text: str) -> set[tuple[str, str]]:
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:]))


def sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?]) +", text) if part]


def unlike(texts: list[str], count: int) -> list[str]:
    """The first `count` texts of which no two are alike."""
    seen: dict[tuple[str, str], list[int]] = defaultdict(list)
    kept: list[str] = []
    sizes: list[int] = []
    for text in texts:
        own = shingles(text)
        shared: dict[int, int] = defaultdict(int)
        for shingle in own:
            for other in seen[shingle]:
                shared[other] += 1
        if any(n / (len(own) + sizes[other] - n) >= NATURAL for other, n in shared.items()):
            continue
        for shingle in own:
            seen[shingle].append(len(kept))
        kept.append(text)
        sizes.append(len(own))
        if len(kept) == count:
            break
    return kept


def edit(text: str, draw: random.Random, vocabulary: list[str]) -> str:
    """Replaces, drops, inserts or misspells a tenth of the words."""
    words = text.split()
    for _ in range(max(1, round(EDITED * len(words)))):
        at = draw.randrange(len(words))
        match draw.randrange(4):
            case 0:
                words[at] = draw.choice(vocabulary)
            case 1 if len(words) > 1:
                del words[at]
            case 2:
                words.insert(at, draw.choice(vocabulary))
            case _:
                word = words[at]
                spot = draw.randrange(len(word))
                words[at] = word[:spot] + draw.choice("abcdefghijklmnopqrstuvwxyz") + word[spot + 1 :]
    return " ".join(words)


def change(kind: str, text: str, draw: random.Random, vocabulary: list[str]) -> str:
    match kind:
        case "edited":
            return edit(text, draw, vocabulary)
        case "truncated":
            words = text.split()
            return " ".join(words[: max(1, round((1 - TRUNCATED) * len(words)))])
        case "upper":
            return text.upper()
    parts = sentences(text)
    mixed = parts[:]
    while mixed == parts:
        draw.shuffle(mixed)
    return " ".join(mixed)


def make(data: Path, documents: int) -> list[dict]:
    """Rows with `id`, `text`, `original` (the row it copies, or its own id) and `kind`. A fifth of them are copies."""
    draw = random.Random(1)
    texts = [row[1] for row in csv.reader(gzip.open(data / "agnews" / "train.csv.gz", "rt"))]
    draw.shuffle(texts)
    base = unlike([text for text in texts if len(text.split()) >= 10], documents * 4 // 5)
    vocabulary = [word for text in base[:2000] for word in text.split()]
    rows = [{"id": i, "text": text, "original": i, "kind": "news"} for i, text in enumerate(base)]
    several = [i for i, text in enumerate(base) if len(set(sentences(text))) >= 2]
    each = (documents - len(base)) // len(KINDS)
    for kind in KINDS:
        for i in draw.sample(several if kind == "reordered" else range(len(base)), each):
            text = change(kind, base[i], draw, vocabulary)
            rows.append({"id": len(rows), "text": text, "original": i, "kind": kind})
    # Copies lie between the others.
    order = list(range(len(rows)))
    draw.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    return [{**rows[old], "id": new, "original": place[rows[old]["original"]]} for new, old in enumerate(order)]


def write(rows: list[dict], path: Path) -> None:
    path.write_text("".join(json.dumps({"id": row["id"], "text": row["text"]}) + "\n" for row in rows))


def score(rows: list[dict], groups: list[list[int]]) -> dict:
    """Precision and recall over pairs of documents in one group, and the recall by kind."""
    true: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        true[row["original"]].append(row["id"])
    group_of = {id: number for number, group in enumerate(groups) for id in group}
    planted = [(a, b) for ids in true.values() for i, a in enumerate(ids) for b in ids[:i]]
    together = [a in group_of and group_of.get(a) == group_of.get(b) for a, b in planted]
    found = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    recall = sum(together) / len(planted)
    precision = sum(together) / found if found else 1.0
    by_kind = {}
    for kind in KINDS:
        copies = [row for row in rows if row["kind"] == kind]
        hits = [row["id"] in group_of and group_of[row["id"]] == group_of.get(row["original"]) for row in copies]
        by_kind[kind] = sum(hits) / len(hits)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, **by_kind}
