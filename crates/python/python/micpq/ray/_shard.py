"""A resident shard: the actor that has one shard open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray

from .. import _micpq
from .._inputs import Id
from .._model import Model


@ray.remote(max_restarts=-1)
class ShardActor:
    """Maps a shard into memory and answers calls. Ray starts it again when its process dies; it then opens the last commit.
    The first replica of a shard also writes it."""

    def __init__(self, directory: str, threads: int) -> None:
        _micpq.set_threads(threads)
        self.directory = directory
        self.shard = _micpq.Shard.open(Path(directory))
        self.model: Model | None = None

    def pid(self) -> int:
        return os.getpid()

    def call(self, token: str, call: str) -> str:
        """One step of a request. All steps with one token see one commit."""
        return self.shard.call(token, call)

    def release(self, token: str) -> None:
        self.shard.release(token)

    def kind(self) -> tuple[str, str, str]:
        """What documents are stored, how rerank vectors are, and the language of keyword search."""
        return self.shard.store, self.shard.rerank_vectors, self.shard.language

    def count(self, filter: str | None) -> int:
        return self.shard.count(filter)

    def get(self, id: Id) -> dict[str, Any] | None:
        return self.shard.get(id)

    def reload(self) -> bool:
        return self.shard.reload()

    def put(self, documents: bytes, sequences: list[int], embeddings: Any) -> int:
        """Adds or replaces documents, and commits. Returns the number of documents of the shard."""
        rows = _micpq.Documents.from_bytes(documents)
        if embeddings is None:
            if self.model is None:
                self.model = Model.load(Path(self.directory) / "model")
            embeddings = self.model._native.embeddings(rows)
        self.shard.add(rows, embeddings, sequences)
        return self.shard.commit()

    def delete(self, ids: list[Id]) -> int:
        """Deletes documents, commits, and returns how many there were."""
        deleted = self.shard.delete(ids)
        self.shard.commit()
        return deleted

    def close(self) -> None:
        """Ends the writer, so that another process may write."""
        self.shard.close()


@ray.remote(max_restarts=-1, num_cpus=0)
class SequenceActor:
    """Gives out insertion sequences, so that all shards share one order. It stores nothing: when it starts, it begins far after
    every sequence that a shard has committed or a request may still hold."""

    #: Sequences that requests may hold while this actor starts again.
    GAP = 1 << 32

    def __init__(self, directories: list[str]) -> None:
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        nexts = [_micpq.Shard.open(Path(directory)).next_sequence() for directory in directories]
        self.next = max(nexts) + (self.GAP if restarted else 0)
        self.frozen = False

    def reserve(self, count: int) -> int | None:
        """The first of so many sequences; None while shards are being moved."""
        if self.frozen:
            return None
        first = self.next
        self.next += count
        return first

    def freeze(self, frozen: bool) -> None:
        """Stops or allows changes."""
        self.frozen = frozen

