"""A resident shard: the actor that has one shard open."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import ray

from .. import _micpq
from .._inputs import Id
from .._model import Model
from ..errors import Error
from ._parts import Embedded


class ShardClosed(Error):
    """The directory of a shard cannot be opened at present. The next call tries again."""


@ray.remote(max_restarts=-1)
class ShardActor:
    """Maps a shard into memory and answers calls. Ray starts it again when its process dies; it then opens the last commit.
    The first replica of a shard also writes it."""

    def __init__(self, directory: str, threads: int) -> None:
        # Nothing here may fail: Ray does not start an actor again whose constructor raised.
        _micpq.set_threads(threads)
        self.directory = Path(directory)
        self.opening, self.writing = threading.Lock(), threading.Lock()
        self.opened: _micpq.Shard | None = None
        self.model: Model | None = None

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

    def call(self, token: str, call: str) -> str:
        """One step of a request. All steps with one token see one commit."""
        return self.shard.call(token, call)

    def release(self, token: str) -> None:
        if self.opened is not None:
            self.opened.release(token)

    def kind(self) -> tuple[str, str, str, str | None]:
        """What documents are stored, how rerank vectors are, the language of keyword search, and how texts are split."""
        return self.shard.store, self.shard.rerank_vectors, self.shard.language, self.shard.chunk

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
        with self.writing:
            least = self.shard.next_sequence()
            if sequences and sequences[0] < least:
                return False, least
            self.shard.add(rows, embedded.rows, sequences, embedded.chunks)
            self.shard.commit()
            return True, embedded.cut

    def delete(self, ids: list[Id], filter: str | None, known: set[str] | None) -> tuple[bool, int]:
        """Deletes documents by id and by filter, commits, and returns true and how many there were."""
        with self.writing:
            deleted = self.shard.delete(ids, filter, known)
            self.shard.commit()
            return True, deleted

    def close(self) -> None:
        """Ends the writer, so that another process may write."""
        with self.writing:
            self.shard.close()


@ray.remote(max_restarts=-1, num_cpus=0)
class SequenceActor:
    """Gives out insertion sequences, so that all shards share one order. It stores nothing: when it starts, it begins far after
    every sequence that a shard has committed or a request may still hold."""

    #: Sequences that requests may hold while this actor starts again.
    GAP = 1 << 32

    def __init__(self, directories: list[str]) -> None:
        self.directories = directories
        self.next: int | None = None

    def reserve(self, count: int, least: int) -> int:
        """The first of so many sequences, from ``least`` up."""
        if self.next is None:
            restarted = ray.get_runtime_context().was_current_actor_reconstructed
            nexts = [_micpq.Shard.open(Path(directory)).next_sequence() for directory in self.directories]
            self.next = max(nexts) + (self.GAP if restarted else 0)
        first = max(self.next, least)
        self.next = first + count
        return first
