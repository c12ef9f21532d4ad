"""Methods of users: registered, trained, searched, and rows of the paper's evaluation."""

import json

import numpy as np
import pytest

import micpq

PLAN = """
title = "a method of a user"
encoder = {encoder}
pooling = "mean"
bits = [32]
seeds = [0, 1]
[[corpus]]
name = "news"
documents = "news.jsonl"
max_tokens = 32
[[row]]
method = "float"
[[row]]
method = "random-signs"
"""


class RandomSigns:
    """The signs of random projections."""

    name = "random-signs"

    def __init__(self, bits, seed):
        self.bits, self.rng = bits, np.random.default_rng(seed)

    def fit(self, embeddings):
        projection = self.rng.standard_normal((embeddings.shape[1], self.bits))
        return projection, np.tile([[[-1.0], [1.0]]], (self.bits, 1, 1))


def test_a_class_trains_indexes_and_searches(documents, encoder):
    micpq.register_method(RandomSigns)
    vectors = np.random.default_rng(5).standard_normal((200, 24), dtype=np.float32)
    model = micpq.train(embeddings=vectors, method="random-signs", bits=32, seed=7)
    expected = np.packbits(vectors @ RandomSigns(32, 7).rng.standard_normal((24, 32)) > 0, axis=1, bitorder="little")
    assert np.array_equal(model.encode(embeddings=vectors), expected)
    with micpq.build(documents, encoder=encoder, method="random-signs", bits=32) as index:
        assert index.model.bits == 32
        assert len(index.search("crude oil barrel", k=5)) == 5


def test_a_class_is_a_row_of_the_paper(documents, encoder, tmp_path):
    micpq.register_method(RandomSigns)
    rows = [{"id": i, "text": d["text"], "label": d["label"]} for i, d in enumerate(documents)]
    (tmp_path / "news.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "plan.toml").write_text(PLAN.format(encoder=json.dumps(encoder)))
    results = micpq.paper(tmp_path / "plan.toml", tmp_path / "out", tmp_path)
    assert not results["missing"], results["missing"]
    own = [cell for cell in results["cells"] if cell["task"].get("row") == "random-signs"]
    assert sorted(cell["task"]["seed"] for cell in own) == [0, 1]
    assert all(0 < cell["figures"]["precision"][2] <= 100 for cell in own)
    assert "random-signs" in (tmp_path / "out" / "report.md").read_text()


def test_what_a_class_gives_wrong_is_named():
    class Wrong(RandomSigns):
        name = "wrong"

        def fit(self, embeddings):
            projection, codebooks = super().fit(embeddings)
            return projection, codebooks[:, :, 0]

    class Raises(RandomSigns):
        name = "raises"

        def fit(self, embeddings):
            raise ValueError("the cat is on the keyboard")

    vectors = np.ones((20, 8), dtype=np.float32)
    for method, text in [(Wrong, "3 expected"), (Raises, "the cat is on the keyboard")]:
        micpq.register_method(method)
        with pytest.raises(micpq.Error, match=text):
            micpq.train(embeddings=vectors, method=method.name, bits=32)
    with pytest.raises(micpq.Error, match="built-in"):
        micpq.register_method(RandomSigns, name="opq")
    with pytest.raises(micpq.Error, match="needs a name"):
        micpq.register_method(object)
