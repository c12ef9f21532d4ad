"""A vector store and a retriever for LlamaIndex.

>>> import micpq
>>> from llama_index.core.schema import TextNode
>>> from micpq.llama_index import MicpqVectorStore
>>> store = MicpqVectorStore(micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3))
>>> store.add([TextNode(id_="new", text="crude oil barrel", metadata={"year": 1999})])
['new']
>>> filters = MetadataFilters(filters=[MetadataFilter(key="year", operator=FilterOperator.GT, value=1990)])
>>> store.query(VectorStoreQuery(query_str="crude oil barrel", similarity_top_k=1, filters=filters)).ids
['new']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from pydantic import PrivateAttr

from . import _metadata
from ._index import Hit, Index
from .errors import ConfigError, InputError

_OPERATORS = {
    FilterOperator.EQ: "==", FilterOperator.NE: "!=", FilterOperator.GT: ">", FilterOperator.GTE: ">=", FilterOperator.LT: "<",
    FilterOperator.LTE: "<=", FilterOperator.IN: "in", FilterOperator.NIN: "not in", FilterOperator.CONTAINS: "contains",
    FilterOperator.TEXT_MATCH: "contains",
}  # fmt: skip
#: Candidates of a diverse search, as a multiple of the hits.
_DIVERSE_FROM = 4


def _condition(given: MetadataFilter | MetadataFilters) -> _metadata.Filter:
    if isinstance(given, MetadataFilters):
        parts = [_condition(part) for part in given.filters]
        if given.condition == FilterCondition.NOT:
            # None of them may match.
            return _metadata.Group("not all", [_metadata.Group("any", parts)])
        return _metadata.Group("any" if given.condition == FilterCondition.OR else "all", parts)
    field, value = given.key, given.value
    if given.operator in _OPERATORS:
        return _metadata.Condition(field, _OPERATORS[given.operator], value)
    if given.operator == FilterOperator.IS_EMPTY:
        return _metadata.Group("any", [_metadata.Condition(field, "in", [None, "", []])])
    if given.operator in (FilterOperator.ANY, FilterOperator.ALL) and isinstance(value, list):
        return _metadata.Group(given.operator.value, [_metadata.Condition(field, "contains", item) for item in value])
    raise ConfigError(f"the filter on {field} has the operator {given.operator.value}, which micpq does not have")


def _is_condition(filters: MetadataFilters) -> bool:
    """Whether filters, and every group of filters in them, ask for anything."""
    return bool(filters.filters) and all(not isinstance(part, MetadataFilters) or _is_condition(part) for part in filters.filters)


def _filters(query: VectorStoreQuery) -> _metadata.Exact | None:
    parts: list[_metadata.Filter] = []
    if query.filters is not None and query.filters.filters:
        parts.append(_condition(query.filters))
    # A retriever of LlamaIndex gives empty lists where nothing is chosen.
    if query.doc_ids:
        parts.append(_metadata.Condition("ref_doc_id", "in", query.doc_ids))
    if query.node_ids:
        parts.append(_metadata.Condition("_node_id", "in", query.node_ids))
    return _metadata.exact(_metadata.Group("all", parts)) if parts else None


class MicpqVectorStore(BasePydanticVectorStore):
    """Stores nodes in an index. Similarities are the scores of :class:`micpq.Hit`: cosines by default.

    :param index: an index. If it was built from texts, it encodes texts itself, and LlamaIndex needs no embedding model
        (``embed_model=MockEmbedding(1)`` where one is asked for). If it was built from user vectors, nodes and queries must have
        such vectors.
    :param options: options of every search, as of :meth:`micpq.Index.search`: ``rerank``, ...
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    _index: Index = PrivateAttr()
    _options: dict[str, Any] = PrivateAttr()

    def __init__(self, index: Index, **options: Any) -> None:
        super().__init__(stores_text=True, is_embedding_query=not index.model.takes_text)
        self._index, self._options = index, options

    @classmethod
    def class_name(cls) -> str:
        """Name of the class."""
        return "MicpqVectorStore"

    @property
    def client(self) -> Index:
        """The index."""
        return self._index

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Adds nodes, or replaces those with the same ids. They are on disk when it returns."""
        rows = []
        for node in nodes:
            metadata = {**node_to_metadata_dict(node, remove_text=True), "_node_id": node.node_id}
            rows.append(_metadata.row(node.node_id, node.get_content(MetadataMode.NONE), metadata))
        if rows:
            self._index.add(rows, embeddings=self._vectors(nodes), **_metadata.FIELDS, allow_empty_text=True)
        return [node.node_id for node in nodes]

    def _vectors(self, nodes: Sequence[BaseNode]) -> Any:
        """Embeddings of nodes, or None if the index encodes their texts itself."""
        if self._index.model.takes_text:
            return None
        for node in nodes:
            if node.embedding is None and self._index._encoder is None:
                raise InputError(f"node {node.node_id} has no embedding, and the index was built from user vectors; embed it first")
        if any(node.embedding is None for node in nodes):
            return None
        return np.array([node.embedding for node in nodes], dtype=np.float32)

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Deletes the nodes of a document."""
        self._delete(_metadata.exact(_metadata.Condition("ref_doc_id", "==", ref_doc_id)))

    def delete_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any) -> None:
        """Deletes nodes by id and by filters; both must match where both are given. Without any condition it is refused:
        :meth:`clear` deletes every node."""
        if filters is not None and not _is_condition(filters):
            raise ConfigError("the filters have a group without conditions, which every node matches; clear() deletes every node")
        if node_ids is None and filters is None:
            raise ConfigError("delete_nodes needs node_ids or filters; clear() deletes every node")
        if node_ids == []:
            return
        self._delete(_filters(VectorStoreQuery(node_ids=node_ids, filters=filters)))

    def clear(self) -> None:
        """Deletes every node."""
        self._delete(None)

    def _delete(self, filter: _metadata.Exact | None) -> None:
        self._index.delete([hit.id for hit in _metadata.every(self._index, filter)])

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes by id and by filters; all without either."""
        if node_ids == []:
            return []
        return [_as_node(hit) for hit in _metadata.every(self._index, _filters(VectorStoreQuery(node_ids=node_ids, filters=filters)))]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes nearest to a query. Modes: default, text_search and sparse (keywords), hybrid (``alpha`` is the weight of the
        codes), mmr."""
        hybrid = {
            VectorStoreQueryMode.DEFAULT: 0.0,
            VectorStoreQueryMode.MMR: 0.0,
            VectorStoreQueryMode.TEXT_SEARCH: 1.0,
            VectorStoreQueryMode.SPARSE: 1.0,
            VectorStoreQueryMode.HYBRID: 0.5 if query.alpha is None else 1 - query.alpha,
        }
        if query.mode not in hybrid:
            raise ConfigError(f"the mode {query.mode.value} is not known; known: {', '.join(mode.value for mode in hybrid)}")
        by_text = self._index.model.takes_text and query.query_str is not None
        given: Any = query.query_str if by_text or query.query_embedding is None else query.query_embedding
        options = {**self._options, **kwargs}
        if hybrid[query.mode] > 0:
            options |= {"hybrid": hybrid[query.mode], "keywords": query.query_str}
        k = query.hybrid_top_k or query.similarity_top_k if query.mode == VectorStoreQueryMode.HYBRID else query.similarity_top_k
        diverse = query.mode == VectorStoreQueryMode.MMR
        hits = _metadata.search(self._index, given, k * _DIVERSE_FROM if diverse else k, _filters(query), **options)
        if diverse:
            hits = self._diverse(given, hits, k, 0.5 if query.mmr_threshold is None else query.mmr_threshold)
        nodes = [_as_node(hit) for hit in hits]
        return VectorStoreQueryResult(nodes=nodes, similarities=[hit.score for hit in hits], ids=[node.node_id for node in nodes])

    def _diverse(self, query: Any, hits: list[Hit], k: int, threshold: float) -> list[Hit]:
        """Hits near the query and unlike each other. Their texts are encoded for it."""
        encode = self._index._encoder or (self._index.model.embeddings if self._index.model.takes_text else None)
        if encode is None:
            raise ConfigError("the mode mmr encodes the texts of hits; open the index with encoder=")
        near = np.asarray(encode([query])[0] if isinstance(query, str) else query).tolist()
        vectors = [np.asarray(vector).tolist() for vector in encode([hit.text or "" for hit in hits])] if hits else []
        _, chosen = get_top_k_mmr_embeddings(near, vectors, similarity_top_k=k, embedding_ids=list(range(len(hits))), mmr_threshold=threshold)
        return [hits[i] for i in chosen]


