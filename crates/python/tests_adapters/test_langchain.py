"""The LangChain vector store: LangChain's own suite, and what it leaves out."""

import asyncio

import micpq
import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests
from micpq.langchain import MicpqRetriever, MicpqVectorStore


@pytest.fixture(scope="module")
def vector_model():
    """A model of user vectors of the width of LangChain's test embeddings."""
    vectors = np.random.default_rng(1).standard_normal((500, 6)).astype(np.float32)
    return micpq.train(embeddings=vectors, bits=16, epochs=2)


class TestStandard(VectorStoreIntegrationTests):
    """With embeddings of LangChain, in an index of user vectors."""

    @pytest.fixture()
    def vectorstore(self, vector_model, tmp_path):
        with micpq.Index.create(tmp_path / "store.micpq", vector_model) as index:
            yield MicpqVectorStore(index, self.get_embeddings())


class TestStandardWithOwnEncoder(VectorStoreIntegrationTests):
    """With the index's own encoder, which knows the words of the suite."""

    @pytest.fixture()
    def vectorstore(self, own_words, tmp_path):
        with micpq.Index.create(tmp_path / "store.micpq", own_words) as index:
            yield MicpqVectorStore(index)

    @pytest.fixture(scope="class")
    def own_words(self, tmp_path_factory):
        import bench

        words = bench.COMMON
        bench.COMMON = [*words, "foo", "bar", "baz"]
        try:
            encoder = bench.write_encoder(tmp_path_factory.mktemp("words") / "tiny")
        finally:
            bench.COMMON = words
        return micpq.train(bench.news(), bits=16, encoder=str(encoder), epochs=2, hidden=32)


class TestRetriever(RetrieversIntegrationTests):
    """The retriever of an index of news."""

    @pytest.fixture(autouse=True)
    def with_index(self, news_index):
        self.index = news_index

    @property
    def retriever_constructor(self):
        return MicpqRetriever

    @property
    def retriever_constructor_params(self):
        return {"index": self.index}

    @property
    def retriever_query_example(self):
        return "crude oil barrel"


def test_options_of_a_call_go_before_those_of_the_retriever(news_index):
    retriever = MicpqRetriever(index=news_index, k=5, filter="year:1987", options={"rerank": False})
    assert {d.metadata["year"] for d in retriever.invoke("oil")} == {1987}
    found = retriever.invoke("oil", filter="year:1988", k=3, hybrid=1.0)
    assert [d.metadata["id"] for d in found] == news_index.search("oil", 3, filter="year:1988", rerank=False, hybrid=1.0).ids
    assert asyncio.run(retriever.ainvoke("oil", k=2, filter=None)) == retriever.invoke("oil", k=2, filter=None)


FILTERS = [
    ({"year": 1988}, lambda m: m["year"] == 1988),
    ({"year": {"$gte": 1988, "$lt": 1989}}, lambda m: m["year"] == 1988),
    ({"year": {"$in": [1987, 1989]}}, lambda m: m["year"] != 1988),
    ({"$or": [{"topic": "oil price"}, {"year": {"$gt": 1988}}]}, lambda m: m.get("topic") == "oil price" or m["year"] == 1989),
    ({"$not": {"topic": "oil price"}}, lambda m: m.get("topic") != "oil price"),
    ({"$and": [{"topic": {"$ne": "bank"}}, {"topic": {"$exists": True}}]}, lambda m: m.get("topic") not in (None, "bank")),
    ({"topic": {"$nin": ["bank", "oil price"]}}, lambda m: m.get("topic") not in ("bank", "oil price")),
    ({"tags": {"$contains": "a b"}}, lambda m: "a b" in m["tags"]),
    ({"nested": {"$eq": {"x": [1, None]}}}, lambda m: m["nested"] == {"x": [1, None]}),
    ({"id": 7}, lambda m: m["id"] == 7),
    ({"nowhere": "x"}, lambda m: False),
]


@pytest.fixture()
def filled(empty, documents):
    topics = ["oil price", "the oil price rises", "bank", "Oil Price", None]
    metadatas = [
        {
            "id": i, "text": f"of {i}", "label": "x", "year": d["year"], "tags": ["a b", "c"] if i % 2 else ["a", "b"],
            "nested": {"x": [i % 3, None]}, "share": i / 7, "odd name!": i,
            **({"topic": topics[i % 5]} if topics[i % 5] else {}),
        }
        for i, d in enumerate(documents)
    ]  # fmt: skip
    store = MicpqVectorStore(empty)
    store.add_texts([d["text"] for d in documents], metadatas, ids=[f"doc {i}" for i in range(len(documents))])
    return store, metadatas


