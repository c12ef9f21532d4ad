"""The HTTP interface in front of a folder of shards, with Ray Serve.

Paths, bodies, answers and error codes are those of ``micpq serve``, and so is the description. What does not work over shards is
refused as ``unsupported``, as the description allows, with the reason and what to do instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ray import serve as ray_serve

from .. import _inputs
from ..errors import ConfigError
from ._backups import Backups
from ._embeddings import Embeddings
from ._http import MAX_BODY_BYTES, Refusal, check_caller, json_body, media_type, octets_body, path_parts, refusal_of
from ._insight import Insight
from ._jobs import Jobs
from ._metrics import Metrics
from ._openapi import Description
from ._routes import Routes
from ._searcher import Searcher
from ._stream import MAX_STREAMS, MEDIA_TYPES, Stream, reading

#: What a route gets: the parameters of the path, the query string, the body.
Handler = Callable[[dict[str, str], Any, Any], Any]

_WRITES = frozenset({"upsertDocuments", "streamDocuments", "deleteDocuments", "deleteDocument"})

#: A job is known to the front that runs it.
_JOBS = frozenset({"measureRecall", "getRecall", "listJobs", "getJob", "cancelJob"})

_MAP = "a map is laid out from the vectors of one index; open one shard with micpq serve for a map of its documents"
_TOPICS = "topics are clusters of the codes of one index; micpq.open(shard).topics() finds those of one shard"
_WATCH = (
    "the matches of a saved query are told from a place in the order of insertion of one index, and shards commit apart; "
    "micpq.open(shard).watch() saves a query with one shard"
)

#: Why an operation does not work over shards, and what to do instead.
_UNSUPPORTED = {
    "createIndex": "shards are made from a corpus; call micpq.ray.build",
    "dropIndex": "this server did not create the shards; end it and remove their folder",
    "trainIndex": "a new model needs new shards; call micpq.ray.train and then micpq.ray.build",
    "findDuplicates": "duplicates are found among the documents of one index; micpq.open(shard).dedup() finds those within one shard",
    **dict.fromkeys(["makeMap", "getMap", "getMapPoints", "getMapValues", "getMapDocuments", "getMapPlaces"], _MAP),
    **dict.fromkeys(["findTopics", "getTopics"], _TOPICS),
    **dict.fromkeys(["listSavedQueries", "saveQuery", "removeSavedQuery", "listMatches"], _WATCH),
}

#: Requests that a front answers at a time.
MAX_REQUESTS = 64

#: The header of an answer without some shards; it names them.
MISSING = "x-micpq-missing-shards"


class Front:
    """Answers HTTP requests by a :class:`Searcher`."""

    def __init__(self, out: str, name: str, hosts: Sequence[str], writes: bool, backups: str | None, options: dict[str, Any]) -> None:
        self.name, self.hosts, self.writes = name, frozenset(hosts), writes
        self.description = Description()
        self.searcher = Searcher(out, **options)
        self.routes = Routes(self.searcher, self.description)
        self.jobs = Jobs(self.searcher, name)
        self.backups = Backups(self.searcher, name, backups)
        self.handlers = self._handlers()
        self.metrics = Metrics()
        # Most of them wait for shards.
        self.threads = ThreadPoolExecutor(MAX_REQUESTS)
        self.streams = 0

    async def __call__(self, request: Request) -> Response:
        begun, route = time.perf_counter(), "none"
        try:
            check_caller(request, self.hosts)
            operation, given = self._operation(request)
            route = operation
            if operation == "streamDocuments":
                response = await self._streamed(request)
            else:
                handler, schema = self.handlers[operation]
                body = None
                if request.method in ("POST", "PUT", "DELETE"):
                    raw = await _read(request)
                    body = raw if schema is None else self._checked(request, raw, schema)
                response = await self._in_thread(lambda: handler(given, request.query_params, body))
        except Refusal as refusal:
            response = refusal.response()
        if request.method == "HEAD":
            response.body = b""
        self.metrics.answered(request.method, route, response.status_code, time.perf_counter() - begun)
        response.headers["x-content-type-options"] = "nosniff"
        response.headers["x-request-id"] = request.headers.get("x-request-id", uuid.uuid4().hex)[:128]
        return response

    async def rebalance(self, shards: int) -> None:
        """Moves all documents into another number of shards, as :meth:`Searcher.rebalance` does. This process has the right to write, so
        no other one can."""
        if not self.writes:
            raise ConfigError("this server has several fronts, which only read; move the shards by a Searcher of your own")
        await asyncio.get_running_loop().run_in_executor(None, self.searcher.rebalance, shards)

    async def _in_thread(self, handler: Callable[[], Any]) -> Response:
        """Searches wait for other processes; the loop goes on with other requests."""

        def work() -> Response:
            self.routes.answered_without.shards = set()
            response = _answered(handler)
            missing = self.routes.answered_without.shards
            if missing:
                self.metrics.missing.inc()
                response.headers[MISSING] = ",".join(str(shard) for shard in sorted(missing))
            return response

        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    async def _streamed(self, request: Request) -> Response:
        """Adds the documents of a stream, which is read no faster than they are committed."""
        if media_type(request) not in MEDIA_TYPES:
            raise Refusal(415, "wrong_media_type", f'a stream has one JSON object per line; send it with "Content-Type: {MEDIA_TYPES[0]}"')
        options = reading(request.query_params)
        if self.streams >= MAX_STREAMS:
            raise Refusal(429, "overloaded", "too many streams are being read", {"retry-after": "10"})
        stream = Stream(self.searcher, options)
        self.streams += 1
        fed = asyncio.ensure_future(stream.feed(request.stream()))
        try:
            return await self._in_thread(stream.store)
        finally:
            # After a bad line the rest of the body is not read.
            fed.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await fed
            self.streams -= 1

    def _metrics(self, *_: Any) -> Response:
        text = self.metrics.text(self.name, self.searcher.count(), len(self.searcher._open()))
        return Response(text, media_type="text/plain; version=0.0.4")

    def _checked(self, request: Request, raw: bytes, schema: str) -> Any:
        if schema == "octets":
            return octets_body(request, raw)
        may_be_missing = schema.endswith("?")
        if may_be_missing and not raw.strip() and "content-type" not in request.headers:
            return {}
        body = json_body(request, raw, optional=schema == "")
        if may_be_missing and body is None:
            return {}
        problem = None if schema == "" else self.description.problem(schema.removesuffix("?"), body)
        if problem is not None:
            raise Refusal(400, "bad_request", problem)
        return body

    def _operation(self, request: Request) -> tuple[str, dict[str, str]]:
        """The operation of a request, and the parameters of its path."""
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
        if operation in _UNSUPPORTED:
            raise Refusal(409, "unsupported", f"{operation} does not work over shards: {_UNSUPPORTED[operation]}")
        if operation in _JOBS and not self.writes:
            raise Refusal(409, "unsupported", "this server has several fronts, and a job is known to one of them only; serve with fronts=1 for jobs")
        if operation in _WRITES and not self.writes:
            raise Refusal(409, "unsupported", "this server has several fronts, which only read; serve with fronts=1 to write")
        return operation, given

    def _handlers(self) -> dict[str, tuple[Handler, str | None]]:
        """The handler of each operation and the schema of its body: a name, with "?" if the body may be missing, "octets", "" for a
        body that nobody reads, or None without."""
        routes, jobs = self.routes, self.jobs
        insight, embeddings = Insight(self.searcher, routes), Embeddings(self.searcher, self.name)
        return {
            "getDescription": (lambda *_: self.description.text, None),
            "getHealth": (lambda *_: {"status": "ok"}, None),
            "getReadiness": (routes.ready, None),
            "getVersion": (routes.version, None),
            "getMetrics": (self._metrics, None),
            "listIndexes": (lambda *_: routes.indexes(self.name, jobs.running), None),
            "getIndex": (lambda *_: routes.index(self.name, jobs.running), None),
            "createBackup": (self.backups.create, ""),
            "listBackups": (self.backups.list, None),
            "query": (routes.query, "Search"),
            "queryBatch": (routes.batch, "Batch"),
            "queryVector": (routes.vector, "octets"),
            "countDocuments": (routes.count, "Count"),
            "upsertDocuments": (routes.upsert, "Upsert"),
            "getDocuments": (routes.fetch, "Ids"),
            "deleteDocuments": (routes.delete, "Delete"),
            "getDocument": (routes.get, None),
            "deleteDocument": (routes.delete_one, ""),
            "getFacets": (insight.facets, None),
            "getCodebooks": (insight.codebooks, None),
            "getCodeword": (insight.codeword, None),
            "getTraining": (insight.training, None),
            "createEmbeddings": (embeddings.embed, "Embed"),
            "listModels": (embeddings.models, None),
            "measureRecall": (jobs.measure_recall, "MeasureRecall?"),
            "getRecall": (jobs.show_recall, None),
            "listJobs": (jobs.list, None),
            "getJob": (jobs.show, None),
            "cancelJob": (jobs.cancel, ""),
        }


async def _read(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(413, "too_large", f"the body is longer than {MAX_BODY_BYTES} bytes; send less at once")
    return body


def _answered(handler: Callable[[], Any]) -> Response:
    try:
        answer = handler()
        if isinstance(answer, Response):
            return answer
        return Response(answer, media_type="application/json") if isinstance(answer, bytes) else JSONResponse(answer)
    except Refusal:
        raise
    except Exception as problem:
        refusal = refusal_of(problem)
        if (committed := getattr(problem, "committed", None)) is not None:
            refusal.details["committed"] = committed
        raise refusal from None


def serve(
    out: str | os.PathLike[str],
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 6380,
    hosts: Sequence[str] = (),
    fronts: int = 1,
    follow: float | None = 1.0,
    backups: str | os.PathLike[str] | None = None,
    **searcher: Any,
) -> Any:
    """Serves a folder of shards over HTTP with Ray Serve, and returns its handle. ``ray.serve.shutdown()`` ends it.
    ``handle.rebalance.remote(16).result()`` moves the documents into another number of shards while it serves.

    :param name: name of the index in paths. Default: that of the folder.
    :param hosts: names besides this machine's own address that requests may have in their Host header; ``"*"`` for any. There are
        no keys: put a proxy that checks them in front before the port is open to others.
    :param fronts: processes that take requests. Each has its own actors, and with more than one they only read.
    :param follow: seconds between two looks for changes that another front or process made.
    :param backups: folder or URL for the snapshots that ``POST /v1/indexes/{index}/backups`` takes. Default: it takes none.
    :param searcher: options of :class:`Searcher`: ``replicas``, ``timeout``, ``allow_partial``, ... A partial answer has the header
        ``x-micpq-missing-shards``, which names the shards that did not answer.
    """
    folder = _inputs.path(out, "out").absolute()
    index = name or folder.name
    ray_serve.start(http_options={"host": host, "port": port})
    front: Any = ray_serve.deployment(Front)
    deployment = front.options(num_replicas=fronts, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=MAX_REQUESTS)
    place = None if backups is None else os.fspath(backups)
    # Actors have other working directories.
    place = place if place is None or "://" in place else os.path.abspath(place)
    bound = deployment.bind(str(folder), index, [*hosts, host], fronts == 1, place, {"follow": follow, **searcher})
    return ray_serve.run(bound, name=f"micpq-{index}", route_prefix="/")
