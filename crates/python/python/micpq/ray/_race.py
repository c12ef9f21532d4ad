"""Calls to replicas of which each needs one reply: a slow call is also sent to another replica."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from ._calls import outcomes

#: Seconds between two calls to a replica that is starting again.
PAUSE = 0.05

#: The longest wait for replies at a time.
_STEP = 1.0


@dataclass
class _Call:
    """The call of one shard."""

    #: Replicas that were not asked yet, the next one first.
    left: list[int]
    #: When it is sent to the next one.
    due: float
    #: Seconds between the last two sends. It doubles with every send.
    delay: float


class Race:
    """The calls of one step, by shard. ``send`` sends the call of a shard to a replica. What has no reply after ``hedge_after``
    seconds is sent to another replica, then to a third after twice as long, and so on; the first reply counts."""

    def __init__(self, send: Callable[[int, int], Any], hedge_after: float) -> None:
        self._send, self._hedge_after = send, hedge_after
        self._calls: dict[int, _Call] = {}
        self._pending: dict[Any, tuple[int, int]] = {}

    @property
    def open(self) -> set[int]:
        """Shards without a reply."""
        return set(self._calls)

    def start(self, shard: int, replicas: Sequence[int]) -> None:
        """Sends the call of a shard to the first of these replicas. The others are for when that is slow or absent."""
        self._calls[shard] = _Call(list(replicas), 0.0, self._hedge_after / 2)
        self._next(shard)

    def replies(self, until: float) -> list[tuple[int, int, Any]]:
        """What came from shards without a reply, ``(shard, replica, reply or error)``; nothing if nothing came in time."""
        while self._calls:
            now = time.monotonic()
            for shard in [shard for shard, call in self._calls.items() if call.left and call.due <= now]:
                self._next(shard)
            due = min((call.due for call in self._calls.values() if call.left), default=math.inf)
            wait = max(0.0, min(until - now, due - now, _STEP))
            # One reply for each shard ends the step; waiting for them one by one would cost a call each.
            done, _ = ray.wait(list(self._pending), num_returns=min(len(self._calls), len(self._pending)), timeout=wait)
            came = [(*self._pending.pop(reference), reference) for reference in done]
            if found := [(shard, replica, reference) for shard, replica, reference in came if shard in self._calls]:
                replies = outcomes([reference for _, _, reference in found])
                return [(shard, replica, reply) for (shard, replica, _), reply in zip(found, replies)]
            if time.monotonic() >= until:
                break
        return []

    def finish(self, shard: int) -> None:
        """Takes no more replies of a shard."""
        self._calls.pop(shard, None)

    def again(self, shard: int, replica: int) -> None:
        """After a replica was absent: sends the call to another one, or to that one again, which Ray starts meanwhile."""
        if shard not in self._calls:
            return
        if self._calls[shard].left:
            self._next(shard)
        else:
            time.sleep(PAUSE)
            self._pending[self._send(shard, replica)] = (shard, replica)

    def _next(self, shard: int) -> None:
        call = self._calls[shard]
        replica = call.left.pop(0)
        call.delay *= 2
        call.due = time.monotonic() + call.delay
        self._pending[self._send(shard, replica)] = (shard, replica)
