"""A vector store and a retriever for LangChain.

>>> import micpq
>>> from micpq.langchain import MicpqVectorStore
>>> store = MicpqVectorStore(micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3))
>>> store.add_texts(["crude oil barrel"], [{"year": 1999}], ids=["new"])
['new']
>>> [document.id for document in store.similarity_search("crude oil barrel", k=1, filter={"year": {"$gt": 1990}})]
['new']
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from pydantic import ConfigDict, Field

from . import _metadata
from ._index import Hit, Index, build
from .errors import ConfigError, InputError

#: A filter: text in the language of micpq, or a dictionary such as ``{"year": {"$gte": 1988}, "$or": [{...}, {...}]}``.
Filter = str | dict[str, Any]

_OPERATORS = {
    "$eq": "==", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<=",
    "$in": "in", "$nin": "not in", "$contains": "contains", "$exists": "exists",
}  # fmt: skip
_GROUPS = {"$and": "all", "$or": "any", "$not": "not all"}


def _filter(given: Filter | None) -> str | _metadata.Exact | None:
    if given is None or isinstance(given, str):
        return given
    return _metadata.exact(_tree(given)) if given else None


def _tree(given: Any) -> _metadata.Filter:
    if not isinstance(given, dict) or not given:
        raise ConfigError(f"a filter is text or a dictionary like {{'year': {{'$gte': 1988}}}}, not {given!r}")
    parts: list[_metadata.Filter] = []
    for name, value in given.items():
        if name in _GROUPS:
            inner = [_tree(part) for part in (value if isinstance(value, list) else [value])]
            if not inner:
                raise ConfigError(f"{name} takes a list of filters, and this one is empty")
            parts.append(_metadata.Group(_GROUPS[name], inner))
        elif name.startswith("$"):
            raise ConfigError(f"unknown operator {name}; known: {', '.join([*_GROUPS, *_OPERATORS])}")
        elif isinstance(value, dict):
            if not value:
                raise ConfigError(f"the filter on {name} has no operator, so it would match everything; known: {', '.join(_OPERATORS)}")
            for operator, wanted in value.items():
                if operator not in _OPERATORS:
                    raise ConfigError(f"unknown operator {operator!r} of {name}; known: {', '.join(_OPERATORS)}")
                parts.append(_metadata.Condition(name, _OPERATORS[operator], wanted))
        else:
            parts.append(_metadata.Condition(name, "==", value))
    return parts[0] if len(parts) == 1 else _metadata.Group("all", parts)


def _stored(id: Any, text: str | None, attributes: dict[str, Any], labels: Sequence[str]) -> Document:
    return Document(id=str(id), page_content=text or "", metadata=_metadata.metadata(attributes, labels))


class MicpqVectorStore(VectorStore):
    """Stores documents in an index. Scores are those of :class:`micpq.Hit`: cosines by default, higher is nearer.

    :param index: an index. If it was built from texts, it encodes texts itself and ``embedding`` is left out; if it was built
        from user vectors, ``embedding`` must give such vectors.
    :param options: options of every search, as of :meth:`micpq.Index.search`: ``hybrid``, ``rerank``, ...
    """

    def __init__(self, index: Index, embedding: Embeddings | None = None, **options: Any) -> None:
        if embedding is None and not index.model.takes_text and index._encoder is None:
            raise ConfigError("the index was built from user vectors, so texts need an encoder; give embedding")
        self._index, self._embedding, self._options = index, embedding, options

    @property
    def index(self) -> Index:
        """The index."""
        return self._index

    @property
    def embeddings(self) -> Embeddings | None:
        """What encodes texts, or None if the index does it itself."""
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | None = None,
        **options: Any,
    ) -> MicpqVectorStore:
        """Trains a model on texts and stores them.

        :param path: directory of the index. Without it the index is temporary.
        :param options: options of :func:`micpq.build`: ``bits``, ``encoder``, ...
        """
        rows, _ = _rows(texts, metadatas, ids)
        vectors = None if embedding is None else np.array(embedding.embed_documents(list(texts)), dtype=np.float32)
        return cls(build(rows, path, embeddings=vectors, **_metadata.FIELDS, **options), embedding)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Adds texts, or replaces those with the same ids. Returns the ids. They are on disk when it returns."""
        listed = list(texts)
        rows, chosen = _rows(listed, metadatas, ids)
        if rows:
            vectors = None if self._embedding is None else self._embedding.embed_documents(listed)
            self._index.add(rows, embeddings=vectors, **_metadata.FIELDS)
        return chosen

    def delete(self, ids: list[str] | None = None, *, filter: Filter | None = None, **kwargs: Any) -> bool:
        """Deletes documents by id or by filter. Unknown ids are ignored. What names nothing is refused: LangChain's base class
        would take it for every document, and so would a program whose list of ids or filter is missing by mistake."""
        if ids is None and not filter:
            raise ConfigError("delete needs ids or a filter; an empty filter would delete every document")
        if filter is not None and not filter:
            raise ConfigError("the filter is empty and would delete every document; leave it out")
        matching = [] if filter is None else [hit.id for hit in _metadata.every(self._index, _filter(filter))]
        self._index.delete([*(ids or []), *matching])
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, without the unknown ones."""
        found = (self._index.get(id) for id in ids)
        return [_stored(d["id"], d["text"], d["attributes"], d["labels"]) for d in found if d is not None]

    def similarity_search(self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any) -> list[Document]:
        """The documents nearest to a text."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The documents nearest to a text, with their scores."""
        return self._scored(self._search(query, k, filter, kwargs))

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The documents nearest to an embedding."""
        return [document for document, _ in self.similarity_search_by_vector_with_score(embedding, k, filter=filter, **kwargs)]

    def similarity_search_by_vector_with_score(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The documents nearest to an embedding, with their scores."""
        return self._scored(_metadata.search(self._index, embedding, k, _filter(filter), **{**self._options, **kwargs}))

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """Documents near a text and unlike each other, chosen from the nearest ``fetch_k``. Their texts are encoded for it."""
        embedding = self._encode([query], is_query=True)[0]
        return self._diverse(embedding, self._search(query, fetch_k, filter, kwargs), k, lambda_mult)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The same for an embedding."""
        hits = _metadata.search(self._index, embedding, fetch_k, _filter(filter), **{**self._options, **kwargs})
        return self._diverse(np.asarray(embedding, dtype=np.float32), hits, k, lambda_mult)

    def _search(self, query: str, k: int, filter: Filter | None, options: dict[str, Any]) -> list[Hit]:
        given: Any = query if self._embedding is None else self._embedding.embed_query(query)
        settings = {**self._options, **options}
        if self._embedding is not None:
            # Keywords of hybrid search are of the text.
            settings.setdefault("keywords", query)
        return _metadata.search(self._index, given, k, _filter(filter), **settings)

    def _encode(self, texts: list[str], is_query: bool = False) -> Any:
        if self._embedding is not None:
            return np.array([self._embedding.embed_query(texts[0])] if is_query else self._embedding.embed_documents(texts))
        if self._index._encoder is not None:
            return np.asarray(self._index._encoder(texts))
        return self._index.model.embeddings(texts)

    def _diverse(self, embedding: Any, hits: list[Hit], k: int, lambda_mult: float) -> list[Document]:
        if not hits:
            return []
        vectors = self._encode([hit.text or "" for hit in hits])
        chosen = maximal_marginal_relevance(np.asarray(embedding), list(vectors), lambda_mult=lambda_mult, k=k)
        return [document for document, _ in self._scored([hits[i] for i in chosen])]

    def _scored(self, hits: list[Hit]) -> list[tuple[Document, float]]:
        return [(_stored(hit.id, hit.text, hit.attributes, hit.labels), hit.score) for hit in hits]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        # A cosine, from -1 to 1; what is ranked by codes alone has less than -1.
        return lambda score: min(max((score + 1) / 2, 0.0), 1.0)


def _rows(texts: Sequence[str], metadatas: Sequence[dict[str, Any]] | None, ids: Sequence[str | None] | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Texts as rows, and their ids. Missing ids are made."""
    for name, given in (("metadatas", metadatas), ("ids", ids)):
        if given is not None and len(given) != len(texts):
            raise InputError(f"there are {len(given)} {name} for {len(texts)} texts; give one for each")
    chosen = [str(uuid.uuid4()) if id is None else str(id) for id in (ids or [None] * len(texts))]
    return [_metadata.row(id, text, m) for id, text, m in zip(chosen, texts, metadatas or [{}] * len(texts))], chosen


def _document(hit: Hit) -> Document:
    metadata = {**hit.attributes, "id": hit.id, "labels": hit.labels, "distance": hit.distance, "score": hit.score}
    return Document(id=str(hit.id), page_content=hit.text or "", metadata=metadata)


class MicpqRetriever(BaseRetriever):
    """Retrieves documents of an index. ``options`` are those of :meth:`micpq.Index.search`: ``hybrid``, ``rerank``, ... A call may
    give others: ``retriever.invoke("oil", k=3, filter="year:1988")``.

    >>> import micpq
    >>> index = micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3)
    >>> retriever = MicpqRetriever(index=index, k=3)
    >>> [document.metadata["labels"] for document in retriever.invoke("crude oil barrel")]
    [['oil'], ['oil'], ['oil']]
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Index
    k: int = 4
    filter: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any) -> list[Document]:
        return [_document(hit) for hit in self.index.search(query, **self._given(options))]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return [_document(hit) for hit in await self.index.asearch(query, **self._given(options))]

    def _given(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"k": self.k, "filter": self.filter, **self.options, **options}
