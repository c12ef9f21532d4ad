"""Streams of documents over HTTP: lines are parsed and committed while the rest of the body is on its way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from .. import _inputs, _micpq
from ..errors import Error, FormatError, InputError
from ._http import MAX_TEXT_BYTES, Refusal
from ._searcher import Searcher

#: Media types of a stream.
MEDIA_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")

#: Documents that are committed together.
_DOCUMENTS = 256

#: Streams that are read at a time.
MAX_STREAMS = 4

#: Seconds of silence after which a stream is given up.
SILENCE = 30.0

#: Reasons of skipped lines that an answer has.
_TOLD = 10

#: Parameters of a stream that say how its lines are read.
_FIELDS = ("id_field", "text_field", "label_field")


def reading(parameters: Any) -> dict[str, Any]:
    """The options of reading from the query string of a request."""
    found: dict[str, Any] = {"format": "jsonl", "id_field": "id", "unique_ids": False, "max_row_bytes": MAX_TEXT_BYTES, "on_error": "stop"}
    seen = set()
    for name, value in parameters.multi_items():
        if name in seen or name not in ("on_error", "on_duplicate", "duplicate_by", "duplicate_threshold", *_FIELDS):
            raise Refusal(400, "bad_request", f"unknown or repeated parameter {name[:80]}; this path takes on_error, {', '.join(_FIELDS)} once")
        seen.add(name)
        if name in _FIELDS:
            if not value:
                raise Refusal(400, "bad_request", f"{name} is empty; name the field, or leave the option out")
            found[name] = value
        elif name == "on_error":
            if value not in ("auto", "stop", "skip"):
                raise Refusal(400, "bad_request", f"on_error is {value[:80]}; give auto, stop or skip")
            found[name] = value
        elif name != "on_duplicate" or value != "keep":
            raise Refusal(409, "unsupported", "shards do not look for duplicates while documents are added; leave on_duplicate out")
    return found


class Stream:
    """One stream. :meth:`feed` writes the body into a pipe as it comes, and :meth:`store` reads documents from it in another
    thread: while that commits, the pipe is full and no more of the body is taken."""

    def __init__(self, searcher: Searcher, options: dict[str, Any]) -> None:
        self.searcher, self.options = searcher, _inputs.options(options)
        self.done = threading.Event()
        self.source, self.sink = os.pipe()
        os.set_blocking(self.sink, False)
        # Why the rest of the body does not come.
        self.broken: Refusal | None = None

    async def feed(self, body: AsyncIterator[bytes]) -> None:
        """Writes the body into the pipe. Ends early if no more of it is wanted."""
        pieces = body.__aiter__()
        try:
            while not self.done.is_set():
                try:
                    piece = await asyncio.wait_for(anext(pieces), SILENCE)
                except StopAsyncIteration:
                    return
                except asyncio.TimeoutError:
                    self.broken = Refusal(504, "timeout", "the stream was silent for too long; send the remaining lines again")
                    return
                left = memoryview(piece)
                while left and not self.done.is_set():
                    try:
                        left = left[os.write(self.sink, left) :]
                    except BlockingIOError:
                        await asyncio.sleep(0.002)
        except Exception as problem:
            self.broken = Refusal(400, "bad_request", f"the stream broke off: {problem}; send the remaining lines again")
        finally:
            os.close(self.sink)

    def store(self) -> dict[str, Any]:
        """Adds the documents, and returns the answer."""
        changed, skipped, reasons = 0, 0, list[str]()
        try:
            for packed, numbers, bad in self._parts():
                skipped, reasons = skipped + len(bad), [*reasons, *bad][:_TOLD]
                self.searcher._add(_micpq.Documents.from_bytes(packed), None)
                changed += len(numbers)
            if self.broken is not None:
                raise self.broken
        except Refusal as refusal:
            refusal.details["committed"] = changed
            raise
        except Error as problem:
            problem.committed = changed  # type: ignore[attr-defined]
            raise
        finally:
            self.done.set()
            with contextlib.suppress(OSError):
                os.close(self.source)
        reasons = [self._named(reason) for reason in reasons]
        return {"changed": changed, "skipped": skipped, "reasons": reasons, "documents": len(self.searcher)}

    def _parts(self) -> Iterator[tuple[bytes, list[int], list[str]]]:
        """The documents, as they come."""
        try:
            parts = _micpq.CorpusParts.open(Path(f"/dev/fd/{self.source}"), self.options, 0, 0, _DOCUMENTS, False)
            while True:
                found = parts.next()
                if found is None:
                    return
                yield found
        except (InputError, FormatError) as problem:
            line = re.search(r":(\d+):", str(problem))
            details = {"line": int(line[1])} if line else None
            raise Refusal(422, "bad_document", self._named(str(problem)), details=details) from None

    def _named(self, reason: str) -> str:
        return reason.replace(f"/dev/fd/{self.source}", "stream")
