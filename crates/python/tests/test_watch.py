"""Saved queries."""

import micpq
import numpy as np
import pytest
from micpq.errors import ConfigError, FilterError


def found(answer):
    return [(match["query"], match["id"]) for match in answer["matches"]]


def test_new_documents_match_saved_queries(index):
    text = index.get(0)["text"]
    assert index.watches() == []
    saved = index.watch("near", text, cosine=0.999)
    assert (saved["since"], saved["text"], saved["cosine"], saved["distance"]) == (400, text, pytest.approx(0.999), None)
    index.watch("recent", filter="year:2031")
    assert [query["name"] for query in index.watches()] == ["near", "recent"]
    first = index.matches()
    assert first["matches"] == [] and not first["more"]
    index.add([{"id": "same", "text": text, "year": 2031}, {"id": "other", "text": "a poem", "year": 2031}])
    assert found(index.matches()) == [("near", "same"), ("recent", "same"), ("recent", "other")]
    # What is told next begins after the place, also for another process.
    page = index.matches(first["next"], limit=1)
    assert page["more"] and found(page) == [("near", "same"), ("recent", "same")]
    rest = micpq.open(index.path).matches(page["next"])
    assert found(rest) == [("recent", "other")] and index.matches(rest["next"])["matches"] == []
    match = index.matches(name="near")["matches"][0]
    assert match["cosine"] > 0.999 and match["distance"] >= 0
    assert ("near", 0) in found(index.matches(name="near", all=True))
    assert index.unwatch("near") and not index.unwatch("near")


def test_a_vector_is_a_query_too(index):
    vector = np.random.default_rng(1).normal(size=index.model.inputs).astype(np.float32)
    index.watch("any", vector, cosine=-0.999)
    index.add([{"id": "new", "text": "a poem"}])
    assert found(index.matches()) == [("any", "new")]


def test_what_cannot_be_saved_says_why(index):
    for name, query, options, reason in [
        ("a b", "oil", {"cosine": 0.5}, "a name that cannot be used"),
        ("a", "oil", {}, "no threshold"),
        ("a", None, {}, "asks for nothing"),
        ("a", "oil", {"cosine": 0.5, "distance": 1.0}, "either cosine or distance"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            index.watch(name, query, **options)
    with pytest.raises(FilterError):
        index.watch("a", filter="year:[")
    with pytest.raises(ConfigError, match="no place"):
        index.matches("nonsense")
