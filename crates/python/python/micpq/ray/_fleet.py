"""The actors of one generation of shards, and calls to them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from ..errors import Error
from ._calls import get
from ._manifest import Manifest
from ._shard import SequenceActor, ShardActor, ShardClosed

#: A replica that gives no answer now, and perhaps later.
ABSENT = (RayActorError, ShardClosed)

#: Seconds in which the actors of a fleet must have started.
START_SECONDS = 120.0

#: Seconds between two calls to a replica that is starting again.
PAUSE = 0.05


class ShardsMissing(Error):
    """Shards did not answer in time. The message names them."""


class Replaced(Exception):
    """A new manifest has taken the place of this generation: the request begins again."""


def missing(shards: set[int], of: int, problem: BaseException | None) -> ShardsMissing:
    names, reason = ", ".join(str(shard) for shard in sorted(shards)), f" ({problem})" if isinstance(problem, ShardClosed) else ""
    return ShardsMissing(f"shards {names} of {of} did not answer in time{reason}; ask again, or allow partial answers")


class Fleet:
    """The actors of one generation of shards: ``actors[shard][replica]``. Ray stops them when nobody holds the fleet."""

    def __init__(self, out: Path, manifest: Manifest, replicas: int, cpus: float, threads: int) -> None:
        self.manifest, self.replaced = manifest, False
        directories = [str(directory) for directory in manifest.directories(out)]
        options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", "max_concurrency": 8}
        self.actors = [
            [ShardActor.options(**options).remote(directory, threads) for _ in range(replicas)] for directory in directories
        ]
        self.sequences = SequenceActor.remote(directories)

    def __len__(self) -> int:
        return len(self.actors)

    def everyone(self) -> list[Any]:
        return [actor for replicas in self.actors for actor in replicas]

    def started(self) -> tuple[str, str, str, str | None]:
        """Waits until every shard has a replica that answers. Returns what documents are stored, how rerank vectors are, the
        language of keyword search, and how texts are split. A shard that cannot be opened is an error at once."""
        everyone = {shard: () for shard in range(len(self))}
        kinds = self.ask("kind", everyone, time.monotonic() + START_SECONDS, (RayActorError,))
        kind: tuple[str, str, str, str | None] = kinds[0]
        return kind

    def stop(self) -> None:
        for actor in [*self.everyone(), self.sequences]:
            ray.kill(actor)

    def check(self, problem: BaseException | None, shards: set[int], deadline: float) -> None:
        """After a shard gave no answer: raises if nobody should wait for one any more."""
        if self.replaced:
            raise Replaced
        if time.monotonic() > deadline:
            raise missing(shards, len(self), problem)
        time.sleep(PAUSE)

    def ask(
        self,
        method: str,
        arguments: Mapping[int, tuple[Any, ...]],
        deadline: float,
        absent_errors: tuple[type[BaseException], ...] = ABSENT,
    ) -> dict[int, Any]:
        """Calls a method of one replica of each shard, of the next replica if that one is absent."""
        answers: dict[int, Any] = {}
        for turn in itertools.count():
            left = {shard: given for shard, given in arguments.items() if shard not in answers}
            sent = {}
            for shard, given in left.items():
                replicas = self.actors[shard]
                sent[shard] = getattr(replicas[turn % len(replicas)], method).remote(*given)
            absent: BaseException | None = None
            for shard, reference in sent.items():
                # Time is left for the other replicas.
                share = max(1, len(self.actors[shard]) - turn)
                try:
                    answers[shard] = get(reference, max(0.1, (deadline - time.monotonic()) / share))
                except (*absent_errors, GetTimeoutError) as problem:
                    absent = problem
            if absent is None:
                return answers
            self.check(absent, set(arguments) - set(answers), deadline)
        raise AssertionError("the loop ends by itself")

    def write(self, method: str, arguments: Mapping[int, tuple[Any, ...]], count: int, deadline: float) -> dict[int, Any]:
        """Sends a change to the first replica of each shard until it has committed, and returns what each returned.
        A shard that died gets the change again: documents that it had committed are replaced by the same ones. ``count``
        sequences are reserved, and the first is the last argument."""
        results: dict[int, Any] = {}
        least = 0
        while left := {shard: given for shard, given in arguments.items() if shard not in results}:
            absent: BaseException | None = None
            try:
                first = get(self.sequences.reserve.remote(count, least), max(0.1, deadline - time.monotonic())) if count else 0
                sent = {shard: getattr(self.actors[shard][0], method).remote(*_numbered(given, first, count)) for shard, given in left.items()}
            except (RayActorError, GetTimeoutError) as problem:
                absent, sent = problem, {}
            for shard, reference in sent.items():
                try:
                    done, number = get(reference, max(0.1, deadline - time.monotonic()))
                    if done:
                        results[shard] = number
                    else:
                        least = max(least, number)
                except (*ABSENT, GetTimeoutError) as problem:
                    absent = problem
            if absent is not None:
                self.check(absent, set(left) - set(results), deadline)
        self._reload(set(arguments), deadline)
        return results

    def _reload(self, shards: set[int], deadline: float) -> None:
        """Shows the other replicas the new commit. One that is starting opens it by itself."""
        for reference in [actor.reload.remote() for shard in shards for actor in self.actors[shard][1:]]:
            try:
                get(reference, max(0.1, deadline - time.monotonic()))
            except (*ABSENT, GetTimeoutError):
                pass


def _numbered(given: tuple[Any, ...], first: int, count: int) -> tuple[Any, ...]:
    """The arguments of ``put`` with insertion sequences that begin with ``first``."""
    if count == 0:
        return given
    documents, offsets, embedded = given
    return documents, [first + offset for offset in offsets], embedded