def _as_node(hit: Hit) -> BaseNode:
    """The node that was stored, or one for a document of an index that was built elsewhere."""
    metadata = _metadata.metadata(hit.attributes, hit.labels)
    if "_node_content" not in metadata:
        return TextNode(id_=str(hit.id), text=hit.text or "", metadata=metadata)
    return metadata_dict_to_node(metadata, text=hit.text)


def _node(hit: Hit) -> NodeWithScore:
    metadata = {**hit.attributes, "id": hit.id, "labels": hit.labels, "distance": hit.distance}
    return NodeWithScore(node=TextNode(id_=str(hit.id), text=hit.text or "", metadata=metadata), score=hit.score)


class MicpqRetriever(BaseRetriever):
    """Retrieves documents of an index as nodes. A query bundle with an embedding is searched by the embedding, otherwise by its
    text. ``options`` are those of :meth:`micpq.Index.search`.

    >>> import micpq
    >>> index = micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3)
    >>> nodes = MicpqRetriever(index, k=3).retrieve("crude oil barrel")
    >>> [node.metadata["labels"] for node in nodes]
    [['oil'], ['oil'], ['oil']]
    """

    def __init__(
        self,
        index: Index,
        k: int = 4,
        *,
        filter: str | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> None:
        self._index = index
        self._k = k
        self._filter = filter
        self._options = options
        super().__init__(callback_manager=callback_manager)

    def _query(self, query_bundle: QueryBundle) -> Any:
        return query_bundle.query_str if query_bundle.embedding is None else query_bundle.embedding

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._index.search(self._query(query_bundle), self._k, filter=self._filter, **self._options)
        return [_node(hit) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = await self._index.asearch(self._query(query_bundle), self._k, filter=self._filter, **self._options)
        return [_node(hit) for hit in hits]
