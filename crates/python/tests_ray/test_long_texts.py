"""Long texts in chunks, and the language of keyword search: shards against one index."""

import json
import random

import micpq
import pytest
from bench import news
from conftest import assert_equal

import micpq.ray

#: Documents are grouped by their best chunk, or by the sum of their chunks.
SEARCHES = [
    {"query": "crude oil barrel", "k": 15},
    {"query": "wheat harvest", "k": 7, "rerank": False},
    {"query": "wheat harvest", "k": 7, "group": "sum", "rerank": False},
    {"query": "tanker strike", "k": 9, "group": "sum"},
    {"query": "bank loan", "k": 9, "filter": "year:[1987 TO 1988]"},
    {"query": "port strike", "k": 12, "hybrid": 0.4, "snippets": True},
    {"query": "grain price", "k": 10, "hybrid": 1.0, "group": "sum"},
    {"query": "oil", "k": 20, "radius": 30.0, "rerank": False},
    {"like": {5: 2.0, 9: 1.0}, "query": "tanker", "k": 8},
    {"like": 17, "k": 6, "explain": True},
]


def long_news(start, end):
    """Documents of one to six stories of different topics."""
    rows = []
    for row in news(start, end):
        parts = random.Random(row["id"]).randrange(1, 7)
        others = [news(10_000 + 7 * row["id"] + i, 10_001 + 7 * row["id"] + i)[0]["text"] for i in range(1, parts)]
        rows.append({**row, "text": ". ".join([row["text"], *others])})
    return rows


def test_chunks_of_long_texts_are_grouped_as_in_one_index(cluster, model, tmp_path):
    rows = long_news(0, 300)
    (tmp_path / "corpus").mkdir()
    for number, part in enumerate((rows[:120], rows[120:])):
        (tmp_path / "corpus" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    one = micpq.build(rows, tmp_path / "one.micpq", model=model, chunk="16:4")
    out = tmp_path / "out"
    built = micpq.ray.build(tmp_path / "corpus", out, model, shards=3, workers=1, documents_per_part=50, chunk="16:4")
    assert built.documents == 300 and built.cut == 0
    with micpq.ray.Searcher(out, replicas=2) as searcher:
        assert_equal(one, searcher, SEARCHES)
        assert searcher.search("oil", k=1)[0].chunk is not None
        draw = random.Random(3)
        for step in range(4):
            new = [{**row, "id": draw.randrange(400)} for row in long_news(500 + 9 * step, 507 + 9 * step)]
            new = list({row["id"]: row for row in new}.values())
            assert searcher.add(new) == one.add(new)
            gone = [draw.randrange(400) for _ in range(3)]
            assert searcher.delete(list(set(gone))) == one.delete(list(set(gone)))
            assert_equal(one, searcher, draw.sample(SEARCHES, 3))
        # A document goes whole, although only one of its chunks matches.
        assert searcher.count("cocoa AND year:1988") == one.count("cocoa AND year:1988") > 0
        assert searcher.delete(filter="cocoa AND year:1988") == one.delete(filter="cocoa AND year:1988") > 0
        assert_equal(one, searcher, SEARCHES)
        searcher.rebalance(2)
        assert_equal(one, searcher, SEARCHES)
    with pytest.raises(micpq.ConfigError, match="longer than the encoder takes"):
        micpq.ray.build(tmp_path / "corpus", tmp_path / "more", model, chunk=1000)


def test_keywords_are_of_the_language_of_the_texts(cluster, model, tmp_path):
    texts = [f"Dieses Programm kopiert die Dateien und Verzeichnisse Nummer {i} von einem Ort zu einem anderen." for i in range(40)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    one = micpq.build(corpus, tmp_path / "one.micpq", model=model)
    micpq.ray.build(corpus, tmp_path / "auto", model, shards=2, workers=1)
    # The stem of a word that no text has: English finds nothing by it.
    search = {"query": "Verzeichnis", "hybrid": 1.0, "k": 5}
    with micpq.ray.Searcher(tmp_path / "auto") as searcher:
        assert_equal(one, searcher, [search])
        assert searcher._fleet.started()[2] == "de"
        assert searcher.add([{"id": 99, "text": "Ein Verzeichnis"}]) == one.add([{"id": 99, "text": "Ein Verzeichnis"}])
        assert_equal(one, searcher, [search])
    micpq.ray.build(corpus, tmp_path / "given", model, shards=2, workers=1, language="en")
    with micpq.ray.Searcher(tmp_path / "given") as searcher:
        assert searcher._fleet.started()[2] == "en"
    with pytest.raises(micpq.ConfigError, match="unknown language"):
        micpq.ray.build(corpus, tmp_path / "wrong", model, language="xx")
