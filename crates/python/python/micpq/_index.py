"""An index: build it, open it, ask it, keep it."""

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
    """A document found."""

    #: Its id: a number or a string, as its corpus had it.
    id: Id
    #: Distance of its code to the query.
    distance: float
    #: What the list is ordered by, higher is better: minus the distance, or the cosine of the second stage, or the fused
    #: rank of a hybrid search.
    score: float
    #: Its text, where the index keeps it.
    text: str | None = None
    labels: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    #: With ``snippets=True``: the part of the text that matches, and where in it, as ranges of characters.
    snippet: tuple[str, list[tuple[int, int]]] | None = None
    #: With ``explain=True``: each book's share of the distance.
    shares: list[float] | None = None


class Hits(Sequence[Hit]):
    """Hits of one query, best first: a sequence, and a table.

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
        #: Where the next page begins: pass it as ``after``. None when this was the last.
        self.next = next
        #: With ``explain=True``, how the answer came about.
        self.explanation = explanation
        #: Seconds of each stage.
        self.timings = timings

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
        """The ids, best first."""
        return [hit.id for hit in self._hits]

    @property
    def distances(self) -> npt.NDArray[np.float32]:
        """The distances of the codes."""
        return np.array([hit.distance for hit in self._hits], dtype=np.float32)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each hit, attributes beside the rest."""
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


