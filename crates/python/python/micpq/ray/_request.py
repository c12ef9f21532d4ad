"""One search over the shards of a fleet: which replica answers for which shard, and which shards are missing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from ._fleet import ABSENT, Fleet, Replaced, missing
from ._race import Race


class Retry(Exception):
    """A shard lost the commit that a request had begun with: the request begins again, without the shards that are missing."""

    def __init__(self, missing: Iterable[int] = ()) -> None:
        super().__init__()
        self.missing = frozenset(missing)


class Request:
    """Sends the calls of one request and waits for the replies. A slow call is also sent to another replica. Only the replica
    that answered a request's first call can answer its next ones; if it stalls for ``patience`` seconds, the request begins
    again with other replicas.

    :param gone: shards that are missing already, where that is allowed.
    """

    def __init__(
        self,
        fleet: Fleet,
        turn: int,
        hedge_after: float,
        patience: float,
        deadline: float,
        partial_timeout: float | None,
        gone: Iterable[int] = (),
    ) -> None:
        self.fleet, self.turn = fleet, turn
        self.hedge_after, self.patience, self.deadline = hedge_after, patience, deadline
        # Seconds for the rest of an answer without the shards that are missing; None if no shard may be missing.
        self.partial_timeout = partial_timeout
        self.token = uuid.uuid4().hex
        # The replica that answered first has the commit of this request.
        self.chosen: dict[int, int] = {}
        self.asked: set[tuple[int, int]] = set()
        self.missing: set[int] = set(gone)
        self.problem: BaseException | None = None

    def deliver(self, calls: list[tuple[int | None, str]]) -> Mapping[int, str]:
        """The replies to calls, ``(shard or None for all, call)``, by shard."""
        wanted: dict[int, str] = {}
        for shard, call in calls:
            for number in range(len(self.fleet)) if shard is None else [shard]:
                if number not in self.missing:
                    wanted[number] = call
        race = Race(lambda shard, replica: self._send(shard, replica, wanted[shard]), self.hedge_after)
        for shard in wanted:
            race.start(shard, self._replicas(shard))
        replies: dict[int, str] = {}
        stalled = time.monotonic() + self.patience
        while race.open:
            now = time.monotonic()
            if now > self.deadline:
                self._give_up(race.open)
                break
            if now > stalled and any(len(self.fleet.actors[shard]) > 1 for shard in race.open & set(self.chosen)):
                raise Retry
            for shard, replica, reply in race.replies(min(self.deadline, max(stalled, now + self.hedge_after))):
                self._take(race, replies, shard, replica, reply)
        return replies

    def _replicas(self, shard: int) -> list[int]:
        """The replicas that can answer for a shard, the first to be asked first."""
        if shard in self.chosen:
            return [self.chosen[shard]]
        count = len(self.fleet.actors[shard])
        return [(self.turn + i) % count for i in range(count)]

    def _take(self, race: Race, replies: dict[int, str], shard: int, replica: int, reply: Any) -> None:
        if shard in replies:
            return
        if isinstance(reply, ABSENT):
            self.problem = reply
            if self.fleet.replaced:
                raise Replaced from reply
            if self.chosen.get(shard) == replica:
                # The commit of this request went with the process.
                raise Retry from reply
            race.again(shard, replica)
        elif isinstance(reply, Exception):
            raise reply
        else:
            replies[shard] = reply
            self.chosen[shard] = replica
            race.finish(shard)

    def _send(self, shard: int, replica: int, call: str) -> Any:
        self.asked.add((shard, replica))
        return self.fleet.actors[shard][replica].call.remote(self.token, call, self.fleet.finished(shard, replica))

    def _give_up(self, shards: set[int]) -> None:
        if self.partial_timeout is None or len(self.missing | shards) == len(self.fleet):
            raise missing(shards, len(self.fleet), self.problem)
        self.fleet.remember(shards)
        if shards & set(self.chosen):
            # It has gone into the first part of the answer already.
            raise Retry(self.missing | shards)
        self.missing |= shards
        self.deadline = time.monotonic() + self.partial_timeout

    def release(self) -> None:
        """Lets the shards drop the commit of this request, with the next call that they get."""
        for shard, replica in self.asked:
            self.fleet.finish(shard, replica, self.token)
