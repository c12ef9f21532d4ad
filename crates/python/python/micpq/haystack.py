"""A document store and a retriever for Haystack.

>>> import micpq
>>> from haystack import Document
>>> from micpq.haystack import MicpqDocumentStore, MicpqRetriever
>>> micpq.build(NEWS, "news.micpq", bits=16, encoder=ENCODER, epochs=3).close()
>>> store = MicpqDocumentStore("news.micpq")
>>> store.write_documents([Document(id="new", content="crude oil barrel", meta={"year": 1999})])
1
>>> newer = {"field": "meta.year", "operator": ">", "value": 1990}
>>> [document.id for document in MicpqRetriever(store, top_k=1).run("crude oil barrel", filters=newer)["documents"]]
['new']
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils.filters import document_matches_filter

from . import _metadata
from ._index import Encoder, Hit, Index
from ._index import open as open_index

_GROUPS = {"AND": "all", "OR": "any", "NOT": "not all"}


def _document(hit: Hit) -> Document:
    content = _metadata.text(hit.text, hit.attributes)
    return Document(id=str(hit.id), content=content, meta=_metadata.metadata(hit.attributes, hit.labels), score=hit.score)


def _tree(filters: Any) -> _metadata.Filter | None:
    """The part of a filter that micpq can narrow the search by. Haystack itself checks filters and decides."""
    match filters:
        case {"operator": str(kind), "conditions": list(conditions)} if kind in _GROUPS:
            parts = [_tree(condition) for condition in conditions]
            given = [part for part in parts if part is not None]
            # A part that is left out lets everything through.
            if not given or kind == "OR" and len(given) < len(parts) or kind == "NOT":
                return None
            return _metadata.Group(_GROUPS[kind], given)
        case {"field": str(field), "operator": ("==" | "in") as operator, "value": value} if field.startswith("meta."):
            return _metadata.Condition(field.removeprefix("meta."), operator, value) if operator == "==" or isinstance(value, list) else None
    return None


def _is_condition(filters: Any) -> bool:
    """Whether a filter, and every group in it, asks for anything."""
    match filters:
        case {"conditions": list(conditions)}:
            return bool(conditions) and all(_is_condition(condition) for condition in conditions)
    return bool(filters)


def _filter(filters: dict[str, Any] | None) -> _metadata.Exact | None:
    if not filters:
        return None
    tree = _tree(filters)
    narrowed = None if tree is None else _metadata.narrowed(tree)
    return _metadata.Exact(narrowed, lambda hit: document_matches_filter(filters, _document(hit)))


class MicpqDocumentStore:
    """Stores documents in an index. It has their content and meta, and codes instead of embeddings: a document that comes back has
    no embedding.

    :param path: the directory of an index. If it was built from texts, it encodes contents itself and embeddings of documents are
        not looked at; if it was built from user vectors, documents must have such embeddings.
    :param encoder: for an index of user vectors, the function from texts to such vectors.
    """

    def __init__(self, path: str | os.PathLike[str], encoder: Encoder | None = None) -> None:
        self.index: Index = open_index(path, encoder=encoder)
        self._encoder = encoder

    def to_dict(self) -> dict[str, Any]:
        """The store as a dictionary: the path of its index."""
        if self._encoder is not None:
            raise ValueError("a store with an encoder function has no form as a dictionary")
        return default_to_dict(self, path=self.index.path)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MicpqDocumentStore:
        """The store of a dictionary."""
        store: MicpqDocumentStore = default_from_dict(cls, data)
        return store

    def count_documents(self) -> int:
        """Counts the documents."""
        return len(self.index)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Counts the documents that match filters."""
        return len(_metadata.every(self.index, _filter(filters)))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """The documents that match filters, in the order of their ids, without scores."""
        found = [_document(hit) for hit in _metadata.every(self.index, _filter(filters))]
        for document in found:
            document.score = None
        return found

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Writes documents, and returns how many. They are on disk when it returns. Without a policy, a known id is an error."""
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise ValueError("documents must be a list of haystack.Document")
        chosen = {document.id: document for document in documents}
        if policy != DuplicatePolicy.OVERWRITE:
            known = [id for id in chosen if id in self.index]
            if known and policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(f"the ids {', '.join(known[:5])} exist; use DuplicatePolicy.OVERWRITE or SKIP")
            for id in known:
                del chosen[id]
        self._write(list(chosen.values()))
        return len(documents) if policy == DuplicatePolicy.OVERWRITE else len(chosen)

    def _write(self, documents: list[Document]) -> None:
        if not documents:
            return
        for document in documents:
            if document.blob is not None:
                raise ValueError(f"document {document.id} has a blob; micpq stores content and meta")
        vectors = None
        if not self.index.model.takes_text and self._encoder is None:
            missing = [document.id for document in documents if document.embedding is None]
            if missing:
                raise ValueError(f"document {missing[0]} has no embedding, and the index was built from user vectors; embed it first")
            vectors = np.array([document.embedding for document in documents], dtype=np.float32)
        rows = [_metadata.row(document.id, document.content, document.meta) for document in documents]
        self.index.add(rows, embeddings=vectors, **_metadata.FIELDS, allow_empty_text=True)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Deletes documents by id. Unknown ids are ignored."""
        self.index.delete(document_ids)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Deletes the documents that match filters, and returns how many. Filters without a condition, which every document matches,
        are refused: :meth:`delete_all_documents` deletes every document."""
        if not _is_condition(filters):
            raise ValueError("the filters have no condition and would delete every document; use delete_all_documents() for that")
        return self.index.delete([hit.id for hit in _metadata.every(self.index, _filter(filters))])

    def delete_all_documents(self) -> None:
        """Deletes every document."""
        self.index.delete([hit.id for hit in _metadata.every(self.index, None)])

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Changes the meta of the documents that match filters, and returns how many. An index of texts encodes them again; one of
        user vectors has no vectors to store them with, and refuses."""
        found = [_document(hit) for hit in _metadata.every(self.index, _filter(filters))]
        for document in found:
            document.meta.update(meta)
        self._write(found)
        return len(found)


@component
class MicpqRetriever:
    """Retrieves documents of a store by a text, or by an embedding where one is given.

    :param options: options of every search, as of :meth:`micpq.Index.search`: ``hybrid``, ``rerank``, ...
    """

    def __init__(
        self,
        document_store: MicpqDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.document_store, self.filters, self.top_k, self.options = document_store, filters, top_k, options

    def to_dict(self) -> dict[str, Any]:
        """The retriever as a dictionary."""
        store = self.document_store.to_dict()
        return default_to_dict(self, document_store=store, filters=self.filters, top_k=self.top_k, options=self.options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MicpqRetriever:
        """The retriever of a dictionary."""
        given = data["init_parameters"]
        given["document_store"] = MicpqDocumentStore.from_dict(given["document_store"])
        retriever: MicpqRetriever = default_from_dict(cls, data)
        return retriever

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str | None = None,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, Any]:
        """The documents nearest to a query, with their scores."""
        given: Any = query if query_embedding is None else query_embedding
        options = dict(self.options or {})
        if query_embedding is not None and query is not None:
            options.setdefault("keywords", query)
        index, chosen = self.document_store.index, _filter(filters or self.filters)
        hits = _metadata.search(index, given, self.top_k if top_k is None else top_k, chosen, **options)
        return {"documents": [_document(hit) for hit in hits]}
