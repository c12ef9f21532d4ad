"""The actors of one generation of shards, and calls to them."""

from __future__ import annotations

import collections
import itertools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from ..errors import Error
from ._calls import get
from ._manifest import Manifest
from ._race import PAUSE, Race
from ._shard import SequenceActor, ShardActor, ShardClosed, ShardMoved

_LOG = logging.getLogger("micpq.ray")

#: A replica that gives no answer now, and perhaps later.
ABSENT = (RayActorError, ShardClosed)

#: Seconds in which the actors of a fleet must have started.
START_SECONDS = 120.0

#: Seconds for which requests that may do without a shard do not wait for one that gave no answer.
DEAD_SECONDS = 5.0

#: Seconds that a change waits for the other replicas to show it. One that is stopped shows it when it goes on.
RELOAD_SECONDS = 5.0


class ShardsMissing(Error):
    """Shards did not answer in time. The message names them."""


class Replaced(Exception):
    """A new manifest has taken the place of this generation: the request begins again."""


def missing(shards: set[int], of: int, problem: BaseException | None) -> ShardsMissing:
    names, reason = ", ".join(str(shard) for shard in sorted(shards)), f" ({problem})" if isinstance(problem, ShardClosed) else ""
    return ShardsMissing(f"shards {names} of {of} did not answer in time{reason}; ask again, or allow partial answers")


