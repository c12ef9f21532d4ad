"""A retriever for LangChain.

>>> import micpq
>>> from micpq.langchain import MicpqRetriever
>>> index = micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3)
>>> retriever = MicpqRetriever(index=index, k=3)
>>> [document.metadata["labels"] for document in retriever.invoke("crude oil barrel")]
[['oil'], ['oil'], ['oil']]
"""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from ._index import Hit, Index


def _document(hit: Hit) -> Document:
    metadata = {**hit.attributes, "id": hit.id, "labels": hit.labels, "distance": hit.distance, "score": hit.score}
    return Document(id=str(hit.id), page_content=hit.text or "", metadata=metadata)


class MicpqRetriever(BaseRetriever):
    """Retrieves documents of an index. ``options`` are those of :meth:`micpq.Index.search`: ``hybrid``, ``rerank``, ..."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Index
    k: int = 4
    filter: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [_document(hit) for hit in self.index.search(query, self.k, filter=self.filter, **self.options)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        hits = await self.index.asearch(query, self.k, filter=self.filter, **self.options)
        return [_document(hit) for hit in hits]
