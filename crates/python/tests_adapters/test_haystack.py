"""The Haystack document store: Haystack's own suites, and its retriever in a pipeline."""

import micpq
import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing.document_store import CountDocumentsByFilterTest, DocumentStoreBaseExtendedTests
from micpq.haystack import MicpqDocumentStore, MicpqRetriever


@pytest.fixture()
def document_store(empty):
    path = empty.path
    empty.close()
    store = MicpqDocumentStore(path)
    yield store
    store.index.close()


class TestStandard(DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    @pytest.fixture()
    def document_store(self, document_store):
        return document_store

    @staticmethod
    def assert_documents_are_equal(received, expected):
        """The store has codes instead of embeddings, and gives documents in the order of their ids."""
        for document in expected:
            document.embedding = None
        assert sorted(received, key=lambda d: d.id) == sorted(expected, key=lambda d: d.id)

    def test_write_documents(self, document_store):
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])
        self.assert_documents_are_equal(document_store.filter_documents(), [document])


def test_a_pipeline_retrieves_and_is_written_and_read_again(document_store, documents):
    given = [Document(id=str(d["id"]), content=d["text"], meta={"year": d["year"], "parts": [1, {"a": None}]}) for d in documents]
    given.append(Document(id="empty", content=None, meta={"year": 2000}))
    assert document_store.write_documents(given, DuplicatePolicy.OVERWRITE) == 401
    assert {d.id: d for d in document_store.filter_documents()} == {d.id: d for d in given}
    pipeline = Pipeline()
    newer = {"field": "meta.year", "operator": ">", "value": 1988}
    pipeline.add_component("retriever", MicpqRetriever(document_store, filters=newer, top_k=5, options={"rerank": False}))
    pipeline = Pipeline.from_dict(pipeline.to_dict(), allowed_modules=["micpq.haystack"])
    found = pipeline.run({"retriever": {"query": "crude oil barrel"}})["retriever"]["documents"]
    expected = document_store.index.search("crude oil barrel", 5, filter="year:[1989 TO 1999]", rerank=False)
    assert [d.id for d in found] == [str(id) for id in expected.ids] and [d.score for d in found] == [h.score for h in expected]
    vector = document_store.index.model.embeddings(["crude oil barrel"])[0].tolist()
    by_vector = MicpqRetriever(document_store).run(query_embedding=vector, top_k=3)["documents"]
    assert [d.id for d in by_vector] == [str(id) for id in document_store.index.search(vector, 3).ids]
    with pytest.raises(ValueError, match="blob"):
        document_store.write_documents([Document(blob=ByteStream(b"x"))])


def test_user_vectors_come_with_the_documents(tmp_path):
    vectors = np.random.default_rng(2).standard_normal((300, 8)).astype(np.float32)
    micpq.Index.create(tmp_path / "vectors.micpq", micpq.train(embeddings=vectors, bits=16, epochs=2)).close()
    store = MicpqDocumentStore(tmp_path / "vectors.micpq")
    store.write_documents([Document(id=f"d{i}", content=f"text {i}", embedding=v.tolist()) for i, v in enumerate(vectors)])
    found = MicpqRetriever(store).run(query_embedding=vectors[17].tolist(), top_k=1)["documents"]
    assert found[0].id == "d17" and found[0].score == pytest.approx(1, abs=0.02)
    with pytest.raises(ValueError, match="has no embedding"):
        store.write_documents([Document(content="x")])
    store.index.close()
