"""One search over the shards of a fleet: which replica answers for which shard, and which shards are missing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError

from ._calls import get
from ._fleet import ABSENT, PAUSE, Fleet, Replaced, missing


class Retry(Exception):
    """A shard lost the commit that a request had begun with: the request begins again."""


class Request:
    """Sends the calls of one request and waits for the replies. A slow call is also sent to another replica. Only the replica
    that answered a request's first call can answer its next ones; if it stalls for ``patience`` seconds, the request begins
    again with other replicas."""

    def __init__(
        self, fleet: Fleet, turn: int, hedge_after: float, patience: float, deadline: float, partial_timeout: float | None
    ) -> None:
        self.fleet, self.turn = fleet, turn
        self.hedge_after, self.patience, self.deadline = hedge_after, patience, deadline
        # Seconds for the rest of an answer without the shards that are missing; None if no shard may be missing.
        self.partial_timeout = partial_timeout
        self.token = uuid.uuid4().hex
        # The replica that answered first has the commit of this request.
        self.chosen: dict[int, int] = {}
        self.asked: set[tuple[int, int]] = set()
        self.missing: set[int] = set()
        self.problem: BaseException | None = None

    def deliver(self, calls: list[tuple[int | None, str]]) -> Mapping[int, str]:
        """The replies to calls, ``(shard or None for all, call)``, by shard."""
        wanted: dict[int, str] = {}
        for shard, call in calls:
            for number in range(len(self.fleet)) if shard is None else [shard]:
                if number not in self.missing:
                    wanted[number] = call
        pending: dict[Any, tuple[int, int]] = {}
        for shard, call in wanted.items():
            self._send(pending, shard, self.chosen.get(shard, self.turn % len(self.fleet.actors[shard])), call)
        replies: dict[int, str] = {}
        hedged, stalled = False, time.monotonic() + self.patience
        while len(replies) < len(wanted):
            now, open_shards = time.monotonic(), set(wanted) - set(replies)
            if now > self.deadline:
                self._give_up(open_shards)
                break
            if now > stalled and any(len(self.fleet.actors[shard]) > 1 for shard in open_shards & set(self.chosen)):
                raise Retry
            wait = min(self.deadline - now, 1.0 if hedged else self.hedge_after, self.patience)
            done, _ = ray.wait(list(pending), num_returns=1, timeout=wait)
            for reference in done:
                self._take(replies, pending, wanted, reference)
            if not done and not hedged:
                hedged = True
                for shard in open_shards - set(self.chosen):
                    self._hedge(pending, shard, wanted[shard])
        return replies

    def _take(self, replies: dict[int, str], pending: dict[Any, tuple[int, int]], wanted: dict[int, str], reference: Any) -> None:
        shard, replica = pending.pop(reference)
        if shard in replies:
            return
        try:
            replies[shard] = get(reference)
            self.chosen[shard] = replica
        except ABSENT as problem:
            self.problem = problem
            if self.fleet.replaced:
                raise Replaced from problem
            if self.chosen.get(shard) == replica:
                # The commit of this request went with the process.
                raise Retry from problem
            time.sleep(PAUSE)
            # Ray starts it again; another replica may answer before.
            if not self._hedge(pending, shard, wanted[shard]):
                self._send(pending, shard, replica, wanted[shard])

    def _send(self, pending: dict[Any, tuple[int, int]], shard: int, replica: int, call: str) -> None:
        self.asked.add((shard, replica))
        pending[self.fleet.actors[shard][replica].call.remote(self.token, call)] = (shard, replica)

    def _hedge(self, pending: dict[Any, tuple[int, int]], shard: int, call: str) -> bool:
        """Sends a call to a replica that was not asked, if there is one."""
        for replica in range(len(self.fleet.actors[shard])):
            if (shard, replica) not in self.asked:
                self._send(pending, shard, replica, call)
                return True
        return False

    def _give_up(self, shards: set[int]) -> None:
        if self.partial_timeout is None or len(self.missing | shards) == len(self.fleet):
            raise missing(shards, len(self.fleet), self.problem)
        if shards & set(self.chosen):
            # It has gone into the first part of the answer already.
            raise Retry
        self.missing |= shards
        self.deadline = time.monotonic() + self.partial_timeout

    def release(self) -> None:
        """Lets the shards drop the commit of this request."""
        for shard, replica in self.asked:
            try:
                self.fleet.actors[shard][replica].release.remote(self.token)
            except RayActorError:
                pass