def test_filters_compare_exactly_and_metadata_come_back_as_they_were(filled):
    store, metadatas = filled
    every = {d.id: d.metadata for d in store.similarity_search("oil", k=400)}
    assert every == {f"doc {i}": m for i, m in enumerate(metadatas)}
    for filter, matches in FILTERS:
        expected = {f"doc {i}" for i, m in enumerate(metadatas) if matches(m)}
        found = [d.id for d in store.similarity_search("crude oil barrel", k=400, filter=filter)]
        assert set(found) == expected and len(found) == len(expected), filter
        # The nearest of those that match, in the order of all.
        order = [d.id for d in store.similarity_search("crude oil barrel", k=400) if d.id in expected]
        assert found[:5] == order[:5]
    assert {d.metadata["year"] for d in store.similarity_search("oil", k=9, filter="year:1987")} == {1987}
    for wrong in ({"year": {"$near": 1}}, {"$xor": []}, {"$and": []}, {"$and": [1]}):
        with pytest.raises(micpq.ConfigError):
            store.similarity_search("oil", filter=wrong)


def test_scores_diversity_retrievers_and_deletion(filled):
    store, metadatas = filled
    scored = store.similarity_search_with_score("crude oil barrel", k=5)
    hits = store.index.search("crude oil barrel", k=5)
    assert [(d.id, s) for d, s in scored] == [(h.id, h.score) for h in hits]
    assert all(0 <= s <= 1 for _, s in store.similarity_search_with_relevance_scores("crude oil barrel", k=5))
    vector = store.index.model.embeddings(["crude oil barrel"])[0].tolist()
    assert [d.id for d in store.similarity_search_by_vector(vector, k=5)] == [h.id for h in hits]
    diverse = store.max_marginal_relevance_search("crude oil barrel", k=5, fetch_k=50, lambda_mult=0.0)
    assert diverse[0].id == hits[0].id and len({d.id for d in diverse}) == 5
    assert [d.id for d in diverse] != [h.id for h in hits]
    assert [d.id for d in store.max_marginal_relevance_search_by_vector(vector, k=5, fetch_k=50, lambda_mult=0.0)] == [d.id for d in diverse]
    near = store.max_marginal_relevance_search("crude oil barrel", k=5, fetch_k=5, lambda_mult=1.0, filter={"year": 1988})
    assert {d.metadata["year"] for d in near} == {1988}
    retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 3, "filter": {"year": 1987}})
    assert [d.metadata["year"] for d in asyncio.run(retriever.ainvoke("oil"))] == [1987] * 3
    assert store.delete(filter={"topic": "oil price"}) and len(store.index) == 320
    with pytest.raises(micpq.ConfigError):
        store.delete()


@pytest.mark.parametrize("filter", [{}, "", {"year": {}}, {"$and": [{}]}, {"$or": [{"year": 1988}, {"topic": {}}]}])
def test_a_filter_that_asks_for_nothing_deletes_nothing(filled, filter):
    store, _ = filled
    with pytest.raises(micpq.Error):
        store.delete(filter=filter)
    with pytest.raises(micpq.Error):
        store.delete(["doc 1"], filter=filter)
    assert len(store.index) == 400


def test_from_texts_trains_and_an_index_built_elsewhere_is_searched(encoder, documents, news_index, tmp_path):
    texts = [d["text"] for d in documents]
    store = MicpqVectorStore.from_texts(texts, encoder=encoder, bits=16, epochs=2, path=str(tmp_path / "made.micpq"), ids=[str(d["id"]) for d in documents])
    assert store.embeddings is None and [d.id for d in store.similarity_search(texts[3], k=1)][0].isdigit()
    embedded = MicpqVectorStore.from_texts(texts, DeterministicFakeEmbedding(size=16), [{"n": i} for i in range(400)], bits=16, epochs=2)
    assert embedded.similarity_search(texts[7], k=1)[0].page_content == texts[7]
    assert embedded.similarity_search_with_score(texts[7], k=1)[0][1] == pytest.approx(1, abs=0.02)
    elsewhere = MicpqVectorStore(news_index)
    found = elsewhere.similarity_search("crude oil barrel", k=2, filter={"labels": ["oil"], "year": 1988})
    assert all(d.metadata == {"year": 1988, "labels": ["oil"]} for d in found) and len(found) == 2
    with pytest.raises(micpq.ConfigError, match="give embedding"):
        MicpqVectorStore(embedded.index)
    with pytest.raises(micpq.InputError, match="2 metadatas for 1 texts"):
        elsewhere.add_texts(["x"], [{}, {}])
    with pytest.raises(micpq.ConfigError, match="no JSON form"):
        elsewhere.add_documents([Document(page_content="x", metadata={"when": object()})])
