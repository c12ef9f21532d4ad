"""Search over resident shards: calls to actors, replicas, hedged requests, live changes."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

from .. import _inputs, _micpq
from .._index import Hits, Index
from .._inputs import Data, Id
from .._model import Model
from ..errors import ArgumentError, BusyError, ConfigError, Error
from ._calls import get
from ._manifest import Manifest
from ._shard import SequenceActor, ShardActor

_GONE = (RayActorError, ActorDiedError, ActorUnavailableError)


class ShardsMissing(Error):
    """Shards did not answer in time. The message names them."""


class _Retry(Exception):
    """A shard lost the commit that a request had begun with: the request begins again."""


class _Fleet:
    """The actors of one generation of shards: ``actors[shard][replica]``."""

    def __init__(self, out: Path, manifest: Manifest, replicas: int, cpus: float, threads: int) -> None:
        self.manifest, self.directories = manifest, [str(d) for d in manifest.directories(out)]
        options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", "max_concurrency": 8}
        self.actors = [
            [ShardActor.options(**options).remote(directory, threads) for _ in range(replicas)]
            for directory in self.directories
        ]
        self.sequences = SequenceActor.remote(self.directories)

    def everyone(self) -> list[Any]:
        return [actor for replicas in self.actors for actor in replicas]

    def stop(self) -> None:
        for actor in [*self.everyone(), self.sequences]:
            ray.kill(actor)


class Searcher(Index):
    """Searches an index in shards as one index: the same answers, in the same order. It takes the calls of
    :class:`micpq.Index` that search and change documents.

    :param out: the folder of shards, which all machines see.
    :param replicas: actors per shard.
    :param cpus_per_shard: CPUs that Ray reserves for an actor.
    :param threads: threads of an actor.
    :param hedge_after: seconds after which a call is also sent to another replica.
    :param timeout: seconds after which a shard that does not answer is missing.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        replicas: int = 1,
        *,
        cpus_per_shard: float = 0.1,
        threads: int = 1,
        hedge_after: float = 0.05,
        timeout: float = 30.0,
    ) -> None:
        if _inputs.count(replicas, "replicas") == 0:
            raise ConfigError("replicas is 0; give at least 1")
        self._out = _inputs.path(out, "out").absolute()
        self._settings = (replicas, cpus_per_shard, threads)
        self._hedge_after, self._timeout = hedge_after, timeout
        self._encoder = None
        self._refreshing = threading.Lock()
        self._turn = itertools.count()
        self._seen = self._stamp()
        manifest = Manifest.read(self._out)
        self._fleet: _Fleet | None = _Fleet(self._out, manifest, *self._settings)
        self._model = Model.load(self._out / manifest.shards[0]["name"] / "model")
        store, rerank_vectors, language = self._ask_first(0, "kind")
        self._merger = _micpq.Merger(self._model._native, rerank_vectors, store, language)

    # Reading

    @property
    def path(self) -> str:
        """The folder of shards."""
        return str(self._out)

    @property
    def model(self) -> Model:
        """The model that computes the codes."""
        assert self._model is not None
        return self._model

    @property
    def closed(self) -> bool:
        """Whether the actors were stopped."""
        return self._fleet is None

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self._open().actors)

    def __len__(self) -> int:
        return self.count()

    def count(self, filter: str | None = None) -> int:
        """Counts the documents, or those that match a filter."""
        self.refresh()
        counts, refused = [], None
        for shard in range(self.shards):
            try:
                counts.append(self._ask_first(shard, "count", filter))
            except ConfigError as problem:
                # A shard may lack an attribute that another one has.
                refused = problem
        if refused is not None and not counts:
            raise refused
        return sum(counts)

    def get(self, id: Id) -> dict[str, Any] | None:
        """The document with this id, with its code, or None."""
        found: dict[str, Any] | None = self._ask_first(_micpq.route(id, self.shards), "get", id)
        return found

    def search(self, query: Any = None, k: int = 10, *, allow_partial: bool = False, **options: Any) -> Hits:
        """Finds the documents nearest to a query; see :meth:`micpq.Index.search`.

        :param allow_partial: answer without the shards that do not answer in time. ``hits.missing`` names them.
        """
        if query is None and options.get("like") is None:
            raise ConfigError("search needs a query: a text, a vector, or like=ID")
        examples = self._query(query, options.pop("like", None), options.pop("keywords", None))
        return self._search([examples], {"k": _inputs.count(k, "k"), **options}, allow_partial)[0]

    def search_many(self, queries: Any, k: int = 10, *, allow_partial: bool = False, **options: Any) -> list[Hits]:
        """Answers many queries at once: texts, or vectors ``[n, width]``."""
        if isinstance(queries, (str, bytes)) or not isinstance(queries, Iterable):
            raise ArgumentError(f"queries must be a list of texts or an array of vectors, not {type(queries).__name__}")
        prepared = [self._query(query, None, None) for query in queries]
        return self._search(prepared, {"k": _inputs.count(k, "k"), **options}, allow_partial)

    def _search(self, queries: list[Any], options: dict[str, Any], allow_partial: bool) -> list[Hits]:
        from .._index import _hits

        settings = _inputs.options(options)
        deadline = time.monotonic() + self._timeout
        while True:
            self.refresh()
            request = _Request(self._open(), next(self._turn), self._hedge_after, deadline, allow_partial)
            try:
                answers = [_hits(answer) for answer in self._merger.search(queries, settings, request.deliver)]
            except (_Retry, BusyError):
                if time.monotonic() > deadline:
                    raise ShardsMissing("the shards changed or restarted too often to answer; ask again") from None
                continue
            finally:
                request.release()
            for hits in answers:
                hits.missing = sorted(request.missing)
            return answers

    # Following the folder

    def _stamp(self) -> tuple[int, int]:
        info = os.stat(Manifest.path(self._out))
        return info.st_mtime_ns, info.st_ino

    def refresh(self) -> bool:
        """Switches to the shards of a new manifest, if there is one. Every search does it first."""
        if self._stamp() == self._seen:
            return False
        with self._refreshing:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            old, manifest = self._open(), Manifest.read(self._out)
            if manifest.shards == old.manifest.shards:
                self._seen = stamp
                return False
            new = _Fleet(self._out, manifest, *self._settings)
            ray.get([actor.pid.remote() for actor in new.everyone()])
            self._fleet, self._seen = new, stamp
            # Requests that the old actors are answering fail and begin again on the new ones.
            old.stop()
            return True

    # Changing

    def add(self, data: Data, *, ids: Any = None, embeddings: Any = None, **corpus: Any) -> int:
        """Adds documents, or replaces those with the same ids. Each goes to the shard that owns its id. Returns when every
        shard has committed; a document is then on disk and found by the next search."""
        documents = _inputs.documents(data, corpus, ids=ids)
        count = documents.count()
        if count is None:
            raise ArgumentError("add takes rows or a table; build reads files")
        rows = None if embeddings is None else _inputs.vectors(embeddings, width=self.model.inputs, rows=count)
        self.refresh()
        owners = documents.routes(self.shards)
        by_shard: dict[int, list[int]] = {}
        for position, owner in enumerate(owners):
            by_shard.setdefault(owner, []).append(position)
        packed = {shard: documents.to_bytes(positions) for shard, positions in by_shard.items()}
        vectors = {shard: None if rows is None else rows[positions] for shard, positions in by_shard.items()}

        def put(shard: int, first: int) -> Any:
            sequences = [first + position for position in by_shard[shard]]
            return self._open().actors[shard][0].put.remote(packed[shard], sequences, vectors[shard])

        self._write(set(by_shard), count, put)
        return count

    def delete(self, ids: Id | Iterable[Id] | None = None, *, filter: str | None = None) -> int:
        """Deletes documents by id, and returns how many there were. Returns when every shard has committed."""
        if filter is not None:
            raise ConfigError("delete takes ids in a folder of shards; search for what matches and delete its ids")
        if ids is None:
            raise ConfigError("delete needs ids")
        by_shard: dict[int, list[Id]] = {}
        self.refresh()
        for id in [ids] if isinstance(ids, (str, int)) else ids:
            by_shard.setdefault(_micpq.route(id, self.shards), []).append(id)
        return sum(self._write(set(by_shard), 0, lambda shard, _: self._open().actors[shard][0].delete.remote(by_shard[shard])))

    def _write(self, shards: set[int], count: int, send: Any) -> list[int]:
        """Sends a change to shards until each has committed. A shard that died gets it again with new sequences: documents that
        it had committed are replaced by the same ones."""
        fleet, deadline = self._open(), time.monotonic() + self._timeout
        results: list[int] = []
        left = set(shards)
        while left:
            first = ray.get(fleet.sequences.reserve.remote(count))
            if first is None:
                raise BusyError("the shards are being moved; write again when that is done")
            sent = {shard: send(shard, first) for shard in left}
            for shard, reference in sent.items():
                try:
                    results.append(get(reference, max(0.1, deadline - time.monotonic())))
                    left.discard(shard)
                except (*_GONE, ray.exceptions.GetTimeoutError) as problem:
                    if time.monotonic() > deadline:
                        raise ShardsMissing(f"shards {sorted(left)} did not commit in {self._timeout} s: {problem}") from None
                    time.sleep(0.05)
        replicas = [actor.reload.remote() for shard in shards for actor in fleet.actors[shard][1:]]
        # A replica that is starting opens the last commit by itself.
        for reference in replicas:
            try:
                ray.get(reference, timeout=max(0.1, deadline - time.monotonic()))
            except (*_GONE, ray.exceptions.GetTimeoutError):
                pass
        return results

    def rebalance(self, shards: int) -> None:
        """Moves all documents into another number of shards. The new shards are built beside the old ones while searches go on,
        and the manifest is swapped in one step. Changes are refused meanwhile."""
        from ._rebalance import rebalance

        fleet = self._open()
        ray.get(fleet.sequences.freeze.remote(True))
        try:
            ray.get([replicas[0].close.remote() for replicas in fleet.actors])
            old = rebalance(self._out, _inputs.count(shards, "shards"))
            self.refresh()
        except BaseException:
            ray.get(fleet.sequences.freeze.remote(False))
            raise
        old.remove()

    # Asking actors

    def _open(self) -> _Fleet:
        if self._fleet is None:
            from ..errors import ClosedError

            raise ClosedError(f"the searcher of {self._out} is closed; open it again")
        return self._fleet

    def _ask_first(self, shard: int, method: str, *args: Any) -> Any:
        """Asks a replica of a shard, the next one if it is gone, until the time is up."""
        deadline = time.monotonic() + self._timeout
        for turn in itertools.count():
            replicas = self._open().actors[shard]
            try:
                return get(getattr(replicas[turn % len(replicas)], method).remote(*args), self._timeout)
            except (*_GONE, ray.exceptions.GetTimeoutError):
                if time.monotonic() > deadline:
                    raise ShardsMissing(f"shard {shard} did not answer in {self._timeout} s") from None
                time.sleep(0.05)

    # The rest

    def info(self) -> dict[str, Any]:
        """Counts of documents, of shards and of replicas."""
        return {"documents": len(self), "shards": self.shards, "replicas": self._settings[0], "bits": self.model.bits}

    def reload(self) -> bool:
        """Switches all replicas to the latest commits, and to a new manifest if there is one."""
        changed = self.refresh()
        return any(ray.get([actor.reload.remote() for actor in self._open().everyone()])) or changed

    def close(self) -> None:
        """Stops the actors. What they acknowledged is on disk."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.stop()

    def __del__(self) -> None:
        # Actors whose handles are gone are stopped by Ray.
        self._fleet = None

    def __repr__(self) -> str:
        return f"Searcher({self.path!r}, {'closed' if self.closed else f'{self.shards} shards'})"


def _refused(name: str) -> Any:
    def method(self: Searcher, *args: Any, **options: Any) -> Any:
        raise ConfigError(f"{name} works on one shard: open it with micpq.open")

    method.__doc__ = f"``{name}`` works on one shard: open it with ``micpq.open``."
    return method


for _name in ("compact", "verify", "backup", "codes", "to_arrow", "export"):
    setattr(Searcher, _name, _refused(_name))


class _Request:
    """One request: which replica answers for which shard, and which shards are missing."""

    def __init__(self, fleet: _Fleet, turn: int, hedge_after: float, deadline: float, allow_partial: bool) -> None:
        self.fleet, self.turn = fleet, turn
        self.hedge_after, self.deadline, self.allow_partial = hedge_after, deadline, allow_partial
        self.token = uuid.uuid4().hex
        # The replica that answered first has the commit of this request.
        self.chosen: dict[int, int] = {}
        self.asked: set[tuple[int, int]] = set()
        self.missing: set[int] = set()

    def deliver(self, calls: list[tuple[int | None, str]]) -> Mapping[int, str]:
        """Sends calls to shards and waits for the replies."""
        wanted: dict[int, str] = {}
        for shard, call in calls:
            for number in range(len(self.fleet.actors)) if shard is None else [shard]:
                if number not in self.missing:
                    wanted[number] = call
        pending: dict[Any, tuple[int, int]] = {}
        for shard, call in wanted.items():
            self._send(pending, shard, self.chosen.get(shard, self.turn % len(self.fleet.actors[shard])), call)
        replies: dict[int, str] = {}
        hedged = False
        while len(replies) < len(wanted):
            now = time.monotonic()
            if now > self.deadline:
                self._give_up(set(wanted) - set(replies))
                break
            wait = min(self.deadline - now, 1.0 if hedged else self.hedge_after)
            done, _ = ray.wait(list(pending), num_returns=1, timeout=wait) if pending else ([], [])
            for reference in done:
                shard, replica = pending.pop(reference)
                self._take(replies, pending, wanted, reference, shard, replica)
            if not done and not hedged:
                hedged = True
                for shard in set(wanted) - set(replies) - set(self.chosen):
                    self._send_other(pending, shard, wanted[shard])
        return replies

    def _take(self, replies: Any, pending: Any, wanted: Any, reference: Any, shard: int, replica: int) -> None:
        if shard in replies:
            return
        try:
            replies[shard] = get(reference)
            self.chosen[shard] = replica
        except _GONE as problem:
            if self.chosen.get(shard) == replica:
                # The commit of this request went with the process.
                raise _Retry from problem
            if not any(waiting == shard for waiting, _ in pending.values()):
                time.sleep(0.02)
                self._send_other(pending, shard, wanted[shard], replica)

    def _send(self, pending: Any, shard: int, replica: int, call: str) -> None:
        self.asked.add((shard, replica))
        pending[self.fleet.actors[shard][replica].call.remote(self.token, call)] = (shard, replica)

    def _send_other(self, pending: Any, shard: int, call: str, gone: int | None = None) -> None:
        """Sends a call to a replica that was not asked, or again to the one that is gone: Ray starts it again."""
        replicas = range(len(self.fleet.actors[shard]))
        others = [r for r in replicas if (shard, r) not in self.asked]
        if others:
            self._send(pending, shard, others[0], call)
        elif gone is not None:
            self._send(pending, shard, (gone + 1) % len(replicas), call)

    def _give_up(self, shards: set[int]) -> None:
        if shards & set(self.chosen):
            raise _Retry
        if not self.allow_partial or len(self.missing | shards) == len(self.fleet.actors):
            names = ", ".join(str(shard) for shard in sorted(shards))
            raise ShardsMissing(f"shards {names} of {len(self.fleet.actors)} did not answer in time; ask again, or allow partial answers")
        self.missing |= shards

    def release(self) -> None:
        """Lets the shards drop the commit of this request."""
        for shard, replica in self.asked:
            try:
                self.fleet.actors[shard][replica].release.remote(self.token)
            except _GONE:
                pass
