"""Build, train, search and change an index, as a user does."""

import json
import pickle
import threading

import micpq
import numpy as np
import pytest
from bench import news


def test_build_finds_documents_of_the_kind_of_the_query(documents, encoder):
    index = micpq.build(documents, bits=16, encoder=encoder, epochs=8, hidden=32, views="full:4")
    hits = index.search("crude oil barrel price", k=20)
    assert len(hits) == 20
    assert sum(hit.labels == ["oil"] for hit in hits) >= 15
    assert hits[0].text.count(" ") == 11 and isinstance(hits[0].id, int) and hits[0].attributes["year"] in (1987, 1988, 1989)
    path = index.path
    index.close()
    assert index.closed and not __import__("os").path.exists(path), "a temporary index is removed when it is closed"


def test_texts_are_numbered_or_take_the_given_ids(encoder):
    texts = [d["text"] for d in news(0, 60)]
    index = micpq.build(iter(texts), bits=16, encoder=encoder, epochs=1)
    assert len(index) == 60 and index.get(7)["text"] == texts[7]
    named = micpq.build(texts, bits=16, encoder=encoder, epochs=1, ids=[f"d{i}" for i in range(60)])
    assert named.get("d7")["text"] == texts[7] and "7" not in named and "d7" in named


def test_a_path_is_a_corpus(encoder, documents, tmp_path):
    file = tmp_path / "news.jsonl"
    file.write_text("".join(json.dumps(d) + "\n" for d in documents))
    for data in (file, str(file)):
        index = micpq.build(data, bits=16, encoder=encoder, epochs=1)
        assert len(index) == 400 and index.count("year:1987") == 134


def test_search_takes_pages_filters_examples_and_a_radius(shared):
    first = shared.search("wheat harvest", k=5, rerank=False)
    second = shared.search("wheat harvest", k=5, rerank=False, after=first.next)
    assert shared.search("wheat harvest", k=10, rerank=False).ids == first.ids + second.ids
    assert all(hit.attributes["year"] == 1988 for hit in shared.search("wheat", k=50, filter="year:1988"))
    near = shared.search(like=first.ids[0], k=5)
    assert first.ids[0] not in near.ids and len(near) == 5
    fused = shared.search("wheat", like={first.ids[0]: 2.0, first.ids[1]: 1.0}, k=5)
    assert len(fused) == 5
    close = shared.search("wheat", k=400, radius=float(first.distances[2]), rerank=False)
    assert (close.distances <= first.distances[2]).all()
    by_keywords = shared.search("wheat", k=3, hybrid=1.0, snippets=True)
    text, marks = by_keywords[0].snippet
    assert "wheat" in [text[a:b] for a, b in marks]
    other = shared.search("wheat", k=3, hybrid=1.0, keywords="tanker", snippets=True)
    assert all("tanker" in hit.text for hit in other)
    explained = shared.search("wheat", k=1, explain=True)
    assert len(explained[0].codebook_distances) == 4 and explained.explanation["candidates"] > 0
    assert sum(explained[0].codebook_distances) == pytest.approx(explained[0].distance, rel=1e-5)
    assert set(explained.timings) >= {"encode", "scan"}
    asked = explained.explanation["codewords"]
    shared_codewords = explained[0].shared
    assert shared_codewords and all(asked[codebook] == codeword for codebook, codeword, _ in shared_codewords)
    assert any("wheat" in terms for _, _, terms in shared_codewords)
    assert first[0].shared is None


def test_a_recall_decides_how_many_candidates_are_reranked(shared):
    # So few documents are all re-ranked.
    whole = shared.search("wheat harvest", k=5, rerank=len(shared))
    assert shared.search("wheat harvest", k=5, target_recall=0.9) == whole
    assert shared.search_many(["wheat harvest"], k=5, target_recall=0.9) == [whole]
    with pytest.raises(micpq.ConfigError, match="either rerank or target_recall"):
        shared.search("wheat", rerank=50, target_recall=0.9)
    with pytest.raises(micpq.ConfigError, match="target_recall is 2"):
        shared.search("wheat", target_recall=2)


def test_search_many_equals_single_searches(shared):
    queries = ["crude oil", "bank loan", "port strike"] * 20
    together = shared.search_many(queries, k=5)
    assert together[:3] == [shared.search(q, k=5) for q in queries[:3]]
    assert shared.search_many([], k=5) == []
    vectors = shared.model.embeddings(queries[:3])
    assert [h.ids for h in shared.search_many(vectors, k=5)] == [h.ids for h in together[:3]]


def test_add_delete_compact_and_reload(index):
    assert index.add(news(400, 450)) == 50 and len(index) == 450
    assert index.add(news(400, 450)) == 50 and len(index) == 450, "the same ids replace"
    assert index.delete(401) == 1 and index.delete(["402", 403, "nobody"]) == 2
    assert index.delete(filter="year:1987") > 100
    before = index.search("grain", k=500).ids
    index.compact()
    assert index.search("grain", k=500).ids == before
    assert index.verify() == []
    assert index.info()["deleted"] == 0
    other = micpq.open(index.path)
    other.add(["corn"], ids=["x"])
    assert "x" not in index and index.reload() and "x" in index
    assert not index.reload()


def test_a_saved_model_gives_the_same_codes(model, tmp_path, documents):
    model.save(tmp_path / "m")
    loaded = micpq.Model.load(tmp_path / "m")
    assert loaded.fingerprint == model.fingerprint and loaded.config["method"] == "distilled"
    texts = [d["text"] for d in documents[:9]]
    assert (loaded.encode(texts) == model.encode(texts)).all()
    assert (model.encode(embeddings=model.embeddings(texts)) == model.encode(texts)).all()
    assert model.codebooks.shape == (4, 16, 8) and model.metrics["kinds_curve"]


