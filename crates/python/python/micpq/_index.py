"""Indexes: building, opening, searching, changing, exporting."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from . import _inputs, _micpq
from ._inputs import Data, Id
from ._model import Model
from ._progress import Progress, reporter
from .errors import ArgumentError, ConfigError, InputError

#: A function from texts to vectors, such as ``SentenceTransformer.encode``.
Encoder = Callable[[list[str]], Any]


@dataclass(frozen=True)
class Hit:
    """One document of an answer."""

    #: A number or a string, as in the corpus.
    id: Id
    #: Distance from the query to the code of the document.
    distance: float
    #: Hits are ordered by it, highest first: minus the distance, the cosine of the rerank vector, or the fused rank of a
    #: hybrid search.
    score: float
    #: None if the index stores no texts. In an index with chunks, the text of the chunk; :meth:`Index.get` gives the whole.
    text: str | None = None
    labels: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    #: With ``snippets=True``: the part of the text that matches best, and the matches in it as ranges of characters.
    snippet: tuple[str, list[tuple[int, int]]] | None = None
    #: With ``explain=True``: the distance codebook by codebook.
    codebook_distances: list[float] | None = None
    #: In an index with chunks: which chunk of the document was found (from 0), how many it has, and where the chunk begins in
    #: the document's text, in bytes of UTF-8.
    chunk: tuple[int, int, int] | None = None
    #: With ``explain=True``: the codewords in common with the query, each as its codebook, its number and the terms that it
    #: stands for, the most characteristic first.
    shared: list[tuple[int, int, list[str]]] | None = None


class Hits(Sequence[Hit]):
    """Hits of one query, best first. They are a sequence and convert to tables.

    >>> import micpq
    >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
    >>> hits = index.search("crude oil", k=3)
    >>> len(hits), hits[0].score >= hits[1].score
    (3, True)
    >>> list(hits.to_pandas().columns)
    ['id', 'distance', 'score', 'text', 'labels', 'year']
    """

    def __init__(self, hits: list[Hit], next: str | None, explanation: dict[str, Any] | None, timings: dict[str, float]) -> None:
        self._hits = hits
        #: Pass it as ``after`` to get the next page. None on the last page.
        self.next = next
        #: With ``explain=True``: the scan strategy and the work of each segment.
        self.explanation = explanation
        #: Seconds per stage.
        self.timings = timings
        #: Numbers of the shards that a partial answer of :class:`micpq.ray.Searcher` lacks.
        self.missing: list[int] = []

    @overload
    def __getitem__(self, at: int) -> Hit: ...
    @overload
    def __getitem__(self, at: slice) -> list[Hit]: ...
    def __getitem__(self, at: int | slice) -> Hit | list[Hit]:
        return self._hits[at]

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hits) and self._hits == other._hits

    __hash__ = None  # type: ignore[assignment]

    @property
    def ids(self) -> list[Id]:
        """Ids, best first."""
        return [hit.id for hit in self._hits]

    @property
    def distances(self) -> npt.NDArray[np.float32]:
        """Distances of the codes, in the order of the hits."""
        return np.array([hit.distance for hit in self._hits], dtype=np.float32)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per hit, with attributes as further keys (``attributes.NAME`` if the name is taken)."""
        reserved = ("id", "distance", "score", "text", "labels")
        rows = []
        for hit in self._hits:
            row: dict[str, Any] = {name: getattr(hit, name) for name in reserved}
            for name, value in hit.attributes.items():
                row[f"attributes.{name}" if name in reserved else name] = value
            rows.append(row)
        return rows

    def _columns(self) -> dict[str, list[Any]]:
        rows = self.to_dicts()
        names = dict.fromkeys(name for row in rows for name in row)
        if not rows:
            names = dict.fromkeys(("id", "distance", "score", "text", "labels"))
        return {name: [row.get(name) for row in rows] for name in names}

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table``."""
        import pyarrow

        columns = self._columns()
        if any(isinstance(i, str) for i in columns["id"]):
            columns["id"] = [str(i) for i in columns["id"]]
        return pyarrow.table(columns)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``."""
        import pandas

        return pandas.DataFrame(self._columns())

    def to_polars(self) -> Any:
        """A ``polars.DataFrame``."""
        import polars

        return polars.DataFrame(self._columns(), strict=False)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        lines = [f"{hit.distance:8.3f}  {hit.id}  {(hit.text or '')[:80]}" for hit in self._hits]
        return "\n".join([f"Hits({len(self)})", *lines])


