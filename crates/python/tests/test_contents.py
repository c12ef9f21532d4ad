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
