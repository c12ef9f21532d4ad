"""What is checked of every HTTP request, as in ``micpq serve``: the caller, the path, the media type, the form of the body."""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import ArgumentError, BusyError, ConfigError, Error, FilterError, InputError
from ._fleet import ShardsMissing

_LOG = logging.getLogger("ray.serve")

MAX_BODY_BYTES = 32 << 20
MAX_TEXT_BYTES = 1 << 20


class Refusal(Exception):
    """The answer to a request that fails."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers
        self.details = details or {}

    def response(self) -> Response:
        kind = "authentication_error" if self.status == 403 else "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"code": self.code, "message": self.message, "type": kind, **self.details}
        return JSONResponse({"error": error}, self.status, self.headers)


def refusal_of(problem: Exception) -> Refusal:
    """The answer to a request that fails by an error."""
    match problem:
        case Refusal():
            return problem
        case FilterError():
            return Refusal(422, "bad_filter", str(problem))
        case ConfigError() | InputError() | ArgumentError():
            return Refusal(422, "bad_query", str(problem))
        case BusyError():
            return Refusal(409, "index_busy", str(problem), {"retry-after": "1"})
        case ShardsMissing():
            return Refusal(503, "index_unavailable", str(problem), {"retry-after": "10"})
    # The message may have paths of the server: they are only for its log.
    _LOG.error("a request failed", exc_info=problem)
    if isinstance(problem, Error):
        return Refusal(500, "storage", "cannot read or write the index; the server's log says why")
    return Refusal(500, "internal", "the server failed; its log says why")


def check_caller(request: Request, hosts: frozenset[str]) -> None:
    """Refuses what a page of another site sends through a visitor's browser: by another name for this server, or marked as foreign."""
    host = request.headers.get("host", "")
    name = host.rsplit(":", 1)[0] if host.rsplit(":", 1)[-1].isdigit() else host
    name = name.strip("[]").lower()
    if "*" not in hosts and name not in hosts and name != "localhost" and not _is_loopback(name):
        raise Refusal(421, "wrong_host", 'this server has no keys and accepts only its own address as host; use that address, or add this host to "hosts"')
    harmless = request.method in ("GET", "HEAD", "OPTIONS") and not request.url.path.startswith("/v1/indexes/")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    if not harmless and (site not in ("same-origin", "none") or origin is not None and origin.partition("://")[2].lower() != host.lower()):
        raise Refusal(403, "cross_site", "the request comes from a page of another site; call from a program")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def path_parts(request: Request) -> list[str]:
    """The parts of the path. A slash inside a part is written %2F."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    try:
        return [unquote_to_bytes(part).decode() for part in raw.split(b"?")[0].split(b"/")[1:]]
    except UnicodeDecodeError:
        raise Refusal(400, "bad_request", "the path is not UTF-8") from None


def query_string(parameters: Any, known: dict[str, Callable[[str, str], Any]]) -> dict[str, Any]:
    """The parameters of the query string, each at most once, as the function of its name reads it."""
    found: dict[str, Any] = {}
    for name, value in parameters.multi_items():
        if name in found or name not in known:
            raise Refusal(400, "bad_request", f"unknown or repeated parameter {name[:80]}; this path takes {', '.join(known)} once")
        found[name] = known[name](name, value)
    return found


def whole_number(least: int, most: int) -> Callable[[str, str], int]:
    """Reads a number of a path or of the query string."""

    def read(name: str, value: str) -> int:
        if not (value.isascii() and value.isdigit() and len(value) < 20) or not least <= int(value) <= most:
            raise Refusal(400, "bad_request", f"{name} is {value[:80]}; give a whole number from {least} to {most}")
        return int(value)

    return read


def as_text(_: str, value: str) -> str:
    """Takes a parameter as it is."""
    return value


def truth(name: str, value: str) -> bool:
    """Reads true or false."""
    if value not in ("true", "false"):
        raise Refusal(400, "bad_request", f"{name} is {value[:80]}; give true or false")
    return value == "true"


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def json_body(request: Request, body: bytes, optional: bool) -> Any:
    """The body as JSON. With ``optional`` it may be missing."""
    kind = media_type(request)
    if optional and not body and "content-type" not in request.headers:
        return None
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refusal(415, "wrong_media_type", 'the body must be JSON; send it with "Content-Type: application/json"')
    if optional:
        # A route without body does not look at one.
        return None
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
        # Half of a surrogate pair is no text.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as problem:
        raise Refusal(400, "not_json", f"the body is not JSON: {problem}") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def octets_body(request: Request, body: bytes) -> bytes:
    """The body as bytes."""
    if media_type(request) != "application/octet-stream":
        raise Refusal(415, "wrong_media_type", 'the body must be bytes; send it with "Content-Type: application/octet-stream"')
    return body