class Index:
    """An open index. Any number of threads may use one; it is a context manager, and closes itself when it is dropped.

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
        store: str = "all",
        keep: str = "int8",
        replace: bool = False,
        encoder: Encoder | None = None,
    ) -> Index:
        """An empty index for a model.

        :param store: ``"all"`` keeps texts and attributes, ``"codes"`` ids and codes alone.
        :param keep: features for the second stage of a search: ``"int8"``, ``"f16"`` or ``"none"``.
        """
        if not isinstance(model, Model):
            raise ArgumentError(f"model is a micpq.Model, not {type(model).__name__}")
        said = _inputs.options({"store": store, "keep": keep, "replace": replace})
        return cls(_micpq.Index.create(_inputs.path(path), model._native, said), encoder)

    # What it is

    @property
    def path(self) -> str:
        """Where it lies."""
        return os.fspath(self._native.dir)

    @property
    def model(self) -> Model:
        """The model its codes come from."""
        if self._model is None:
            self._model = Model(self._native.model())
        return self._model

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def __len__(self) -> int:
        return self._native.count(None)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, (str, int)) and self.get(id) is not None

    def count(self, filter: str | None = None) -> int:
        """How many documents there are, or match a filter.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.count("year:1988")
        133
        """
        return self._native.count(filter)

    def info(self) -> dict[str, Any]:
        """Counts and sizes."""
        found: dict[str, Any] = json.loads(self._native.info())
        return found

    def get(self, id: Id) -> dict[str, Any] | None:
        """A document by its id, with its code; None where there is none."""
        return self._native.get(id)

    # What is asked

    def _example(self, example: Any) -> tuple[str, Any]:
        if isinstance(example, str):
            if self._encoder is None:
                return "text", example
            found = _inputs.vectors(self._encoder([example]), "the encoder's result", self.model.inputs)
            return "vector", found[0]
        return "vector", _inputs.vector(example, "query", self.model.inputs)

    def _query(self, query: Any, like: Any, words: str | None) -> tuple[list[tuple[str, Any, float]], str | None]:
        examples: list[tuple[str, Any, float]] = []
        if query is not None:
            examples.append((*self._example(query), 1.0))
            if words is None and isinstance(query, str):
                words = query
        if like is not None:
            if isinstance(like, (str, int)):
                like = {like: 1.0}
            elif not isinstance(like, Mapping):
                if isinstance(like, (type, bytes)) or not isinstance(like, Iterable):
                    raise ArgumentError(f"like is an id, ids, or ids with weights, not {like!r}")
                like = {id: 1.0 for id in like}
            examples.extend(("document", id, float(weight)) for id, weight in like.items())
        return examples, words

    def search(
        self,
        query: Any = None,
        k: int = 10,
        *,
        like: Id | Sequence[Id] | Mapping[Id, float] | None = None,
        filter: str | None = None,
        within: float | None = None,
        after: str | None = None,
        hybrid: float = 0.0,
        rerank: bool | int | str = "auto",
        distance: str | None = None,
        words: str | None = None,
        documents: bool = True,
        snippets: bool = False,
        explain: bool = False,
        _stop: _micpq.Stop | None = None,
    ) -> Hits:
        """The documents nearest to a query.

        :param query: a text, or a feature vector.
        :param k: hits wanted, 1 to 10,000.
        :param like: ids of documents to find the like of, alone or beside the query, with weights as a dictionary.
        :param filter: only documents that match: ``"places:japan AND year:[1987 TO 1988]"``.
        :param within: only documents whose code is no farther than this.
        :param after: ``hits.next`` of an earlier page.
        :param hybrid: weight of the words (BM25), from 0, codes alone, to 1, words alone.
        :param rerank: candidates ranked again by kept features; ``False`` for none.
        :param distance: ``"norm"``, ``"squared"`` or ``"hamming"``; the model's own unless said.
        :param words: words of the hybrid search, where they are not the query.
        :param snippets: with the part of each text that matches.
        :param explain: with each book's share of the distance, and how the answer came about.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> [hit.attributes["year"] for hit in index.search("wheat harvest", k=2, filter="year:1989")]
        [1989, 1989]
        """
        said = _inputs.options(
            {
                "k": _inputs.count(k, "k"), "filter": filter, "within": within, "after": after, "hybrid": hybrid,
                "rerank": rerank, "distance": distance, "documents": documents, "snippets": snippets, "explain": explain,
            }
        )
        if query is None and like is None:
            raise ConfigError("search needs a query: a text, a vector, or like=ID")
        return _hits(self._native.search([self._query(query, like, words)], said, _stop)[0])

    def search_many(self, queries: Any, k: int = 10, *, _stop: _micpq.Stop | None = None, **options: Any) -> list[Hits]:
        """Hits of many queries at once: texts, or vectors ``[n, width]``. One pass of the encoder and one scan serve all, so
        it is faster than one after the other. Options are those of :meth:`search`.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> [len(hits) for hits in index.search_many(["crude oil", "bank loan"], k=4)]
        [4, 4]
        """
        known = {"filter", "within", "hybrid", "rerank", "distance", "documents", "snippets", "explain"}
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option '{name}'; known: k, {', '.join(sorted(known))}")
        said = _inputs.options({"k": _inputs.count(k, "k"), **options})
        if isinstance(queries, (str, bytes)) or not isinstance(queries, Iterable):
            raise ArgumentError(f"queries are a list of texts or an array of vectors, not {type(queries).__name__}")
        asked = list(queries)
        if asked and all(isinstance(q, str) for q in asked):
            if self._encoder is None:
                prepared: list[Any] = [([("text", q, 1.0)], q) for q in asked]
            else:
                rows = _inputs.vectors(self._encoder(asked), "the encoder's result", self.model.inputs)
                prepared = [([("vector", row, 1.0)], q) for row, q in zip(rows, asked)]
        elif asked and not any(isinstance(q, str) for q in asked):
            prepared = [([("vector", row, 1.0)], None) for row in _inputs.vectors(queries, "queries", self.model.inputs)]
        elif asked:
            raise InputError("queries are all texts or all vectors")
        else:
            self.count()
            return []
        return [_hits(answer) for answer in self._native.search(prepared, said, _stop)]

    async def _aside(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        stop = _micpq.Stop()
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(None, lambda: work(*args, _stop=stop, **options))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The thread cannot be killed; it is asked to stop, and its answer is nobody's.
            stop.set()
            task.add_done_callback(lambda done: done.exception())
            raise

    async def asearch(self, query: Any = None, k: int = 10, **options: Any) -> Hits:
        """:meth:`search` for ``asyncio``: other tasks run meanwhile, and a cancelled one stops the work.

        >>> import asyncio, micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> len(asyncio.run(index.asearch("crude oil", k=3)))
        3
        """
        found: Hits = await self._aside(self.search, query, k, **options)
        return found

    async def asearch_many(self, queries: Any, k: int = 10, **options: Any) -> list[Hits]:
        """:meth:`search_many` for ``asyncio``."""
        found: list[Hits] = await self._aside(self.search_many, queries, k, **options)
        return found

    # What is kept

    def add(
        self,
        data: Data,
        *,
        features: Any = None,
        ids: Sequence[Id] | None = None,
        progress: Progress = False,
        **corpus: Any,
    ) -> int:
        """Adds documents, on disk when it returns; one with a known id replaces the old one. Returns how many.

        ``features`` brings their vectors, where the index was made with vectors of another encoder.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.add([{"id": "new", "text": "crude oil"}])
        1
        >>> "new" in index
        True
        """
        documents = _inputs.documents(data, corpus, ids=ids)
        if features is None and self._encoder is not None:
            texts = documents.texts()
            if not texts:
                return 0
            features = _inputs.vectors(self._encoder(texts), "the encoder's result", rows=len(texts))
        array = None
        if features is not None:
            array = _inputs.vectors(features, width=self.model.inputs, rows=documents.count())
        return self._native.add(documents, array, reporter(progress))

    def delete(self, ids: Id | Iterable[Id] | None = None, *, filter: str | None = None) -> int:
        """Deletes documents by id or by filter. Returns how many there were.

        >>> import micpq
        >>> index = micpq.build(NEWS, encoder=ENCODER, bits=16, epochs=2)
        >>> index.delete([1, 2, 999]), index.delete(filter="year:1989")
        (2, 132)
        """
        if ids is None and filter is None:
            raise ConfigError("name ids or a filter of what to delete")
        if isinstance(ids, (str, int)):
            ids = [ids]
        elif ids is not None and not isinstance(ids, Iterable):
            raise ArgumentError(f"ids are strings or whole numbers, not {type(ids).__name__}")
        return self._native.delete(list(ids or []), filter)

    def reload(self) -> bool:
        """Turns to the latest commit of whatever process. Returns whether anything changed."""
        return self._native.reload()

    def compact(self) -> None:
        """Merges segments and drops deleted documents."""
        self._native.compact()

    def verify(self) -> list[str]:
        """What is damaged, in words; nothing when the index is sound."""
        return self._native.verify()

    def save(self, path: str | os.PathLike[str]) -> Index:
        """Copies the index to a place of its own, for one that :func:`build` made without a path. Returns the copy, open."""
        target = _inputs.path(path)
        if target.exists():
            raise ConfigError(f"{target} exists; name another place")
        self._native.save(target)
        return Index(_micpq.Index.open(target), self._encoder)

    # What goes out

    def codes(self) -> tuple[list[Id], npt.NDArray[np.uint8]]:
        """Ids and packed codes of all documents, in the order of insertion."""
        return self._native.codes()

    def to_arrow(self, *, codes: bool = False) -> Any:
        """All documents as a ``pyarrow.Table``: id, text, labels, attributes, and on request their codes."""
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
        ``"faiss-fastscan"``; ids must be numbers). Returns how many."""
        target = _inputs.path(path)
        if format in ("faiss", "faiss-fastscan"):
            ids, packed = self.codes()
            if not all(isinstance(i, int) for i in ids):
                raise InputError("FAISS knows ids that are numbers; those of this index are not, export with the command line")
            self.model.to_faiss(target, packed, ids=np.array(ids, dtype=np.int64), fastscan=format == "faiss-fastscan")
            return len(ids)
        return self._native.export(target, format, bool(codes), reporter(progress))

    # Its end

    def close(self) -> None:
        """Closes the index; one that :func:`build` made without a path is removed."""
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

    :param encoder: for an index of brought vectors, the function that turns texts into such vectors.
    """
    if encoder is not None and not callable(encoder):
        raise ArgumentError("encoder is a function from texts to vectors; an index knows the name of its own encoder")
    return Index(_micpq.Index.open(_inputs.path(path)), encoder)


def build(
    data: Data,
    path: str | os.PathLike[str] | None = None,
    *,
    bits: int = 64,
    model: Model | None = None,
    features: Any = None,
    encoder: str | os.PathLike[str] | Encoder | None = None,
    ids: Sequence[Id] | None = None,
    progress: Progress = False,
    **options: Any,
) -> Index:
    """Trains on documents and indexes them: one call from raw text to search.

    :param data: a list or iterator of texts or dictionaries, a pandas, polars or arrow table, or a path. Fields ``id``,
        ``text`` and ``label`` are known by name; all others become attributes to filter by.
    :param path: where the index is to lie; without one it lives in a temporary place and goes with the object.
    :param model: use this model instead of training one.
    :param features: vectors ``[n, width]`` of the documents, of whatever encoder.
    :param encoder: a name, a Hugging Face directory, or a function from texts to vectors, such as
        ``SentenceTransformer(...).encode``.
    :param ids: ids of texts in a list; otherwise they are numbered from 0.
    :param options: as in :func:`train`, and ``store`` ("all" or "codes"), ``keep`` ("int8", "f16" or "none"), ``replace``.

    >>> import micpq
    >>> index = micpq.build(["crude oil", "bank loan", "wheat crop"] * 20, bits=16, encoder=ENCODER, epochs=2)
    >>> len(index)
    60
    """
    corpus, rest = _inputs.split_corpus(options)
    bits = _inputs.count(bits, "bits")
    if model is not None and not isinstance(model, Model):
        raise ArgumentError(f"model is a micpq.Model, not {type(model).__name__}")
    function: Encoder | None = None
    if callable(encoder):
        function = encoder
    elif encoder is not None:
        rest["encoder"] = encoder
    documents = _inputs.documents(data, corpus, ids=ids)
    if features is None and function is not None:
        texts = documents.texts()
        if not texts:
            raise InputError("documents: there are none; give at least two")
        features = _inputs.vectors(function(texts), "the encoder's result", rows=len(texts))
    array = None
    if features is not None:
        width = None if model is None else model.inputs
        array = _inputs.vectors(features, width=width, rows=documents.count())
    said = _inputs.options({"bits": bits, **rest})
    temporary = path is None
    place = _inputs.path(tempfile.mkdtemp(prefix="micpq-") if path is None else path)
    try:
        native = _micpq.build(
            documents, place, temporary, said, None if model is None else model._native, array, reporter(progress)
        )
    except BaseException:
        if temporary:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return Index(native, function)
