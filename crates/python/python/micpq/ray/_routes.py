"""The routes of the HTTP interface over a searcher: bodies in, answers out, in the forms of ``micpq serve``."""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _micpq
from .._index import Hits
from .._inputs import Id
from .._model import Model
from ._http import MAX_TEXT_BYTES, Refusal, as_text, query_string, truth, whole_number
from ._manifest import Manifest
from ._openapi import Description
from ._parts import Embedded
from ._searcher import Searcher

#: Fields of a query that say what to find; all others are options of the search.
_QUERY = {"text", "vector", "document", "like", "keywords"}
MAX_HITS = 100_000
MAX_ID_BYTES = 1024


class Routes:
    """The handlers. Each gets the parameters of the path, the query string and the checked body."""

    def __init__(self, searcher: Searcher, description: Description) -> None:
        self.searcher = searcher
        self.options = description.fields("Search") - _QUERY - {"area"}
        # By thread: the shards without which the request was answered.
        self.answered_without = threading.local()
        shard = Manifest.read(searcher._out).directories(searcher._out)[0]
        self.format: int = json.loads((shard / "index.json").read_text())["format"]

    def ready(self, *_: Any) -> dict[str, Any]:
        # Raises if a shard does not answer.
        self.searcher.count()
        return {"status": "ok", "unavailable": []}

    def version(self, *_: Any) -> dict[str, Any]:
        return {"name": "micpq", "version": _micpq.__version__, "index_format": self.format}

    # Indexes

    def indexes(self, name: str, job_running: bool) -> dict[str, Any]:
        return {"indexes": [self.index(name, job_running)], "unavailable": []}

    def index(self, name: str, job_running: bool) -> dict[str, Any]:
        """The shards together, in the form of one index."""
        shards = list(self.searcher._of_all("info").values())
        first, model = shards[0], self.searcher.model
        codebooks, codewords, _ = model._native.shape
        embedding = model.config.get("embedding") or {}
        counted = {key: sum(shard[key] for shard in shards) for key in ("documents", "deleted", "segments", "chunks") if key in first}
        return {
            "name": name, "status": "open", **counted,
            **{key: first[key] for key in ("chunk", "language", "store", "rerank_vectors", "model", "kinds", "format") if key in first},
            "bits": model.bits, "num_codebooks": codebooks, "codebook_size": codewords, "width": model.inputs,
            "method": model.config["method"], "encoder": embedding.get("encoder"), "texts": model.takes_text,
            "bytes": {part: sum(shard["bytes"][part] for shard in shards) for part in first["bytes"]},
            "queries_waiting": 0, "writes_waiting": 0, "job_running": job_running or self.searcher._moving, "droppable": False,
        }  # fmt: skip

    # Searching

    def query(self, _: Any, __: Any, body: dict[str, Any]) -> dict[str, Any]:
        return self._answer(body)

    def batch(self, _: Any, __: Any, body: dict[str, Any]) -> dict[str, Any]:
        hits = sum(_whole(search.get("k")) or 10 for search in body["queries"])
        if hits > MAX_HITS:
            raise Refusal(422, "bad_query", f"the queries ask for {hits} hits together; ask for at most {MAX_HITS}")
        prepared = [(self._query(search), self._settings(search)) for search in body["queries"]]
        return {"answers": [self._found(self.searcher._search([query], settings)[0]) for query, settings in prepared]}

    def vector(self, _: Any, options: Any, body: bytes) -> dict[str, Any]:
        search: dict[str, Any] = {"vector": self._vector(_floats(body, "the body"))}
        return self._answer({**search, **query_string(options, {"k": whole_number(1, 10_000), "filter": as_text, "documents": truth})})

    def _answer(self, search: dict[str, Any]) -> dict[str, Any]:
        return self._found(self.searcher._search([self._query(search)], self._settings(search))[0])

    def _found(self, hits: Hits) -> dict[str, Any]:
        self.note_missing(hits.missing)
        return _found(hits)

    def note_missing(self, shards: list[int]) -> None:
        """Notes the shards without which a part of the answer came."""
        self.answered_without.shards = {*getattr(self.answered_without, "shards", ()), *shards}

    def _settings(self, search: dict[str, Any]) -> dict[str, Any]:
        _expect_no_area(search)
        settings = {name: search[name] for name in self.options if search.get(name) is not None}
        settings["k"] = _whole(settings.get("k", 10))
        if "rerank" in settings:
            settings["rerank"] = False if settings["rerank"] == "off" else _whole(settings["rerank"])
        return settings

    def _query(self, search: dict[str, Any]) -> tuple[list[tuple[str, Any, float]], str | None]:
        one = {name: search[name] for name in ("text", "vector", "document") if search.get(name) is not None}
        like = search.get("like")
        if not one and like is None:
            raise Refusal(422, "bad_query", "the query is empty; give text, vector, document or like")
        if one and like is not None:
            raise Refusal(422, "bad_query", "give one of text, vector and document, or several in like, not both")
        return [self._example(example) for example in (like or [one])], search.get("keywords")

    def _example(self, example: dict[str, Any]) -> tuple[str, Any, float]:
        weight = example.get("weight")
        given = [(name, example[name]) for name in ("text", "vector", "document") if example.get(name) is not None]
        if len(given) != 1:
            raise Refusal(422, "bad_query", "an example has one of text, vector and document")
        kind, value = given[0]
        if kind == "text" and len(value.encode()) > MAX_TEXT_BYTES:
            raise Refusal(413, "too_large", f"a text has {len(value.encode())} bytes, more than {MAX_TEXT_BYTES}; shorten it")
        if kind == "vector":
            value = self._vector(value)
        elif kind == "document":
            value = _id(value)
        return kind, value, 1.0 if weight is None else float(weight)

    def _vector(self, given: Any) -> npt.NDArray[np.float32]:
        if isinstance(given, str):
            try:
                given = _floats(base64.b64decode(given, validate=True), "the vector")
            except ValueError as problem:
                raise Refusal(400, "bad_request", f"vector: not base64: {problem}") from None
        with np.errstate(over="ignore"):
            try:
                vector = np.asarray(given, dtype=np.float64).astype(np.float32)
            except OverflowError:
                raise Refusal(422, "bad_vector", "a value of the vector is too large for 32 bits; give finite numbers") from None
        width = self.searcher.model.inputs
        if len(vector) != width:
            raise Refusal(422, "bad_vector", f"the vector has {len(vector)} values, but the model of this index takes {width}; use its encoder")
        wrong = np.flatnonzero(~np.isfinite(vector))
        if len(wrong):
            raise Refusal(422, "bad_vector", f"value {wrong[0]} of the vector is too large for 32 bits; give finite numbers")
        return vector

    # Documents

    def get(self, given: Mapping[str, str], _: Any, __: Any) -> dict[str, Any]:
        found = self.searcher._get([_id(given["id"])])[0]
        if found is None:
            raise _unknown(given["id"])
        return self._stored(found)

    def fetch(self, _: Any, __: Any, body: dict[str, Any]) -> dict[str, Any]:
        found = self.searcher._get([_id(id) for id in body["ids"]])
        return {"documents": [None if document is None else self._stored(document) for document in found]}

    def count(self, _: Any, __: Any, body: dict[str, Any]) -> dict[str, Any]:
        _expect_no_area(body)
        return {"count": self.searcher.count(body.get("filter"))}

    def upsert(self, _: Any, __: Any, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("on_duplicate") not in (None, "keep") or body.get("duplicate_by") or body.get("duplicate_threshold"):
            raise Refusal(409, "unsupported", "shards do not look for duplicates while documents are added; leave on_duplicate out")
        new = body["documents"]
        wire = [_to_wire(document) for document in new]
        embedded = None
        if any(document.get("vector") is not None for document in new):
            embedded = self._embedded(new, wire)
        cut = self.searcher._add(_documents(wire), embedded)
        return self._changed(len(new), cut + (embedded.cut if embedded else 0))

    def _embedded(self, new: list[dict[str, Any]], wire: list[dict[str, Any]]) -> Embedded:
        """The embeddings of documents of which some have theirs. One that has is one chunk."""
        texts = [row for row, document in zip(wire, new) if document.get("vector") is None]
        chunk = self.searcher._chunk
        encoded = Embedded.of(self.searcher.model, _documents(texts), chunk)
        rows: list[npt.NDArray[np.float32]] = []
        chunks: list[list[tuple[int, int]]] = []
        next_text = itertools.count()
        for row, document in zip(wire, new):
            if document.get("vector") is None:
                own = encoded.select([next(next_text)])
                rows.append(own.rows)
                chunks += own.chunks or []
            else:
                rows.append(self._vector(document["vector"])[None])
                chunks.append([(0, len(row["text"].encode()))])
        return Embedded(np.concatenate(rows), None if chunk is None else chunks, encoded.cut)

    def delete(self, _: Any, __: Any, body: dict[str, Any]) -> dict[str, Any]:
        ids, filter = body.get("ids"), body.get("filter")
        if (ids is None) == (filter is None):
            raise Refusal(422, "bad_query", "give either ids or a filter")
        changed = self.searcher.delete(None if ids is None else [_id(id) for id in ids], filter=filter)
        return self._changed(changed)

    def delete_one(self, given: Mapping[str, str], _: Any, __: Any) -> dict[str, Any]:
        changed = self.searcher.delete([_id(given["id"])])
        if changed == 0:
            raise _unknown(given["id"])
        return self._changed(changed)

    def _changed(self, changed: int, cut: int = 0) -> dict[str, Any]:
        return {"changed": changed, "documents": len(self.searcher), "cut": cut}

    def _stored(self, found: dict[str, Any]) -> dict[str, Any]:
        """A document with its codewords instead of its packed code."""
        return {**found, "code": codewords(self.searcher.model, found["code"])}


def _expect_no_area(body: Mapping[str, Any]) -> None:
    if body.get("area") is not None:
        raise Refusal(409, "unsupported", "an index in shards on Ray has no map, so it has no area; leave area out, or open one shard with micpq serve")


def _documents(wire: list[dict[str, Any]]) -> _micpq.Documents:
    return _micpq.Documents.from_bytes(json.dumps(wire).encode())


def _whole(value: Any) -> Any:
    """JSON has one type of numbers, so ``10.0`` is 10."""
    return int(value) if isinstance(value, float) else value


def _id(given: Any) -> Id:
    """An id of a body or a path: ``5`` and ``"5"`` are the same."""
    if not isinstance(given, str):
        return int(given)
    if len(given.encode()) > MAX_ID_BYTES:
        raise Refusal(400, "bad_request", f"an id has {len(given.encode())} bytes; give a whole number or a string of 1 to {MAX_ID_BYTES} bytes")
    is_number = given.isascii() and given.isdigit() and (given == "0" or given[0] != "0") and int(given) < 1 << 64
    return int(given) if is_number else given


def _unknown(id: str) -> Refusal:
    return Refusal(404, "unknown_document", f"there is no document {id[:80]} in this index")


def _floats(body: bytes, what: str) -> list[float]:
    if len(body) % 4:
        raise Refusal(422, "bad_vector", f"{what} has {len(body)} bytes, which are not a whole number of 32-bit floats; send little-endian 32-bit floats")
    return list(struct.unpack(f"<{len(body) // 4}f", body))


def _to_wire(document: dict[str, Any]) -> dict[str, Any]:
    """A new document in the form that processes exchange."""
    id, text = _id(document["id"]), document.get("text")
    if text is None and document.get("vector") is None:
        raise Refusal(422, "bad_document", f"document {id}: it has neither text nor vector; give one of them")
    if text is not None and len(text.encode()) > MAX_TEXT_BYTES:
        raise Refusal(422, "too_large", f"document {id}: the text has {len(text.encode())} bytes, more than {MAX_TEXT_BYTES}; split it")
    attributes = [(name, _wire_value(name, value)) for name, value in (document.get("attributes") or {}).items()]
    return {"id": id, "text": text or "", "labels": document.get("labels") or [], "attributes": attributes}


def _wire_value(name: str, value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"bool": value}
        case int() if -(1 << 63) <= value < 1 << 63:
            return {"int": value}
        case int() | float():
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if not math.isfinite(number):
                raise Refusal(400, "bad_request", f'attribute "{name}": {value!r:.80} is too large for a number')
            return {"float": struct.unpack("<Q", struct.pack("<d", number))[0]}
        case str():
            return {"text": value}
    return {"texts": value}


def codewords(model: Model, packed: bytes) -> list[int]:
    """The codeword of every codebook in a packed code."""
    codebooks, size, _ = model._native.shape
    bits, code = size.bit_length() - 1, int.from_bytes(packed, "little")
    return [code >> bits * m & (size - 1) for m in range(codebooks)]


def short(value: float | np.float32) -> float:
    """A 32-bit number as JSON writes it: the shortest text that reads as the same 32-bit number."""
    return float(str(np.float32(value)))


def _found(hits: Hits) -> dict[str, Any]:
    rows = []
    for hit in hits:
        row: dict[str, Any] = {"id": hit.id, "distance": short(hit.distance), "score": short(hit.score), "text": hit.text, "labels": hit.labels}
        row["attributes"] = hit.attributes
        if hit.snippet is not None:
            row["snippet"] = {"text": hit.snippet[0], "marks": [list(mark) for mark in hit.snippet[1]]}
        if hit.chunk is not None:
            row["chunk"] = dict(zip(("number", "of", "start"), hit.chunk))
        if hit.codebook_distances is not None:
            row["codebook_distances"] = [short(distance) for distance in hit.codebook_distances]
        if hit.shared is not None:
            row["shared"] = [dict(zip(("codebook", "codeword", "terms"), shared)) for shared in hit.shared]
        rows.append({name: value for name, value in row.items() if value is not None})
    found: dict[str, Any] = {"hits": rows, "next": hits.next}
    if hits.explanation is not None:
        found["explanation"] = hits.explanation
    found["milliseconds"] = {stage: seconds * 1e3 for stage, seconds in hits.timings.items()}
    return found