def test_one_seed_gives_one_model_on_any_number_of_threads(documents, encoder, tmp_path):
    before = micpq.threads()
    found = []
    for threads in (1, 3):
        micpq.set_threads(threads)
        assert micpq.threads() == threads
        cache = tmp_path / f"cache{threads}"
        found.append(micpq.train(documents, bits=16, encoder=encoder, epochs=2, seed=5, cache=cache).fingerprint)
    micpq.set_threads(before)
    assert found[0] == found[1]
    assert micpq.train(documents, bits=16, encoder=encoder, epochs=2, seed=6).fingerprint != found[0]


def test_nearest_equals_brute_force(model, documents):
    vectors = model.embeddings([d["text"] for d in documents])
    codes, queries = model.encode(embeddings=vectors), model.project(vectors[:5])
    codewords = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    reconstructed = np.stack([model.codebooks[m, codewords[:, m]] for m in range(codewords.shape[1])], axis=1)
    for name, power in (("squared", 2), ("norm", 1)):
        distances, rows = model.nearest(codes, vectors[:5], k=20, distance=name)
        slices = queries.reshape(5, 1, *reconstructed.shape[1:]) - reconstructed[None]
        expected = (np.sqrt((slices**2).sum(-1)) ** power).sum(-1)
        assert np.allclose(np.sort(expected, axis=1)[:, :20], distances, rtol=1e-4)
        assert np.allclose(np.take_along_axis(expected, rows, axis=1), distances, rtol=1e-4)


def test_threads_search_one_index_at_once(shared):
    expected = shared.search("bank loan", k=10).ids
    wrong = []

    def ask():
        for _ in range(20):
            if shared.search("bank loan", k=10).ids != expected:
                wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_a_backup_outlives_its_temporary_index(documents, model, tmp_path):
    index = micpq.build(documents, model=model)
    copy = index.backup(tmp_path / "copy.micpq")
    index.close()
    assert len(copy) == 400 and copy.verify() == []
    with pytest.raises(micpq.ConfigError, match="exists"):
        copy.backup(tmp_path / "copy.micpq")


def test_build_and_add_note_skipped_rows_of_a_file(documents, model, tmp_path):
    file = tmp_path / "news.jsonl"
    file.write_text("".join(json.dumps(d) + "\n" for d in documents[:20]) + "{\n")
    notes = []

    def progress(kind, text, number):
        if kind == "note":
            notes.append(text)

    with micpq.build(file, tmp_path / "i", model=model, on_error="skip", progress=progress) as index:
        assert len(index) == 20 and any("skipped" in note for note in notes)
        notes.clear()
        assert index.add(file, on_error="skip", progress=progress) == 20
        assert any("skipped" in note for note in notes)


def test_progress_reports_stages_and_notes(documents, encoder, tmp_path, capsys):
    seen = []
    micpq.train(documents, bits=16, encoder=encoder, epochs=2, cache=tmp_path, progress=lambda *event: seen.append(event))
    kinds = {kind for kind, _, _ in seen}
    assert {"stage", "note"} <= kinds
    assert any(text.startswith("epoch 2") for kind, text, _ in seen if kind == "stage")
    micpq.train(documents, bits=16, encoder=encoder, epochs=1, seed=5, cache=tmp_path, progress=True)
    assert "epoch 1" in capsys.readouterr().err


def test_hits_pickle_compare_and_slice(shared):
    hits = shared.search("oil", k=3)
    assert pickle.loads(pickle.dumps(hits[0])) == hits[0]
    assert hits[:2] == [hits[0], hits[1]] and "Hits(3)" in repr(hits)
    assert "documents, 16 bits" in repr(shared)


@pytest.mark.parametrize("options", [{"method": "opq"}, {"method": "nash", "input": "tfidf", "epochs": 2, "min_documents": 1}])
def test_other_methods_build_search_and_reopen(options, documents, encoder, tmp_path):
    index = micpq.build(documents, tmp_path / "other.micpq", bits=16, encoder=encoder, **options)
    assert index.model.config["method"] == options["method"]
    first = index.search("crude oil barrel price", k=20)
    assert sum(hit.labels == ["oil"] for hit in first) >= 10, "four even topics would give five by chance"
    index.close()
    assert micpq.open(tmp_path / "other.micpq").search("crude oil barrel price", k=20) == first


def test_opq_quantizes_vectors():
    vectors = np.random.default_rng(3).normal(size=(500, 32)).astype(np.float32)
    model = micpq.train(embeddings=vectors, method="opq", bits=32)
    assert model.config["method"] == "opq" and model.encode(embeddings=vectors).shape == (500, 4)
    near = model.nearest(model.encode(embeddings=vectors), vectors[:50], k=1)[1][:, 0]
    assert (near == np.arange(50)).mean() > 0.8, "a vector's own code is its nearest"
    with pytest.raises(micpq.ConfigError, match="dhim .* trained on texts"):
        micpq.train(embeddings=vectors, method="dhim", bits=32)
    with pytest.raises(micpq.ConfigError, match="takes no views"):
        micpq.train(embeddings=vectors, views=[vectors], method="opq", bits=32)
    with pytest.raises(micpq.ConfigError, match="opq"):
        micpq.train(embeddings=vectors, method="oqp", bits=32)
