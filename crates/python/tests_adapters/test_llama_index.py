"""The LlamaIndex vector store, through LlamaIndex's own index and alone."""

import micpq
import numpy as np
import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from micpq.llama_index import MicpqVectorStore


def nodes_of(documents):
    return [
        TextNode(
            id_=f"node-{i}",
            text=d["text"],
            metadata={"year": d["year"], "label": d["label"], "tags": ["a b", "c"] if i % 2 else ["d", "e"], "nested": {"i": i}},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"source-{i % 40}")},
        )
        for i, d in enumerate(documents)
    ]


@pytest.fixture()
def store(empty, documents):
    store = MicpqVectorStore(empty)
    nodes = nodes_of(documents)
    assert store.add(nodes) == [node.node_id for node in nodes]
    return store


def filters(*parts, condition=FilterCondition.AND):
    return MetadataFilters(filters=[p if isinstance(p, MetadataFilters) else MetadataFilter(key=p[0], operator=p[1], value=p[2]) for p in parts], condition=condition)


FILTERS = [
    (filters(("year", "==", 1988)), lambda n: n.metadata["year"] == 1988),
    (filters(("year", ">", 1987), ("label", "==", "oil")), lambda n: n.metadata["year"] > 1987 and n.metadata["label"] == "oil"),
    (filters(("year", "==", 1987), ("label", "in", ["oil", "bank"]), condition="or"), lambda n: n.metadata["year"] == 1987 or n.metadata["label"] in ("oil", "bank")),
    (filters(("label", "nin", ["oil", "bank"])), lambda n: n.metadata["label"] not in ("oil", "bank")),
    (filters(("label", "==", "oil"), ("year", "==", 1988), condition="not"), lambda n: n.metadata["label"] != "oil" and n.metadata["year"] != 1988),
    (filters(("tags", "contains", "a b")), lambda n: "a b" in n.metadata["tags"]),
    (filters(("tags", "any", ["c", "x"])), lambda n: "c" in n.metadata["tags"]),
    (filters(("tags", "all", ["c", "x"])), lambda n: False),
    (filters(("nowhere", "is_empty", None)), lambda n: True),
    (filters(("label", "text_match", "il")), lambda n: n.metadata["label"] == "oil"),
    (filters(filters(("label", "==", "oil")), ("year", "!=", 1987)), lambda n: n.metadata["label"] == "oil" and n.metadata["year"] != 1987),
]


def test_nodes_come_back_as_they_were_and_filters_compare_exactly(store, documents):
    nodes = {node.node_id: node for node in nodes_of(documents)}
    back = store.get_nodes()
    assert len(back) == 400 and all(node == nodes[node.node_id] for node in back)
    for given, matches in FILTERS:
        expected = {node.node_id for node in nodes.values() if matches(node)}
        assert {node.node_id for node in store.get_nodes(filters=given)} == expected, given
        found = store.query(VectorStoreQuery(query_str="crude oil barrel", similarity_top_k=7, filters=given))
        assert set(found.ids) <= expected and len(found.ids) == min(7, len(expected))
    assert [node.node_id for node in store.get_nodes(node_ids=["node-7", "nobody"])] == ["node-7"]
    with pytest.raises(micpq.ConfigError, match="text_match_insensitive"):
        store.get_nodes(filters=filters(("label", "text_match_insensitive", "OIL")))


def test_modes_and_limits_of_a_query(store):
    def ask(mode="default", **options):
        return store.query(VectorStoreQuery(query_str="crude oil barrel", similarity_top_k=5, mode=VectorStoreQueryMode(mode), **options))

    index = store.client
    assert ask().ids == index.search("crude oil barrel", 5).ids
    assert ask().similarities == [hit.score for hit in index.search("crude oil barrel", 5)]
    assert ask("text_search").ids == index.search("crude oil barrel", 5, hybrid=1.0).ids
    assert ask("hybrid", alpha=0.7).ids == index.search("crude oil barrel", 5, hybrid=1 - 0.7).ids
    diverse = ask("mmr", mmr_threshold=0.1).ids
    assert diverse[0] == ask().ids[0] and len(set(diverse)) == 5 and diverse != ask().ids
    assert set(ask(doc_ids=["source-3"]).ids) <= {f"node-{i}" for i in range(3, 400, 40)}
    assert set(ask(node_ids=["node-9", "node-5"]).ids) == {"node-9", "node-5"}
    with pytest.raises(micpq.ConfigError, match="svm"):
        ask("svm")


def test_nodes_are_deleted_by_document_id_filter_and_altogether(store):
    store.delete("source-3")
    assert len(store.client) == 390
    store.delete_nodes(["node-0", "node-1"])
    assert len(store.client) == 388
    store.delete_nodes(filters=filters(("label", "==", "oil")))
    assert {node.metadata["label"] for node in store.get_nodes()} == {"bank", "crop", "ship"}
    with pytest.raises(micpq.ConfigError):
        store.delete_nodes()
    store.delete_nodes([])
    assert store.get_nodes(node_ids=[]) == [] and len(store.client) > 200
    store.clear()
    assert len(store.client) == 0 and store.get_nodes() == []


@pytest.mark.parametrize(
    "given",
    [
        MetadataFilters(filters=[]),
        MetadataFilters(filters=[MetadataFilters(filters=[])]),
        MetadataFilters(filters=[MetadataFilter(key="label", value="oil"), MetadataFilters(filters=[])], condition="or"),
    ],
)
def test_filters_that_ask_for_nothing_delete_nothing(store, given):
    for node_ids in (None, ["node-0"]):
        with pytest.raises(micpq.ConfigError, match="clear"):
            store.delete_nodes(node_ids, filters=given)
    assert len(store.client) == 400


def test_an_index_of_llama_index_adds_retrieves_and_deletes(store, documents):
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
    index.insert_nodes([TextNode(id_="new", text="crude oil barrel", metadata={"year": 1999})])
    assert index.as_retriever(similarity_top_k=3, filters=filters(("year", "==", 1999))).retrieve("crude oil barrel")[0].node_id == "new"
    index.delete_nodes(["new"])
    assert store.get_nodes(node_ids=["new"]) == []


def test_user_vectors_are_searched_by_the_embedding_of_the_query(tmp_path, documents):
    class Words(MockEmbedding):
        """A vector of a text: which words it has."""

        def _vector(self, text):
            return [float(len(set(text.split()) & {word})) + 0.01 * i for i, word in enumerate("oil bank wheat ship crude loan".split())]

        def _get_text_embedding(self, text):
            return self._vector(text)

        def _get_query_embedding(self, query):
            return self._vector(query)

    embed = Words(embed_dim=6)
    vectors = np.array([embed._vector(d["text"]) for d in documents], dtype=np.float32)
    model = micpq.train(embeddings=vectors, bits=16, epochs=2)
    with micpq.Index.create(tmp_path / "vectors.micpq", model) as made:
        store = MicpqVectorStore(made)
        nodes = [TextNode(id_=str(i), text=d["text"]) for i, d in enumerate(documents[:50])]
        index = VectorStoreIndex(nodes, storage_context=StorageContext.from_defaults(vector_store=store), embed_model=embed)
        found = index.as_retriever(similarity_top_k=3).retrieve("oil crude")
        assert len(made) == 50 and [n.score for n in found] == sorted((n.score for n in found), reverse=True)
        assert all("oil" in n.text or "crude" in n.text for n in found)
        with pytest.raises(micpq.InputError, match="has no embedding"):
            store.add([TextNode(text="x")])
