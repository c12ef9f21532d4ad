"""FAISS reads the files of micpq, and micpq those of FAISS."""

import micpq
import numpy as np
import pytest

faiss = pytest.importorskip("faiss")


def corpus(n=3000, width=40):
    draw = np.random.default_rng(3)
    centres = draw.normal(size=(20, width)) * 2
    return (centres[draw.integers(20, size=n)] + draw.normal(size=(n, width))).astype(np.float32)


@pytest.fixture(scope="module")
def trained():
    vectors = corpus()
    model = micpq.train(embeddings=vectors, bits=32, epochs=3)
    return model, vectors, model.encode(embeddings=vectors)


def test_an_exported_index_gives_the_distances_of_nearest(trained, tmp_path):
    model, vectors, codes = trained
    ids = np.arange(len(codes)) * 7 + 5
    model.to_faiss(tmp_path / "a.faiss", codes, ids=ids)
    index = faiss.read_index(str(tmp_path / "a.faiss"))
    assert index.ntotal == len(codes) and isinstance(index, faiss.IndexIDMap2)
    found, names = index.search(model.project(vectors[:50]), 100)
    distances, rows = model.nearest(codes, vectors[:50], 100, distance="squared")
    assert np.allclose(found, distances, rtol=1e-4)
    # Equal distances may come in another order; everything nearer than the last is the same.
    for ours, theirs, far in zip(rows, names, distances[:, -1]):
        inside = lambda pairs: {i for i, d in pairs if d < far * (1 - 1e-4)}  # noqa: E731
        assert inside(zip(ours * 7 + 5, distances[0] * 0)) <= set(ours * 7 + 5)
        mine = set((ours * 7 + 5).tolist())
        assert len(mine & set(theirs.tolist())) >= 90
    assert np.allclose(index.reconstruct(int(ids[11])), reconstruct(model, codes[11]))


def reconstruct(model, code):
    codewords = np.stack([code & 15, code >> 4], axis=1).ravel()
    return np.concatenate([model.codebooks[m, k] for m, k in enumerate(codewords)])


def test_exported_fast_scan_agrees_with_faiss_packing(trained, tmp_path):
    model, vectors, codes = trained
    model.to_faiss(tmp_path / "f.faiss", codes, fastscan=True)
    fast = faiss.read_index(str(tmp_path / "f.faiss"))
    assert isinstance(fast, faiss.IndexPQFastScan) and fast.ntotal == len(codes)
    model.to_faiss(tmp_path / "p.faiss", codes)
    plain = faiss.read_index(str(tmp_path / "p.faiss"))
    packed = faiss.IndexPQFastScan(plain)
    queries = model.project(vectors[:20])
    ours, theirs = fast.search(queries, 10), packed.search(queries, 10)
    assert (ours[0] == theirs[0]).all() and (ours[1] == theirs[1]).all(), "FAISS's own packing gives the same hits"
    exact = model.nearest(codes, vectors[:20], 10, distance="squared")[0]
    # Fast scan rounds distance tables to bytes: its distances are close to ours, not equal.
    assert np.allclose(ours[0], exact, rtol=0.1, atol=exact.max() * 0.02)


def test_the_exported_projection_equals_project(trained, tmp_path):
    model, vectors, codes = trained
    model.to_faiss(tmp_path / "a.faiss", codes)
    layers = np.load(tmp_path / "a.faiss.projection.npz")
    x = vectors[:9]
    count = len(layers.files) // 2
    for i in range(count):
        x = x @ layers[f"weight{i}"].T + layers[f"bias{i}"]
        if i + 1 < count:
            x = np.maximum(x, 0)
    assert np.allclose(x, model.project(vectors[:9]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("num_codebooks", "bits"), [(8, 4), (5, 4), (8, 8)])
@pytest.mark.parametrize("kind", ["plain", "ids", "fast", "fast64"])
def test_an_imported_quantizer_gives_the_distances_of_faiss(num_codebooks, bits, kind, tmp_path):
    if kind.startswith("fast") and bits != 4:
        pytest.skip("fast scan has 4 bits per codebook")
    vectors = corpus(2000)
    if kind.startswith("fast"):
        index = faiss.IndexPQFastScan(40, num_codebooks, bits, faiss.METRIC_L2, 64 if kind == "fast64" else 32)
    else:
        index = faiss.IndexPQ(40, num_codebooks, bits)
    index.train(vectors)
    if kind == "ids":
        index = faiss.IndexIDMap2(index)
        index.add_with_ids(vectors, np.arange(2000) * 3)
    else:
        index.add(vectors)
    path = str(tmp_path / "theirs.faiss")
    faiss.write_index(index, path)
    model, codes, ids = micpq.Model.from_faiss(path)
    assert model.inputs == 40 and (ids is not None) == (kind == "ids")
    assert (model.encode(embeddings=vectors) == codes).mean() > 0.999, "the same codewords, except for ties in rounding"
    distances, rows = model.nearest(codes, vectors[:30], 20)
    if kind.startswith("fast"):
        flat = faiss.IndexPQ(40, num_codebooks, bits)
        flat.pq = index.pq
        flat.is_trained = True
        flat.add(vectors)
        index = flat
    found, names = index.search(vectors[:30], 20)
    assert np.allclose(found, distances, rtol=1e-3, atol=1e-3)


def test_other_kinds_of_faiss_index_are_refused(tmp_path):
    flat = faiss.IndexFlatL2(4)
    flat.add(np.zeros((3, 4), np.float32))
    faiss.write_index(flat, str(tmp_path / "flat"))
    with pytest.raises(micpq.FormatError, match="IxF2"):
        micpq.Model.from_faiss(tmp_path / "flat")
    product = faiss.IndexPQ(8, 2, 4, faiss.METRIC_INNER_PRODUCT)
    product.train(np.random.rand(200, 8).astype(np.float32))
    faiss.write_index(product, str(tmp_path / "product"))
    with pytest.raises(micpq.FormatError, match="metric"):
        micpq.Model.from_faiss(tmp_path / "product")
    six = faiss.IndexPQ(8, 2, 6)
    six.train(np.random.rand(3000, 8).astype(np.float32))
    faiss.write_index(six, str(tmp_path / "six"))
    with pytest.raises(micpq.FormatError, match="4 or 8 bits"):
        micpq.Model.from_faiss(tmp_path / "six")


def test_an_index_of_texts_is_exported(shared, tmp_path):
    assert shared.export(tmp_path / "t.faiss", "faiss") == 400
    index = faiss.read_index(str(tmp_path / "t.faiss"))
    queries = ["crude oil", "bank loan"]
    found, _ = index.search(shared.model.project(shared.model.embeddings(queries)), 10)
    for query, distances in zip(queries, found):
        ours = shared.search(query, k=10, rerank=False, distance="squared").distances
        assert np.allclose(ours, distances, rtol=1e-4)
