"""The routes of backups: snapshots of all shards, in a folder of any file system."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import JSONResponse

from ._http import Refusal
from ._searcher import Searcher
from ._snapshot import snapshot, snapshots


class Backups:
    """The handlers. Backups lie in ``place``, under the name of the index and the time in milliseconds."""

    def __init__(self, searcher: Searcher, index: str, place: str | None) -> None:
        self.searcher, self.index, self.place = searcher, index, place

    def create(self, *_: Any) -> JSONResponse:
        if self.place is None:
            raise Refusal(409, "unsupported", "this server has no place for backups; start it with the option backups")
        name = f"{self.index}-{time.time_ns() // 1_000_000}"
        copied = snapshot(self.searcher.path, f"{self.place}/{name}")
        return JSONResponse({"name": name, "documents": sum(shard["documents"] for shard in copied.shards)}, 201)

    def list(self, *_: Any) -> dict[str, Any]:
        return {"backups": [] if self.place is None else [name for name in snapshots(self.place) if self._is_own(name)]}

    def _is_own(self, name: str) -> bool:
        index, _, when = name.rpartition("-")
        return index == self.index and when.isascii() and when.isdigit()
