"""The HTTP interface in front of a folder of shards, with Ray Serve.

Paths, bodies, answers and error codes are those of ``micpq serve``, and so is the description. The operations that search and
that add, get, count and delete documents work; all others are refused as ``unsupported``, as the description allows.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ray import serve as ray_serve

from .. import _inputs
from ..errors import ArgumentError, BusyError, ConfigError, Error, FilterError, InputError
from ._http import MAX_BODY_BYTES, Refusal, check_caller, json_body, octets_body, path_parts
from ._openapi import Description
from ._routes import Routes
from ._searcher import Searcher, ShardsMissing

_LOG = logging.getLogger("ray.serve")

#: What a route gets: the parameters of the path, the query string, the body.
Handler = Callable[[dict[str, str], Any, Any], Any]

_WRITES = frozenset({"upsertDocuments", "deleteDocuments", "deleteDocument"})


class Front:
    """Answers HTTP requests by a :class:`Searcher`."""

    def __init__(self, out: str, name: str, hosts: Sequence[str], writes: bool, options: dict[str, Any]) -> None:
        self.name, self.hosts, self.writes = name, frozenset(hosts), writes
        self.description = Description()
        self.routes = Routes(Searcher(out, **options), self.description)
        self.handlers = self._handlers()

    async def __call__(self, request: Request) -> Response:
        try:
            check_caller(request, self.hosts)
            handler, given, schema = self._route(request)
            body = None
            if request.method in ("POST", "PUT", "DELETE"):
                raw = await _read(request)
                body = raw if schema is None else self._checked(request, raw, schema)
            # Searches wait for other processes; the loop goes on with other requests.
            work = asyncio.get_running_loop().run_in_executor(None, _answered, handler, given, request.query_params, body)
            response = await work
        except Refusal as refusal:
            response = refusal.response()
        if request.method == "HEAD":
            response.body = b""
        response.headers["x-content-type-options"] = "nosniff"
        response.headers["x-request-id"] = request.headers.get("x-request-id", uuid.uuid4().hex)[:128]
        return response

    def _checked(self, request: Request, raw: bytes, schema: str) -> Any:
        if schema == "octets":
            return octets_body(request, raw)
        body = json_body(request, raw, optional=schema == "")
        problem = None if schema == "" else self.description.problem(schema, body)
        if problem is not None:
            raise Refusal(400, "bad_request", problem)
        return body

    def _route(self, request: Request) -> tuple[Handler, dict[str, str], str | None]:
        """The handler of a request, the parameters of its path, and the schema of its body."""
        parts = path_parts(request)
        if parts == ["openapi.json"]:
            operations, given = {"GET": "getDescription"}, dict[str, str]()
        else:
            operations, given = self.description.find(parts)
        if not operations:
            raise Refusal(404, "unknown_path", "there is no such path; /openapi.json lists all paths")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in operations:
            allowed = ", ".join(sorted({*operations, *(["HEAD"] if "GET" in operations else [])}))
            text = "this path does not have this method; the Allow header lists its methods"
            raise Refusal(405, "wrong_method", text, {"allow": allowed})
        index = given.get("index", self.name)
        if index != self.name:
            raise Refusal(404, "unknown_index", f"no index is named {index[:80]}; this server has {self.name}")
        operation = operations[method]
        if operation not in self.handlers:
            raise Refusal(409, "unsupported", f"{operation} is not for an index in shards on Ray; open one shard with micpq serve")
        handler, schema = self.handlers[operation]
        if operation in _WRITES and not self.writes:
            raise Refusal(409, "unsupported", "this server has several fronts, which only read; serve with fronts=1 to write")
        return handler, given, schema

    def _handlers(self) -> dict[str, tuple[Handler, str | None]]:
        """The handler of each operation and the schema of its body: a name, "octets", "" for a body that may be missing, or None
        without."""
        routes = self.routes
        return {
            "getDescription": (lambda *_: self.description.text, None),
            "getHealth": (lambda *_: {"status": "ok"}, None),
            "getReadiness": (routes.ready, None),
            "getVersion": (routes.version, None),
            "query": (routes.query, "Search"),
            "queryBatch": (routes.batch, "Batch"),
            "queryVector": (routes.vector, "octets"),
            "countDocuments": (routes.count, "Count"),
            "upsertDocuments": (routes.upsert, "Upsert"),
            "getDocuments": (routes.fetch, "Ids"),
            "deleteDocuments": (routes.delete, "Delete"),
            "getDocument": (routes.get, None),
            "deleteDocument": (routes.delete_one, ""),
        }


async def _read(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(413, "too_large", f"the body is longer than {MAX_BODY_BYTES} bytes; send less at once")
    return body


def _answered(handler: Handler, given: dict[str, str], options: Any, body: Any) -> Response:
    try:
        answer = handler(given, options, body)
        return Response(answer, media_type="application/json") if isinstance(answer, bytes) else JSONResponse(answer)
    except Refusal as refusal:
        raise refusal
    except FilterError as problem:
        raise Refusal(422, "bad_filter", str(problem)) from None
    except (ConfigError, InputError, ArgumentError) as problem:
        raise Refusal(422, "bad_query", str(problem)) from None
    except BusyError as problem:
        raise Refusal(409, "index_busy", str(problem), {"retry-after": "1"}) from None
    except ShardsMissing as problem:
        raise Refusal(503, "index_unavailable", str(problem), {"retry-after": "10"}) from None
    except Error:
        # The message may have paths of the server: they are only for its log.
        _LOG.exception("a request failed")
        raise Refusal(500, "storage", "cannot read or write the index; the server's log says why") from None
    except Exception:
        _LOG.exception("a request failed")
        raise Refusal(500, "internal", "the server failed; its log says why") from None


def serve(
    out: str | os.PathLike[str],
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 6380,
    hosts: Sequence[str] = (),
    fronts: int = 1,
    **searcher: Any,
) -> Any:
    """Serves a folder of shards over HTTP with Ray Serve, and returns its handle. ``ray.serve.shutdown()`` ends it.

    :param name: name of the index in paths. Default: that of the folder.
    :param hosts: names besides this machine's own address that requests may have in their Host header; ``"*"`` for any. There are
        no keys: put a proxy that checks them in front before the port is open to others.
    :param fronts: processes that take requests. Each has its own actors, and with more than one they only read.
    :param searcher: options of :class:`Searcher`: ``replicas``, ``timeout``, ...
    """
    folder = _inputs.path(out, "out").absolute()
    index = name or folder.name
    ray_serve.start(http_options={"host": host, "port": port})
    front: Any = ray_serve.deployment(Front)
    deployment = front.options(num_replicas=fronts, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=64)
    bound = deployment.bind(str(folder), index, [*hosts, host], fronts == 1, searcher)
    return ray_serve.run(bound, name=f"micpq-{index}", route_prefix="/")
