"""User vectors: embeddings of any encoder."""

import micpq
import numpy as np
import pytest


def clustered(n=600, width=24, seed=0):
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(6, width)) * 3
    labels = np.arange(n) % 6
    return (centres[labels] + draw.normal(size=(n, width))).astype(np.float32), labels


def test_codes_of_user_vectors_find_their_cluster():
    vectors, labels = clustered()
    model = micpq.train(embeddings=vectors, bits=32, epochs=15, hidden=64)
    assert not model.takes_text and model.inputs == 24
    codes = model.encode(embeddings=vectors)
    _, rows = model.nearest(codes, vectors, k=20)
    share = (labels[rows] == labels[:, None]).mean()
    assert share > 0.95, share


def test_views_of_the_user_are_used():
    vectors, _ = clustered()
    draw = np.random.default_rng(1)
    views = [vectors + draw.normal(size=vectors.shape).astype(np.float32) for _ in range(3)]
    one = micpq.train(embeddings=vectors, views=views, bits=16, epochs=2)
    other = micpq.train(embeddings=vectors, bits=16, epochs=2)
    assert one.fingerprint != other.fingerprint
    assert one.config["training"]["views"] == "given:3" and other.config["training"]["views"].startswith("spread:")


def test_a_function_is_an_encoder(tmp_path):
    topics = {"oil": 0, "bank": 1, "corn": 2, "ship": 3}
    calls = []

    def encode(texts):
        calls.append(len(texts))
        draw = np.random.default_rng(0)
        return [[float(topic in text) * 4 + draw.normal() * 0.3 for topic in topics] * 3 for text in texts]

    texts = [f"{list(topics)[i % 4]} story number {i}" for i in range(200)]
    index = micpq.build(texts, tmp_path / "i", encoder=encode, bits=16, epochs=8)
    assert calls == [200]
    hits = index.search("oil of any kind", k=10)
    assert all("oil" in hit.text for hit in hits)
    index.add(["a new ship"], ids=["s"])
    assert index.search("ship", k=60).ids.count("s") == 1
    assert all("bank" in h.text for hits in index.search_many(["bank"] * 2, k=5) for h in hits)
    index.close()
    with micpq.open(tmp_path / "i") as plain:
        with pytest.raises(micpq.ConfigError, match="vectors"):
            plain.search("oil")
        assert len(plain.search(np.zeros(12), k=3)) == 3
    with micpq.open(tmp_path / "i", encoder=encode) as reopened:
        assert all("oil" in hit.text for hit in reopened.search("oil", k=5))


def test_contiguous_float32_arrays_are_not_copied():
    from micpq import _inputs

    array = np.zeros((5, 3), np.float32)
    assert _inputs.vectors(array) is array or np.shares_memory(_inputs.vectors(array), array)
    assert _inputs.vectors(np.zeros((5, 3)).T).dtype == np.float32
    codes = micpq.train(embeddings=clustered()[0], bits=16, epochs=1).encode(embeddings=clustered()[0])
    assert codes.flags.c_contiguous and codes.flags.writeable


def test_torch_tensors_are_arrays():
    class Tensor:
        """The methods of torch.Tensor that micpq calls."""

        def __init__(self, array):
            self.array = array

        def detach(self):
            return self

        def cpu(self):
            return self

        def numpy(self):
            return self.array

    vectors, _ = clustered(100)
    model = micpq.train(embeddings=Tensor(vectors), bits=16, epochs=1)
    assert model.inputs == 24


@pytest.mark.parametrize("ending", ["npy", "fbin", "fvecs", "hdf5"])
def test_vector_files_are_read(tmp_path, ending):
    vectors, _ = clustered(50)
    path = tmp_path / f"v.{ending}"
    if ending == "npy":
        np.save(path, vectors)
    elif ending == "fbin":
        path.write_bytes(np.array(vectors.shape, np.uint32).tobytes() + vectors.tobytes())
    elif ending == "fvecs":
        head = np.full((50, 1), 24, np.int32).view(np.float32)
        path.write_bytes(np.hstack([head, vectors]).tobytes())
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["train"] = vectors
            file.create_dataset("test", data=vectors[:7], chunks=(2, 24), compression="gzip")
            file["neighbors"] = np.zeros((7, 100), np.int32)
    assert (micpq.read_vectors(path) == vectors).all()
    if ending == "hdf5":
        assert (micpq.read_vectors(path, "test") == vectors[:7]).all()
        with pytest.raises(micpq.FormatError, match="neighbors"):
            micpq.read_vectors(path, "queries")
