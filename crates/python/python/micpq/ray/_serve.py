"""The query routes of the HTTP interface in front of a folder of shards, with Ray Serve.

Bodies and answers are those of ``micpq serve``. It has the routes that read: queries, batches, counts, documents by id,
health. The routes that change documents or indexes, keys, the web page and metrics are only in ``micpq serve``.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ray import serve as ray_serve

from .. import _inputs
from ..errors import ArgumentError, BusyError, ConfigError, InputError
from ._searcher import Searcher, ShardsMissing

_OPTIONS = {"k", "filter", "radius", "after", "hybrid", "rerank", "distance", "documents", "snippets", "explain"}
_EXAMPLE = {"text", "vector", "document", "weight"}
MAX_QUERIES = 1000


class _Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    def response(self) -> Response:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return JSONResponse({"error": {"code": self.code, "message": self.message, "type": kind}}, self.status)


class Front:
    """Answers HTTP requests by a :class:`Searcher`."""

    def __init__(self, out: str, name: str, options: dict[str, Any]) -> None:
        self.name, self.searcher = name, Searcher(out, **options)

    async def __call__(self, request: Request) -> Response:
        import asyncio

        body = await request.body()
        # Searches wait for other processes; the loop goes on with other requests.
        return await asyncio.get_running_loop().run_in_executor(None, self._answer, request.method, request.url.path, body)

    def _answer(self, method: str, path: str, body: bytes) -> Response:
        try:
            return self._route(method, path.strip("/").split("/"), body)
        except _Refusal as refusal:
            return refusal.response()
        except (ConfigError, InputError, ArgumentError) as problem:
            code = "bad_filter" if "filter" in str(problem) else "bad_query"
            return _Refusal(422, code, str(problem)).response()
        except (ShardsMissing, BusyError) as problem:
            return _Refusal(503, "index_unavailable", str(problem)).response()

    def _route(self, method: str, path: list[str], body: bytes) -> Response:
        if path == ["healthz"]:
            return JSONResponse({"status": "ok"})
        if path[:2] != ["v1", "indexes"] or len(path) < 4:
            raise _Refusal(404, "unknown_path", f"there is no path /{'/'.join(path)}")
        if path[2] != self.name:
            raise _Refusal(404, "unknown_index", f"no index is named {path[2]}; this server has {self.name}")
        match path[3:], method:
            case ["query"], "POST":
                return JSONResponse(self._query(_object(body)))
            case ["query", "batch"], "POST":
                return JSONResponse(self._batch(_object(body)))
            case ["count"], "POST":
                return JSONResponse({"count": self.searcher.count(_object(body).get("filter"))})
            case ["documents", id], "GET":
                return self._document(id)
        raise _Refusal(404, "unknown_path", f"there is no {method} /{'/'.join(path)}")

    def _query(self, search: dict[str, Any]) -> dict[str, Any]:
        examples, keywords = self._examples(search)
        options = {name: search[name] for name in _OPTIONS if search.get(name) is not None}
        options["k"] = _inputs.count(options.get("k", 10), "k")
        return _found(self.searcher._search([(examples, keywords)], options, False)[0])

    def _batch(self, body: dict[str, Any]) -> dict[str, Any]:
        queries = body.get("queries")
        if not isinstance(queries, list) or not 1 <= len(queries) <= MAX_QUERIES:
            raise _Refusal(400, "bad_request", f"queries must be a list of 1 to {MAX_QUERIES} queries")
        return {"answers": [self._query(search) for search in queries]}

    def _examples(self, search: Any) -> tuple[list[tuple[str, Any, float]], str | None]:
        if not isinstance(search, dict):
            raise _Refusal(400, "bad_request", "a query must be an object")
        unknown = set(search) - _OPTIONS - {"text", "vector", "document", "like", "keywords"}
        if unknown:
            raise _Refusal(400, "bad_request", f"unknown field `{min(unknown)}`")
        one = {name: search[name] for name in ("text", "vector", "document") if search.get(name) is not None}
        like = search.get("like")
        if bool(one) == (like is not None):
            raise _Refusal(422, "bad_query", "give one of text, vector and document, or several in like")
        examples = [one] if one else like
        if not isinstance(examples, list) or not 1 <= len(examples) <= 100:
            raise _Refusal(400, "bad_request", "like must be a list of 1 to 100 examples")
        return [self._example(example) for example in examples], search.get("keywords")

    def _example(self, example: Any) -> tuple[str, Any, float]:
        if not isinstance(example, dict) or set(example) - _EXAMPLE:
            raise _Refusal(400, "bad_request", "an example has one of text, vector and document, and a weight")
        given = [name for name in ("text", "vector", "document") if example.get(name) is not None]
        if len(given) != 1:
            raise _Refusal(422, "bad_query", "an example has one of text, vector and document")
        value = example[given[0]]
        if given[0] == "text" and not isinstance(value, str):
            raise _Refusal(400, "bad_request", "text must be a string")
        if given[0] == "vector":
            value = _inputs.vector(np.asarray(value, dtype=np.float32), "vector", self.searcher.model.inputs)
        return given[0], value, float(example.get("weight") or 1.0)

    def _document(self, id: str) -> Response:
        found = self.searcher.get(id)
        if found is None:
            raise _Refusal(404, "unknown_document", f"no document has the id {id}")
        found.pop("code")
        return JSONResponse(found)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as problem:
        raise _Refusal(400, "not_json", f"the body is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise _Refusal(400, "bad_request", "the body must be an object")
    return value


def _found(hits: Any) -> dict[str, Any]:
    rows = []
    for hit in hits:
        row = {"id": hit.id, "distance": hit.distance, "score": hit.score, "text": hit.text, "labels": hit.labels}
        row["attributes"] = hit.attributes
        if hit.snippet is not None:
            row["snippet"] = {"text": hit.snippet[0], "marks": [list(mark) for mark in hit.snippet[1]]}
        if hit.chunk is not None:
            row["chunk"] = dict(zip(("number", "of", "start"), hit.chunk))
        if hit.codebook_distances is not None:
            row["codebook_distances"] = hit.codebook_distances
        rows.append({name: value for name, value in row.items() if value is not None})
    found: dict[str, Any] = {"hits": rows, "next": hits.next}
    if hits.explanation is not None:
        found["explanation"] = hits.explanation
    found["milliseconds"] = {stage: seconds * 1e3 for stage, seconds in hits.timings.items()}
    return found


def serve(
    out: str | os.PathLike[str],
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 6380,
    fronts: int = 1,
    **searcher: Any,
) -> Any:
    """Serves a folder of shards over HTTP with Ray Serve, and returns its handle. ``ray.serve.shutdown()`` ends it.

    :param name: name of the index in paths. Default: that of the folder.
    :param fronts: processes that take requests. Each has its own actors.
    :param searcher: options of :class:`Searcher`: ``replicas``, ``timeout``, ...
    """
    folder = _inputs.path(out, "out").absolute()
    ray_serve.start(http_options={"host": host, "port": port})
    front: Any = ray_serve.deployment(Front)
    deployment = front.options(num_replicas=fronts, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=64)
    return ray_serve.run(deployment.bind(str(folder), name or folder.name, searcher), name=f"micpq-{name or folder.name}", route_prefix="/")