def _hits(answer: tuple[Any, ...]) -> Hits:
    hits, next, explanation, timings = answer
    return Hits([Hit(*hit) for hit in hits], next, None if explanation is None else json.loads(explanation), timings)


class Added(int):
    """How many documents :meth:`Index.add` added, and what became of those that repeat another."""

    #: Documents that were left out.
    skipped: int
    #: Documents that were added with the attribute ``duplicate_of``.
    marked: int
    #: Documents that new ones replaced.
    replaced: int
    #: The first 1,000 of them: ``id``, ``duplicate_of`` and ``similarity``.
    duplicates: list[dict[str, Any]]

    def __new__(cls, number: int, repeats: Mapping[str, Any]) -> Added:
        added = super().__new__(cls, number)
        added.skipped = repeats.get("skipped", 0)
        added.marked = repeats.get("marked", 0)
        added.replaced = repeats.get("replaced", 0)
        added.duplicates = repeats.get("documents", [])
        return added


class Index:
    """An open index. Any number of threads may use it. It is a context manager, and it closes when it is dropped.

    >>> import micpq
    >>> with micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2) as index:
    ...     len(index)
    400
    """

    def __init__(self, native: _micpq.Index, encoder: Encoder | None = None) -> None:
        if not isinstance(native, _micpq.Index):
            raise ArgumentError("an Index comes from micpq.build, micpq.open or micpq.Index.create")
        self._native = native
        self._encoder = encoder
        self._model: Model | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        model: Model,
        *,
        store: str | None = None,
        rerank_vectors: str | None = None,
        chunk: bool | int | str = False,
        language: str | None = None,
        replace: bool = False,
        encoder: Encoder | None = None,
    ) -> Index:
        """Creates an empty index for a model.

        :param store: ``"all"`` (default) stores texts and attributes, ``"codes"`` only ids and codes.
        :param rerank_vectors: how embeddings are stored for re-ranking: ``"int8"`` (default), ``"f16"`` or ``"none"``.
        :param chunk: split texts that are longer than the encoder takes, and search all of them: ``True``, a number of
            tokens, or ``"TOKENS:OVERLAP"``.
        :param language: language of keyword search, such as ``"de"``, ``"ja"`` or ``"any"``. Default: English.
        :param replace: replace an index that exists at ``path``.
        :param encoder: for a model of user vectors, the function from texts to such vectors.
        """
        if not isinstance(model, Model):
            raise ArgumentError(f"model must be a micpq.Model, not {type(model).__name__}")
        options = _inputs.options(
            {"store": store, "rerank_vectors": rerank_vectors, "chunk": chunk, "language": language, "replace": replace}
        )
        return cls(_micpq.Index.create(_inputs.path(path), model._native, options), encoder)

    # Reading

    @property
    def path(self) -> str:
        """The directory of the index."""
        return os.fspath(self._native.dir)

    @property
    def model(self) -> Model:
        """The model that computes the codes."""
        if self._model is None:
            self._model = Model(self._native.model())
        return self._model

    @property
    def closed(self) -> bool:
        """Whether the index was closed."""
        return self._native.closed

    def __len__(self) -> int:
        return self._native.count(None)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, (str, int)) and self.get(id) is not None

    def count(self, filter: str | None = None) -> int:
        """Counts the documents, or those that match a filter.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.count("year:1988")
        133
        """
        return self._native.count(filter)

    def info(self) -> dict[str, Any]:
        """Counts of documents and segments, and sizes in bytes."""
        info: dict[str, Any] = json.loads(self._native.info())
        return info

    def get(self, id: Id) -> dict[str, Any] | None:
        """The document with this id, with its code, or None."""
        return self._native.get(id)

    # Searching

    def _example(self, example: Any) -> tuple[str, Any]:
        if isinstance(example, str):
            if self._encoder is None:
                return "text", example
            rows = _inputs.vectors(self._encoder([example]), "the encoder's result", self.model.inputs, 1)
            return "vector", rows[0]
        return "vector", _inputs.vector(example, "query", self.model.inputs)

    def _query(self, query: Any, like: Any, keywords: str | None) -> tuple[list[tuple[str, Any, float]], str | None]:
        examples: list[tuple[str, Any, float]] = []
        if query is not None:
            examples.append((*self._example(query), 1.0))
            if keywords is None and isinstance(query, str):
                keywords = query
        if like is not None:
            if isinstance(like, (str, int)):
                like = {like: 1.0}
            elif not isinstance(like, Mapping):
                if isinstance(like, (type, bytes)) or not isinstance(like, Iterable):
                    raise ArgumentError(f"like must be an id, a list of ids, or a dictionary of ids and weights, not {like!r}")
                like = {id: 1.0 for id in like}
            examples.extend(("document", id, float(weight)) for id, weight in like.items())
        return examples, keywords

    def search(
        self,
        query: Any = None,
        k: int | None = None,
        *,
        like: Id | Sequence[Id] | Mapping[Id, float] | None = None,
        filter: str | None = None,
        radius: float | None = None,
        after: str | None = None,
        hybrid: float | None = None,
        kind: float | None = None,
        rerank: bool | int | str | None = None,
        target_recall: float | None = None,
        group: str | None = None,
        query_encoder: str | None = None,
        distance: str | None = None,
        keywords: str | None = None,
        documents: bool | None = None,
        snippets: bool | None = None,
        explain: bool | None = None,
        _stop: _micpq.Stop | None = None,
    ) -> Hits:
        """Finds the documents nearest to a query.

        :param query: a text, or an embedding.
        :param k: number of hits, 1 to 10,000. Default: 10.
        :param like: find documents like these: an id, a list of ids, or a dictionary of ids and weights. Combines with
            ``query``.
        :param filter: only documents that match: ``"places:japan AND year:[1987 TO 1988]"``.
        :param radius: only documents whose code is at most this far away.
        :param after: ``hits.next`` of the previous page.
        :param hybrid: weight of the keywords (BM25), from 0 (codes only) to 1 (keywords only). Default: 0.
        :param kind: from the particular document, 0, to everything of its kind, 1, for an index whose model knows kinds
            (method ``"distilled"``). Default: 0.
        :param rerank: number of candidates to re-rank by their rerank vectors; ``"auto"``, the default (1000 if the index stores rerank
            vectors and ``kind`` is 0), or ``False`` to rank by codes only.
        :param target_recall: re-rank as many candidates as this recall against exact float search needs, 0 to 1, in place of
            ``rerank``. It is measured on documents of the index, once per commit, which takes seconds.
        :param group: in an index with chunks, what gives a document its place: its ``"best"`` chunk, the default, or the
            ``"sum"`` of its best three.
        :param query_encoder: which encoder reads texts: ``"full"``, that of the documents and the default, or ``"fast"``, the
            copy that :meth:`distill` makes.
        :param distance: ``"norm"``, ``"squared"`` or ``"hamming"``. Default: the model's.
        :param keywords: keywords for BM25 and snippets. Default: the query's text.
        :param documents: hits carry text, labels and attributes, as they do by default.
        :param snippets: hits carry the part of the text that matches best.
        :param explain: hits carry ``codebook_distances``, and the answer its ``explanation``.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> [hit.attributes["year"] for hit in index.search("wheat harvest", k=2, filter="year:1989")]
        [1989, 1989]
        """
        rerank = self._reranked(rerank, target_recall, k, _stop)
        options = _inputs.options(
            {
                "k": _inputs.count_or_default(k, "k"), "filter": filter, "radius": radius, "after": after, "hybrid": hybrid,
                "kind": kind, "rerank": rerank, "group": group, "query_encoder": query_encoder, "distance": distance,
                "documents": documents, "snippets": snippets, "explain": explain,
            }
        )
        if query is None and like is None:
            raise ConfigError("search needs a query: a text, a vector, or like=ID")
        return _hits(self._native.search([self._query(query, like, keywords)], options, _stop)[0])

    def _reranked(
        self, rerank: bool | int | str | None, target_recall: float | None, k: int | None, stop: _micpq.Stop | None
    ) -> bool | int | str | None:
        """The candidates to re-rank: as they are given, or as many as a recall needs."""
        if target_recall is None:
            return rerank
        if rerank not in (None, "auto"):
            raise ConfigError("give either rerank or target_recall")
        return self._native.rerank_for(float(target_recall), _inputs.count_or_default(k, "k"), stop)

    def search_many(self, queries: Any, k: int | None = None, *, _stop: _micpq.Stop | None = None, **options: Any) -> list[Hits]:
        """Answers many queries at once: texts, or vectors ``[n, width]``. They share one encoder pass and one scan, so this is
        faster than a loop. It takes the options of :meth:`search` except ``like``, ``after`` and ``keywords``.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> [len(hits) for hits in index.search_many(["crude oil", "bank loan"], k=4)]
        [4, 4]
        """
        known = {
            "filter", "radius", "hybrid", "kind", "rerank", "target_recall", "group", "query_encoder", "distance",
            "documents", "snippets", "explain",
        }
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option '{name}'; known: k, {', '.join(sorted(known))}")
        if (target := options.pop("target_recall", None)) is not None:
            options["rerank"] = self._reranked(options.get("rerank"), target, k, _stop)
        settings = _inputs.options({"k": _inputs.count_or_default(k, "k"), **options})
        if isinstance(queries, (str, bytes)) or not isinstance(queries, Iterable):
            raise ArgumentError(f"queries must be a list of texts or an array of vectors, not {type(queries).__name__}")
        listed = list(queries)
        if listed and all(isinstance(q, str) for q in listed):
            if self._encoder is None:
                prepared: list[Any] = [([("text", q, 1.0)], q) for q in listed]
            else:
                rows = _inputs.vectors(self._encoder(listed), "the encoder's result", self.model.inputs, len(listed))
                prepared = [([("vector", row, 1.0)], q) for row, q in zip(rows, listed)]
        elif listed and not any(isinstance(q, str) for q in listed):
            prepared = [([("vector", row, 1.0)], None) for row in _inputs.vectors(queries, "queries", self.model.inputs)]
        elif listed:
            raise InputError("queries mix texts and vectors; pass all texts or all vectors")
        else:
            # A closed index is an error also when there is nothing to search.
            self.count()
            return []
        return [_hits(answer) for answer in self._native.search(prepared, settings, _stop)]

    async def _in_thread(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        stop = _micpq.Stop()
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(None, lambda: work(*args, _stop=stop, **options))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # A thread cannot be killed: it is asked to stop, and its result is dropped.
            stop.set()
            task.add_done_callback(lambda done: done.exception())
            raise

    async def asearch(self, query: Any = None, k: int | None = None, **options: Any) -> Hits:
        """:meth:`search` for ``asyncio``. Other tasks run meanwhile; cancelling the task stops the search.

        >>> import asyncio, micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> len(asyncio.run(index.asearch("crude oil", k=3)))
        3
        """
        hits: Hits = await self._in_thread(self.search, query, k, **options)
        return hits

    async def asearch_many(self, queries: Any, k: int | None = None, **options: Any) -> list[Hits]:
        """:meth:`search_many` for ``asyncio``."""
        answers: list[Hits] = await self._in_thread(self.search_many, queries, k, **options)
        return answers

    # Changing

    def add(
        self,
        data: Data,
        *,
        embeddings: Any = None,
        ids: Sequence[Id] | None = None,
        on_duplicate: str | None = None,
        duplicate_by: str | None = None,
        duplicate_threshold: float | None = None,
        progress: Progress = False,
        **corpus: Any,
    ) -> Added:
        """Adds documents, and returns their number. They are on disk when it returns. A document with a known id replaces
        the old one.

        :param embeddings: vectors of the documents ``[n, width]``, for an index of user vectors.
        :param ids: ids of a list of texts.
        :param on_duplicate: what to do with a document that repeats one of the index or one before it: ``"keep"`` it,
            ``"skip"`` it (a document with a known id is an update, and added), ``"mark"`` it with the attribute
            ``duplicate_of``, or ``"replace"`` the older ones. Default: keep.
        :param duplicate_by: what makes a duplicate, as ``by`` of :meth:`dedup`.
        :param duplicate_threshold: least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.add([{"id": "new", "text": "crude oil"}])
        1
        >>> "new" in index
        True
        >>> added = index.add([{"id": "again", "text": "Crude oil!"}], on_duplicate="skip")
        >>> added, added.skipped, added.duplicates[0]["duplicate_of"]
        (0, 1, 'new')
        """
        options = _inputs.options(
            {"on_duplicate": on_duplicate, "duplicate_by": duplicate_by, "duplicate_threshold": duplicate_threshold}
        )
        documents = _inputs.documents(data, corpus, ids=ids)
        if embeddings is None and self._encoder is not None:
            texts = documents.texts()
            if not texts:
                return Added(0, {})
            embeddings = _inputs.vectors(self._encoder(texts), "the encoder's result", rows=len(texts))
        array = None
        if embeddings is not None:
            array = _inputs.vectors(embeddings, width=self.model.inputs, rows=documents.count())
        number, repeats = self._native.add(documents, options, array, reporter(progress))
        return Added(number, json.loads(repeats))

    def delete(self, ids: Id | Iterable[Id] | None = None, *, filter: str | None = None) -> int:
        """Deletes documents by id or by filter, and returns how many there were.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.delete([1, 2, 999]), index.delete(filter="year:1989")
        (2, 132)
        """
        if ids is None and filter is None:
            raise ConfigError("delete needs ids or a filter")
        if isinstance(ids, (str, int)):
            ids = [ids]
        elif ids is not None and not isinstance(ids, Iterable):
            raise ArgumentError(f"ids must be strings or whole numbers, not {type(ids).__name__}")
        return self._native.delete(list(ids or []), filter)

    def reload(self) -> bool:
        """Switches to the latest commit of any process, and returns whether there was a new one."""
        return self._native.reload()

    def compact(self) -> None:
        """Merges all segments and removes deleted documents from disk."""
        self._native.compact()

    def recall(
        self,
        queries: int | None = None,
        k: int | None = None,
        *,
        windows: int | None = None,
        rerank: int | None = None,
    ) -> dict[str, Any]:
        """Measures how much of exact float search the index finds. Sampled documents (400 by default) are queries by their
        stored rerank vectors, and exact search over all of them gives the ``k`` true neighbours (10 by default).

        Returns ``recall`` (a share, with ``rerank`` candidates re-ranked, 1000 by default) and its ``standard_error``, the recall at other
        ``depths``, the recall of each of ``windows`` (4 by default) in the order of insertion, and ``advice``. An index of fewer than
        1,000 documents, or without rerank vectors, is refused.
        """
        report: dict[str, Any] = json.loads(self._native.recall(queries, k, windows, rerank))
        return report

    def dedup(
        self,
        *,
        by: str | None = None,
        threshold: float | None = None,
        neighbours: int | None = None,
        delete: bool = False,
        mark: str | None = None,
        progress: Progress = False,
    ) -> dict[str, Any]:
        """Finds documents that repeat another: equal texts, and near-duplicates. Codes give the candidates; words or the stored
        vectors decide.

        Returns ``documents``, the ``measure`` and ``threshold`` that decided, the numbers of ``exact`` and ``near`` duplicates,
        and ``groups``: the ``representative``, which was added first, and its ``duplicates`` with ``id``, ``exact`` and
        ``similarity``.

        :param by: ``"text"`` (equal texts), ``"words"`` (Jaccard similarity of word pairs: copies that were edited) or
            ``"vectors"`` (cosine: also other words for the same). Default: words, or vectors in an index without texts.
        :param threshold: least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors.
        :param neighbours: nearest documents by code that each document is compared with. Default: 100.
        :param delete: delete the duplicates in one commit; representatives stay. The report then has ``deleted``.
        :param mark: give each duplicate this attribute, with the id of the document it repeats. The report then has ``marked``.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.add([{"id": "again", "text": index.get(1)["text"]}])
        1
        >>> report = index.dedup(by="text", delete=True)
        >>> [group["duplicates"][0]["id"] for group in report["groups"]], "again" in index
        (['again'], False)
        """
        options = _inputs.options(
            {"by": by, "threshold": threshold, "neighbours": neighbours, "delete": delete, "mark": mark}
        )
        report: dict[str, Any] = json.loads(self._native.dedup(options, reporter(progress)))
        return report

    def distill(
        self,
        *,
        documents: int | None = None,
        width: int | None = None,
        code_width: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        seed: int | None = None,
        progress: Progress = False,
    ) -> None:
        """Makes a copy of the encoder that reads a query in microseconds, from the stored texts. It stays with the index:
        ``search(..., query_encoder="fast")`` uses it, in every process.

        :param documents: documents to learn from, at most. Default: 20,000.
        :param width: values of a token's vector.
        :param code_width: how many of them, the first ones, search by codes uses; a web export has only these.
        :param epochs: passes over the pieces of the documents.
        :param learning_rate: learning rate of Adam.
        :param seed: random seed. The same seed gives the same query encoder.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.distill(epochs=1)
        >>> len(index.search("wheat harvest", k=3, query_encoder="fast"))
        3
        """
        options = _inputs.options(
            {
                "documents": documents, "width": width, "code_width": code_width, "epochs": epochs,
                "learning_rate": learning_rate, "seed": seed,
            }
        )
        self._native.distill(options, reporter(progress))

    def topics(
        self,
        topics: int | None = None,
        *,
        seed: int | None = None,
        terms: int | None = None,
        typical: int | None = None,
        over: str | None = None,
        mark: str | None = None,
        follow: bool = False,
        assignments: bool = False,
        progress: Progress = False,
    ) -> dict[str, Any]:
        """Finds what the documents are about: clusters of their codes, the largest first.

        Returns ``documents``, ``outliers``, ``topics`` (each with ``name``, ``terms``, ``documents``, ``share``, ``typical``
        documents and the ``trend`` over ``periods``), and ``hierarchy``: merges of topics up to one.

        :param topics: number of topics. Default: chosen by how well the clusters are told apart.
        :param seed: seed of the first centres. The same seed gives the same topics.
        :param terms: terms of a topic. Default: 10.
        :param typical: typical documents of a topic. Default: 3.
        :param over: attribute with dates, for the trend. Default: the first one that has dates, if any.
        :param mark: give each document this attribute, with the number of its topic; outliers have none.
        :param follow: give documents that are added later their topic as they are added, in the attribute of ``mark``.
        :param assignments: add ``assignments``: ``id``, ``topic`` and ``outlier`` of every document.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> report = index.topics(4, mark="topic")
        >>> len(report["topics"]), report["over"], report["periods"]
        (4, 'year', ['1987', '1988', '1989'])
        >>> index.count("topic:0") == report["topics"][0]["documents"]
        True
        """
        options = _inputs.options(
            {"topics": topics, "seed": seed, "terms": terms, "typical": typical, "over": over, "mark": mark, "follow": follow or None}
        )
        report: dict[str, Any] = json.loads(self._native.topics(options, bool(assignments), reporter(progress)))
        return report

    def extend_topics(self, attribute: str, *, progress: Progress = False) -> dict[str, Any]:
        """Gives documents that were added after ``topics(mark=attribute)`` the number of the nearest topic, and finds no new ones.

        Returns ``documents``, how many were ``assigned``, the ``outliers``, which are far from every topic, and the documents of
        each of ``topics``.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> marked = index.topics(4, mark="topic")
        >>> index.add([{"id": "again", "text": index.get(marked["topics"][0]["typical"][0]["id"])["text"]}])
        1
        >>> index.extend_topics("topic")["assigned"], index.get("again")["attributes"]["topic"]
        (1, 0)
        """
        later: dict[str, Any] = json.loads(self._native.extend_topics(attribute, reporter(progress)))
        return later

    # Saved queries

    def watch(
        self,
        name: str,
        query: Any = None,
        *,
        cosine: float | None = None,
        distance: float | None = None,
        filter: str | None = None,
    ) -> dict[str, Any]:
        """Saves a query with the index: :meth:`matches` tells which documents that are added later match it. A query with the
        same name is replaced.

        :param name: letters, digits, dots, hyphens and underscores.
        :param query: a text, which is encoded once, or an embedding. Without it the filter alone decides.
        :param cosine: least cosine of the query and a document's stored vector.
        :param distance: greatest distance of a document's code. A query needs one of the two.
        :param filter: only documents that match, as in :meth:`search`.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.watch("oil", "crude oil barrel", cosine=0.9)["name"]
        'oil'
        >>> index.add([{"id": "new", "text": "crude oil barrel"}, {"id": "far", "text": "a poem"}])
        2
        >>> answer = index.matches()
        >>> [(match["query"], match["id"]) for match in answer["matches"]]
        [('oil', 'new')]
        >>> index.matches(after=answer["next"])["matches"]
        []
        """
        if not isinstance(name, str):
            raise ArgumentError(f"name must be a string, not {name!r}")
        text, vector = None, None
        if query is not None:
            kind, example = self._example(query)
            if kind == "text":
                text = example
            else:
                vector = example
        options = _inputs.options({"text": text, "filter": filter, "cosine": cosine, "distance": distance})
        saved: dict[str, Any] = json.loads(self._native.save_query(name, options, vector))
        return saved

    def watches(self) -> list[dict[str, Any]]:
        """The saved queries, by name: ``name``, ``text``, ``filter``, ``cosine``, ``distance``, and ``since``, the position in
        the order of insertion from which documents are new to it."""
        saved: list[dict[str, Any]] = json.loads(self._native.saved_queries())
        return saved

    def unwatch(self, name: str) -> bool:
        """Removes a saved query, and returns whether there was one."""
        return self._native.remove_query(name)

    def matches(
        self, after: str | None = None, *, limit: int | None = None, name: str | None = None, all: bool = False
    ) -> dict[str, Any]:
        """Finds the documents that were added since a place, and match saved queries. A document that is updated is new.

        Returns ``matches`` (each with ``query``, ``id``, ``cosine`` and ``distance``), ``next``, the place where the next call
        begins, and ``more``, whether the limit left some out.

        :param after: ``next`` of an earlier call, also of another process. Default: all since each query was saved.
        :param limit: about how many matches; all of a document are told together. Default: 1,000.
        :param name: only matches of this query.
        :param all: also documents that were there before a query was saved, to try it.
        """
        options = _inputs.options({"after": after, "limit": limit, "name": name, "all": all})
        found: dict[str, Any] = json.loads(self._native.matches(options, None))
        return found

    def verify(self) -> list[str]:
        """Checks every file, and returns a line for each damage: an empty list if the index is sound."""
        return self._native.verify()

    def backup(self, path: str | os.PathLike[str]) -> Index:
        """Copies the last commit to another directory, and returns the copy, open. It also makes a temporary index
        permanent.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> len(index.backup("monday.micpq"))
        400
        """
        target = _inputs.path(path)
        if target.exists():
            raise ConfigError(f"{target} exists; choose another path")
        self._native.backup(target)
        return Index(_micpq.Index.open(target), self._encoder)

    # Exporting

    def codes(self) -> tuple[list[Id], npt.NDArray[np.uint8]]:
        """Ids and packed codes ``[n, code_bytes]`` of all documents, in insertion order."""
        return self._native.codes()

    def to_arrow(self, *, codes: bool = False) -> Any:
        """All documents as a ``pyarrow.Table``: id, text, labels, attributes, and the code if ``codes`` is set."""
        return self._native.to_arrow(bool(codes))

    def to_pandas(self, *, codes: bool = False) -> Any:
        """All documents as a ``pandas.DataFrame``."""
        return self.to_arrow(codes=codes).to_pandas()

    def to_polars(self, *, codes: bool = False) -> Any:
        """All documents as a ``polars.DataFrame``."""
        import polars

        return polars.from_arrow(self.to_arrow(codes=codes))

    def export(self, path: str | os.PathLike[str], format: str, *, codes: bool = False, progress: Progress = False) -> int:
        """Writes all documents as ``"parquet"``, ``"arrow"`` or ``"jsonl"``, or the codes as a FAISS index (``"faiss"``,
        ``"faiss-fastscan"``; ids must be numbers), or as ``"web"`` a folder for a web server, whose page searches in the browser
        (see :meth:`distill`), or as ``"html-map"`` one file with a map of the documents. Returns the number of documents."""
        target = _inputs.path(path)
        if format in ("faiss", "faiss-fastscan"):
            ids, packed = self.codes()
            if not all(isinstance(i, int) for i in ids):
                raise InputError("FAISS takes only ids that are numbers, and this index has others; use micpq export --to faiss")
            self.model.to_faiss(target, packed, ids=np.array(ids, dtype=np.int64), fastscan=format == "faiss-fastscan")
            return len(ids)
        return self._native.export(target, format, bool(codes), reporter(progress))

    # Closing

    def close(self) -> None:
        """Closes the index. A temporary one, built without a path, is removed."""
        self._native.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"Index({self.path!r}, closed)"
        return f"Index({self.path!r}, {len(self)} documents, {self.model.bits} bits)"


def open(path: str | os.PathLike[str], *, encoder: Encoder | None = None) -> Index:
    """Opens an index.

    :param encoder: for an index of user vectors, the function from texts to such vectors.
    """
    if encoder is not None and not callable(encoder):
        raise ArgumentError("encoder must be a function from texts to vectors; an index of texts knows its own encoder")
    return Index(_micpq.Index.open(_inputs.path(path)), encoder)


def build(
    data: Data,
    path: str | os.PathLike[str] | None = None,
    *,
    bits: int | None = None,
    model: Model | None = None,
    embeddings: Any = None,
    encoder: str | os.PathLike[str] | Encoder | None = None,
    ids: Sequence[Id] | None = None,
    progress: Progress = False,
    **options: Any,
) -> Index:
    """Trains a model on documents and indexes them: one call from raw text to search.

    :param data: a list or iterator of texts or dictionaries, a pandas, polars or arrow table, or a path. Fields ``id``,
        ``text`` and ``label`` are known by name; all others become attributes to filter by.
    :param path: directory of the index. Without it the index is temporary and is removed with the object.
    :param model: use this model instead of training one.
    :param embeddings: vectors of the documents ``[n, width]`` from any encoder.
    :param encoder: a name, a Hugging Face directory, or a function from texts to vectors, such as
        ``SentenceTransformer(...).encode``.
    :param ids: ids of a list of texts. Default: numbers from 0.
    :param progress: ``True`` for a bar, or a function called with ``(kind, text, number)``.
    :param options: those of :func:`train`, and ``store`` ("all" or "codes"), ``rerank_vectors`` ("int8", "f16" or "none"),
        ``target_recall`` (recall@10 against float search that searches should have: chooses ``bits``),
        ``on_duplicate``, ``duplicate_by`` and ``duplicate_threshold`` (see :meth:`Index.add`),
        ``replace``, ``query_encoder`` (``"fast"``: also :meth:`Index.distill`), ``chunk`` (``True``, a number of tokens or ``"TOKENS:OVERLAP"``: split texts that are longer than the
        encoder takes) and ``language`` (of keyword search: ``"auto"``, ``"de"``, ``"ja"``, ...).

    >>> import micpq
    >>> index = micpq.build(["crude oil", "bank loan", "wheat crop"] * 20, bits=16, encoder=ENCODER, epochs=2)
    >>> len(index)
    60
    """
    corpus, rest = _inputs.split_corpus(options)
    bits = _inputs.count_or_default(bits, "bits")
    if model is not None and not isinstance(model, Model):
        raise ArgumentError(f"model must be a micpq.Model, not {type(model).__name__}")
    function: Encoder | None = None
    if callable(encoder):
        function = encoder
    elif encoder is not None:
        rest["encoder"] = encoder
    documents = _inputs.documents(data, corpus, ids=ids)
    if embeddings is None and function is not None:
        texts = documents.texts()
        if not texts:
            raise InputError("documents is empty; pass at least two")
        embeddings = _inputs.vectors(function(texts), "the encoder's result", rows=len(texts))
    array = None
    if embeddings is not None:
        width = None if model is None else model.inputs
        array = _inputs.vectors(embeddings, width=width, rows=documents.count())
    settings = _inputs.options({"bits": bits, **rest})
    temporary = path is None
    target = _inputs.path(tempfile.mkdtemp(prefix="micpq-") if path is None else path)
    try:
        native = _micpq.build(
            documents, target, temporary, settings, None if model is None else model._native, array, reporter(progress)
        )
    except BaseException:
        if temporary:
            shutil.rmtree(target, ignore_errors=True)
        raise
    return Index(native, function)