class Fleet:
    """The actors of one generation of shards: ``actors[shard][replica]``. Ray stops them when nobody holds the fleet.

    :param follow: seconds between two looks of an actor for commits of other processes; None for never.
    """

    def __init__(
        self,
        out: Path,
        manifest: Manifest,
        replicas: int,
        cpus: float,
        threads: int,
        hedge_after: float = PAUSE,
        follow: float | None = None,
    ) -> None:
        self.out, self.manifest, self.replaced = out, manifest, False
        self.hedge_after = hedge_after
        directories = [str(directory) for directory in manifest.directories(out)]
        options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", "max_concurrency": 8}
        self.actors = [
            [ShardActor.options(**options).remote(directory, threads, follow) for _ in range(replicas)] for directory in directories
        ]
        self.sequences = SequenceActor.remote(str(out), directories)
        self._turn = itertools.count()
        # By shard: until when nobody waits for it who may do without.
        self._dead: dict[int, float] = {}
        # By shard and replica: requests whose commit it may drop.
        self._finished: dict[tuple[int, int], collections.deque[str]] = collections.defaultdict(collections.deque)

    def __len__(self) -> int:
        return len(self.actors)

    def everyone(self) -> list[Any]:
        return [actor for replicas in self.actors for actor in replicas]

    def started(self, partial_timeout: float | None = None) -> tuple[str, str, str, str | None]:
        """Waits until every shard has a replica that answers. Returns what documents are stored, how rerank vectors are, the
        language of keyword search, and how texts are split. A shard that cannot be opened is an error at once; with
        ``partial_timeout`` the others are waited for so long, and one must answer."""
        everyone = {shard: () for shard in range(len(self))}
        if partial_timeout is None:
            kinds = self.ask("kind", everyone, time.monotonic() + START_SECONDS, (RayActorError,))
        else:
            kinds = self.ask("kind", everyone, time.monotonic() + partial_timeout, partial=True)
            self.remember(set(everyone) - set(kinds))
            if not kinds:
                raise missing(set(everyone), len(self), None)
        kind: tuple[str, str, str, str | None] = kinds[min(kinds)]
        return kind

    def stop(self) -> None:
        for actor in [*self.everyone(), self.sequences]:
            ray.kill(actor)

    # Shards that give no answer

    def remember(self, shards: set[int]) -> None:
        """Notes shards that gave no answer."""
        self._dead |= {shard: time.monotonic() + DEAD_SECONDS for shard in shards}

    def dead(self) -> set[int]:
        """Shards that gave no answer a moment ago. Never all of them."""
        now = time.monotonic()
        found = {shard for shard, until in self._dead.items() if until > now}
        return found if len(found) < len(self) else set()

    def check(self, problem: BaseException | None, shards: set[int], deadline: float) -> None:
        """After a shard gave no answer: raises if nobody should wait for one any more."""
        if self.replaced:
            raise Replaced
        if time.monotonic() > deadline:
            raise missing(shards, len(self), problem)
        time.sleep(PAUSE)

    # Requests that are done

    def finish(self, shard: int, replica: int, token: str) -> None:
        self._finished[shard, replica].append(token)

    def finished(self, shard: int, replica: int) -> list[str]:
        """Takes the requests whose commit a replica may drop. They go with its next call: a call of their own would cost as much as
        a search."""
        tokens, found = self._finished[shard, replica], list[str]()
        while tokens:
            found.append(tokens.popleft())
        return found

    # Calls

    def ask(
        self,
        method: str,
        arguments: Mapping[int, tuple[Any, ...]],
        deadline: float,
        absent_errors: tuple[type[BaseException], ...] = ABSENT,
        partial: bool = False,
    ) -> dict[int, Any]:
        """Calls a method of one replica of each shard, of another one too if that is slow or absent. With ``partial``, the answers
        that come in time; otherwise all of them, or an error."""
        race = Race(lambda shard, replica: getattr(self.actors[shard][replica], method).remote(*arguments[shard]), self.hedge_after)
        turn = next(self._turn)
        for shard in arguments:
            count = len(self.actors[shard])
            race.start(shard, [(turn + i) % count for i in range(count)])
        answers: dict[int, Any] = {}
        while race.open and time.monotonic() < deadline:
            for shard, replica, answer in race.replies(deadline):
                if shard in answers:
                    continue
                if isinstance(answer, absent_errors):
                    if self.replaced:
                        raise Replaced from answer
                    race.again(shard, replica)
                elif isinstance(answer, Exception):
                    raise answer
                else:
                    answers[shard] = answer
                    race.finish(shard)
        if race.open and not partial:
            raise missing(race.open, len(self), None)
        return answers

    def write(self, method: str, arguments: Mapping[int, tuple[Any, ...]], count: int, deadline: float) -> dict[int, Any]:
        """Sends a change to the first replica of each shard until it has committed, and returns what each returned.
        A shard that died gets the change again: documents that it had committed are replaced by the same ones. ``count``
        sequences are reserved, and the first is the last argument."""
        results: dict[int, Any] = {}
        least = 0
        try:
            while left := {shard: given for shard, given in arguments.items() if shard not in results}:
                absent: BaseException | None = None
                try:
                    first = get(self.sequences.reserve.remote(count, least), max(0.1, deadline - time.monotonic())) if count else 0
                    sent = {s: getattr(self.actors[s][0], method).remote(*_numbered(given, first, count)) for s, given in left.items()}
                except (RayActorError, GetTimeoutError) as problem:
                    absent, sent = problem, {}
                except Error as problem:
                    raise self._moved(problem) from None
                failed: Exception | None = None
                for shard, reference in sent.items():
                    try:
                        done, number = get(reference, max(0.1, deadline - time.monotonic()))
                        if done:
                            results[shard] = number
                        else:
                            least = max(least, number)
                    except (*ABSENT, GetTimeoutError) as problem:
                        absent = problem
                    except Exception as problem:
                        # The other shards are committing: what they return is waited for.
                        failed = failed or problem
                if failed is not None:
                    raise self._moved(failed)
                if absent is not None:
                    self.check(absent, set(left) - set(results), deadline)
        finally:
            # Those that committed answer alike, whatever became of the others.
            self._reload(set(results), deadline)
        return results

    def reload(self, deadline: float) -> bool:
        """Switches all replicas to the latest commits. One that is starting opens it by itself."""
        changed = False
        for reference in [actor.reload.remote() for actor in self.everyone()]:
            try:
                changed |= get(reference, max(0.1, deadline - time.monotonic()))
            except ABSENT:
                changed = True
            except GetTimeoutError as problem:
                _LOG.warning("a replica did not look for changes in time: %s", problem)
        return changed

    def _moved(self, problem: Exception) -> Exception:
        """What a failed change is: of shards that another manifest has replaced, or the problem."""
        moved = isinstance(problem, ShardMoved) or Manifest.read(self.out).shards != self.manifest.shards
        return Replaced() if moved else problem

    def _reload(self, shards: set[int], deadline: float) -> None:
        """Shows the other replicas the new commit. One that is starting opens it by itself, and one that cannot read it is started
        again. The change is committed, so nothing of this is an error."""
        sent = {actor.reload.remote(): actor for shard in shards for actor in self.actors[shard][1:]}
        if not sent:
            return
        wait = max(0.1, min(deadline - time.monotonic(), RELOAD_SECONDS))
        done, _ = ray.wait(list(sent), num_returns=len(sent), timeout=wait)
        for reference in done:
            try:
                get(reference)
            except ABSENT:
                pass
            except Exception:
                _LOG.exception("a replica cannot show a change; it is started again")
                ray.kill(sent[reference], no_restart=False)


def _numbered(given: tuple[Any, ...], first: int, count: int) -> tuple[Any, ...]:
    """The arguments of ``put`` with insertion sequences that begin with ``first``."""
    if count == 0:
        return given
    documents, offsets, embedded = given
    return documents, [first + offset for offset in offsets], embedded
