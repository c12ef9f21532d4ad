"""Duplicates and topics of an index."""

import micpq
import pytest
from micpq.errors import ConfigError


def test_duplicates_are_reported_marked_and_deleted(index):
    first = index.get(0)["text"]
    index.add([{"id": "same", "text": first, "year": 1990}, {"id": "upper", "text": first.upper(), "year": 1990}])
    report = index.dedup(by="vectors", threshold=0.9999)
    (group,) = [g for g in report["groups"] if g["representative"] == 0]
    found = {d["id"]: d for d in group["duplicates"]}
    assert found["same"]["exact"] and not found["upper"]["exact"] and found["upper"]["similarity"] > 0.999
    assert report["measure"] == "vectors" and report["documents"] == 402
    assert index.dedup(by="text", mark="copy_of")["marked"] == 1
    assert index.count("copy_of:0") == 1 and index.count("NOT copy_of:*") == 401
    assert index.dedup(by="text", delete=True)["deleted"] == {"deleted": 1, "stale": 0, "documents": 401}
    assert "same" not in index and "upper" in index and 0 in index


def test_topics_are_the_same_each_time_and_filter(index):
    stages = []
    report = index.topics(4, mark="topic", assignments=True, progress=lambda *event: stages.append(event))
    assert len(report["topics"]) == 4 and report["over"] == "year"
    assert len(report["assignments"]) == 400 and stages
    for topic in report["topics"]:
        inside = [a for a in report["assignments"] if a["topic"] == topic["number"] and not a["outlier"]]
        assert index.count(f"topic:{topic['number']}") == topic["documents"] == len(inside)
    assert index.topics(4)["topics"] == report["topics"]


def test_bad_options_say_what_is_wrong(index, documents, model, tmp_path):
    with pytest.raises(ConfigError, match="threshold is 2"):
        index.dedup(threshold=2.0)
    with pytest.raises(ConfigError, match="either delete or mark"):
        index.dedup(delete=True, mark="copy_of")
    with pytest.raises(ConfigError, match="topics is 0"):
        index.topics(0)
    with pytest.raises(ConfigError, match="400 documents"):
        index.topics(500)
    bare = micpq.build(documents, tmp_path / "bare", model=model, store="codes", rerank_vectors="none")
    with pytest.raises(ConfigError, match="neither texts nor rerank vectors"):
        bare.dedup()


def test_new_documents_that_repeat_another_are_skipped_marked_or_replace(index, model, tmp_path):
    text = "The committee of seven towns met on Friday about the price of a bridge over the slow river"
    copy, edited = {"id": "copy", "text": text.upper()}, {"id": "edited", "text": text + " again"}
    assert index.add([{"id": "first", "text": text}]) == 1
    added = index.add([copy, edited], on_duplicate="skip")
    assert (added, added.skipped, [d["duplicate_of"] for d in added.duplicates]) == (0, 2, ["first", "first"])
    assert 0.8 < added.duplicates[1]["similarity"] < 1 and "copy" not in index and len(index) == 401
    added = index.add([copy, edited], on_duplicate="mark")
    assert (added, added.marked, index.count("duplicate_of:first"), index.count("NOT duplicate_of:*")) == (2, 2, 2, 401)
    added = index.add([{"id": "newest", "text": text}], on_duplicate="replace", duplicate_by="words")
    assert (added, added.replaced, len(index), "newest" in index, "first" in index) == (1, 3, 401, True, False)
    assert index.add([{"id": "kept", "text": text}]).duplicates == [] and len(index) == 402
    # An update is never skipped.
    assert index.add([{"id": "kept", "text": text, "year": 2000}], on_duplicate="skip") == 1
    with pytest.raises(ConfigError, match="keep, skip, mark"):
        index.add([copy], on_duplicate="drop")
    with pytest.raises(ConfigError, match="on_duplicate keeps"):
        index.add([copy], duplicate_by="words")
    rows = [{"id": i, "text": text if i % 2 else f"{text} {i}"} for i in range(10)]
    built = micpq.build(rows, tmp_path / "built", model=model, on_duplicate="skip")
    assert [i in built for i in range(3)] == [True, False, False]
