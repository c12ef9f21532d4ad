"""A retriever for LlamaIndex.

>>> import micpq
>>> from micpq.llama_index import MicpqRetriever
>>> index = micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3)
>>> nodes = MicpqRetriever(index, k=3).retrieve("crude oil barrel")
>>> [node.metadata["labels"] for node in nodes]
[['oil'], ['oil'], ['oil']]
"""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ._index import Hit, Index


def _node(hit: Hit) -> NodeWithScore:
    metadata = {**hit.attributes, "id": hit.id, "labels": hit.labels, "distance": hit.distance}
    return NodeWithScore(node=TextNode(id_=str(hit.id), text=hit.text or "", metadata=metadata), score=hit.score)


class MicpqRetriever(BaseRetriever):
    """Retrieves documents of an index as nodes. A query bundle with an embedding is searched by the embedding, otherwise by its
    text. ``options`` are those of :meth:`micpq.Index.search`."""

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
