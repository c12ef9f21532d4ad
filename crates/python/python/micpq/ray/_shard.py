"""A resident shard: the actor that has one shard open."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from .. import _micpq
from .._inputs import Id
from .._model import Model
from ..errors import BusyError, Error
from ._manifest import Manifest
from ._parts import Embedded


class ShardClosed(Error):
    """The directory of a shard cannot be opened at present. The next call tries again."""


class ShardMoved(Error):
    """The manifest does not list this shard any more: a change to it would be lost."""


@ray.remote(max_restarts=-1)
class ShardActor:
    """Maps a shard into memory and answers calls. Ray starts it again when its process dies; it then opens the last commit.
    The first replica of a shard also writes it."""

    def __init__(self, directory: str, threads: int, follow: float | None = None) -> None:
        # Nothing here may fail: Ray does not start an actor again whose constructor raised.
        _micpq.set_threads(threads)
        self.directory = Path(directory)
        self.opening, self.writing = threading.Lock(), threading.Lock()
        self.opened: _micpq.Shard | None = None
        self.model: Model | None = None
        if follow is not None:
            threading.Thread(target=self._follow, args=(follow,), daemon=True).start()

    def _follow(self, seconds: float) -> None:
        """Switches to the commits of other processes."""
        while True:
            time.sleep(seconds)
            if self.opened is not None:
                # What cannot be read now is read the next time; searches go on with the old commit.
                with contextlib.suppress(Error):
                    self.opened.reload()

    @property
    def shard(self) -> _micpq.Shard:
        with self.opening:
            if self.opened is None:
                try:
                    self.opened = _micpq.Shard.open(self.directory)
                except Error as problem:
                    raise ShardClosed(str(problem)) from None
            return self.opened

    def pid(self) -> int:
        return os.getpid()

    def call(self, token: str, call: str, finished: Sequence[str] = ()) -> str:
        """One step of a request. All steps with one token see one commit, until the token is among the finished ones."""
        shard = self.shard
        for other in finished:
            shard.release(other)
        return shard.call(token, call)

    def kind(self) -> tuple[str, str, str, str | None]:
        """What documents are stored, how rerank vectors are, the language of keyword search, and how texts are split."""
        return self.shard.store, self.shard.rerank_vectors, self.shard.language, self.shard.chunk

    def info(self) -> dict[str, Any]:
        """Counts and sizes."""
        found: dict[str, Any] = json.loads(self.shard.info())
        return found

    def attributes(self) -> tuple[int, list[str]]:
        """The number of documents, and the names of their attributes."""
        return len(self.shard), self.shard.attributes()

    def count(self, filter: str | None, known: set[str] | None) -> int:
        return self.shard.count(filter, known)

    def get(self, ids: list[Id]) -> list[dict[str, Any] | None]:
        return [self.shard.get(id) for id in ids]

    def reload(self) -> bool:
        return self.shard.reload()

    def put(self, documents: bytes, sequences: list[int], embedded: Embedded | None) -> tuple[bool, int]:
        """Adds or replaces documents, and commits. Returns true and how many texts were longer than the encoder takes; or false
        and the least sequence that it takes, where another writer has used later ones meanwhile."""
        rows = _micpq.Documents.from_bytes(documents)
        if embedded is None:
            chunk = self.shard.chunk
            with self.opening:
                self.model = self.model or Model.load(self.directory / "model")
            embedded = Embedded.of(self.model, rows, chunk)
        # Calls run beside each other. An error takes back what was not committed, so every change commits alone.
        with self._writer():
            least = self.shard.next_sequence()
            if sequences and sequences[0] < least:
                return False, least
            self.shard.add(rows, embedded.rows, sequences, embedded.chunks)
            self.shard.commit()
            return True, embedded.cut

    @contextlib.contextmanager
    def _writer(self) -> Iterator[None]:
        """The right to change the shard, with the lock that a move of the shards waits for. Whoever has that lock knows by the
        manifest whether the shards were moved before: then nobody reads this one any more."""
        moved = ShardMoved(f"{self.directory} was replaced by other shards; write again")
        with self.writing:
            try:
                self.shard.begin()
            except BusyError:
                raise
            except Error:
                if self._is_listed():
                    raise
                raise moved from None
            if not self._is_listed():
                self.shard.close()
                raise moved
            yield

    def _is_listed(self) -> bool:
        return any(shard["name"] == self.directory.name for shard in Manifest.read(self.directory.parent).shards)

    def delete(self, ids: list[Id], filter: str | None, known: set[str] | None) -> tuple[bool, int]:
        """Deletes documents by id and by filter, commits, and returns true and how many there were."""
        with self._writer():
            deleted = self.shard.delete(ids, filter, known)
            self.shard.commit()
            return True, deleted

    def close(self) -> None:
        """Ends the writer, so that another process may write."""
        with self.writing:
            self.shard.close()


@ray.remote(max_restarts=-1, num_cpus=0)
class SequenceActor:
    """Gives out insertion sequences, so that all shards share one order. What was given out is in a file beside the shards: other
    searchers go on after it, and so does this actor when it starts again, also where a request has not committed its sequences yet."""

    #: The next sequence, in so many digits.
    DIGITS = 20

    def __init__(self, out: str, directories: list[str]) -> None:
        self.file, self.directories = Path(out) / ".sequence", directories

    def reserve(self, count: int, least: int) -> int:
        """The first of so many sequences, from ``least`` up."""
        file = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            given = int(os.pread(file, self.DIGITS, 0) or b"0")
            # A program without Ray may have written a shard.
            stored = max(_micpq.next_sequence_at(Path(directory)) for directory in self.directories)
            first = max(given, stored, least)
            os.pwrite(file, f"{first + count:0{self.DIGITS}}".encode(), 0)
        finally:
            os.close(file)
        return first
