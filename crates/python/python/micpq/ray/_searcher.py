"""Search over resident shards: calls to actors, replicas, hedged requests, live changes."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import GetTimeoutError

from .. import _inputs, _micpq
from .._index import Hits, Index, _hits
from .._inputs import Data, Id
from .._model import Model
from ..errors import ArgumentError, BusyError, ClosedError, ConfigError
from ._calls import get
from ._fleet import ABSENT, Fleet, Replaced, ShardsMissing
from ._manifest import Manifest
from ._parts import Embedded
from ._race import PAUSE
from ._request import Request, Retry

__all__ = ["Searcher", "ShardsMissing"]

T = TypeVar("T")

#: Sends calls ``(shard or None for all, call)`` and returns the replies by shard.
Deliver = Callable[[list[tuple[int | None, str]]], Mapping[int, str]]

#: Seconds that a measurement of recall may take.
RECALL_SECONDS = 3600.0


class Searcher(Index):
    """Searches an index in shards as one index: the same answers, in the same order. It takes the calls of
    :class:`micpq.Index` that search and change documents. Any number of threads may use it, and any number of searchers may
    search one folder; a shard is written by one of them, from its first change there until it is closed.

    :param out: the folder of shards, which all machines see.
    :param replicas: actors per shard.
    :param cpus_per_shard: CPUs that Ray reserves for an actor.
    :param threads: threads of an actor.
    :param hedge_after: seconds after which a call is also sent to another replica.
    :param timeout: seconds after which a shard that does not answer is missing.
    :param allow_partial: open, and by default answer searches, without the shards that do not answer in time.
    :param follow: seconds between two looks for changes of other processes. Default: only :meth:`reload` looks. A new manifest is
        followed in any case.
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
        allow_partial: bool = False,
        follow: float | None = None,
    ) -> None:
        self._fleet: Fleet | None = None
        if _inputs.count(replicas, "replicas") == 0:
            raise ConfigError("replicas is 0; give at least 1")
        self._out = _inputs.path(out, "out").absolute()
        self._settings = (replicas, cpus_per_shard, threads, hedge_after, follow)
        self._hedge_after, self._timeout, self._allow_partial = hedge_after, timeout, allow_partial
        self._encoder = None
        self._refreshing = threading.Lock()
        # The start of the shards of a new manifest, while it lasts.
        self._starting: Future[None] | None = None
        self._turn = itertools.count()
        self._moving = False
        manifest = Manifest.read(self._out)
        self._seen = self._stamp()
        own = self._out / manifest.shards[0]["name"] / "model"
        self._model = Model.load(own if own.exists() else self._out / "model")
        self._fleet = Fleet(self._out, manifest, *self._settings)
        try:
            store, rerank_vectors, language, self._chunk = self._fleet.started(timeout if allow_partial else None)
        except BaseException:
            self.close()
            raise
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
        """Number of shards of the manifest. Waits until those of a new one have started."""
        self.refresh()
        return len(self._open())

    def __len__(self) -> int:
        return self.count()

    def count(self, filter: str | None = None) -> int:
        """Counts the documents, or those that match a filter."""
        known = None if filter is None else self._attributes()
        return sum(self._of_all("count", filter, known).values())

    def _attributes(self) -> set[str] | None:
        """Names of the attributes of all shards: a filter may name no other. None if there are no documents."""
        answers = self._of_all("attributes").values()
        return {name for _, names in answers for name in names} if any(count for count, _ in answers) else None

    def get(self, id: Id) -> dict[str, Any] | None:
        """The document with this id, with its code, or None."""
        found = self._get([id])[0]
        if found is not None:
            found.pop("sequence", None)
        return found

    def _get(self, ids: list[Id]) -> list[dict[str, Any] | None]:
        """Documents with their codes and sequences, in the order of the ids."""
        answers = self._ask("get", lambda shards: {n: ([ids[i] for i in at],) for n, at in _by_shard(ids, shards).items()})
        # The shards may have been moved between the two calls, so the documents are found by their ids.
        found = {str(document["id"]): document for answer in answers.values() for document in answer if document is not None}
        return [found.get(str(id)) for id in ids]

    def search(self, query: Any = None, k: int | None = None, *, allow_partial: bool | None = None, _stop: Any = None, **options: Any) -> Hits:
        """Finds the documents nearest to a query; see :meth:`micpq.Index.search`.

        :param allow_partial: answer without the shards that do not answer in time. ``hits.missing`` names them. Default: as of the
            searcher.
        """
        if query is None and options.get("like") is None:
            raise ConfigError("search needs a query: a text, a vector, or like=ID")
        examples = self._query(query, options.pop("like", None), options.pop("keywords", None))
        return self._search([examples], {"k": _inputs.count_or_default(k, "k"), **options}, allow_partial)[0]

    def search_many(
        self, queries: Any, k: int | None = None, *, allow_partial: bool | None = None, _stop: Any = None, **options: Any
    ) -> list[Hits]:
        """Answers many queries at once: texts, or vectors ``[n, width]``."""
        if isinstance(queries, (str, bytes)) or not isinstance(queries, Iterable):
            raise ArgumentError(f"queries must be a list of texts or an array of vectors, not {type(queries).__name__}")
        prepared = [self._query(query, None, None) for query in queries]
        return self._search(prepared, {"k": _inputs.count_or_default(k, "k"), **options}, allow_partial)

    def _search(self, queries: list[Any], options: dict[str, Any], allow_partial: bool | None = None) -> list[Hits]:
        settings = _inputs.options(options)

        def work(deliver: Deliver) -> list[Hits]:
            return [_hits(answer) for answer in self._merger.search(queries, settings, deliver)]

        try:
            answers, missing = self._merged(work, allow_partial)
        except ConfigError:
            # A merge behind a change leaves replicas at different commits, and then every cursor is stale at the other ones.
            if options.get("after") is not None:
                self.reload()
            raise
        for hits in answers:
            hits.missing = missing
        return answers

    def _merged(self, work: Callable[[Deliver], T], allow_partial: bool | None = None, timeout: float | None = None) -> tuple[T, list[int]]:
        """Does work that sends calls to shards, all at one commit of each shard, and again if that commit is lost. Returns what the
        work returns, and the shards that are missing.

        :param timeout: seconds that a call may take, where it is no search. It is then not sent to another replica.
        """
        hedge_after, limit = (self._hedge_after, self._timeout) if timeout is None else (timeout, timeout)
        deadline = time.monotonic() + limit
        is_partial = self._allow_partial if allow_partial is None else allow_partial
        fleet, gone = None, set[int]()
        # It doubles, so that replicas that are all slow end a request.
        for patience in (max(hedge_after, PAUSE) * 2 ** min(n, 10) for n in itertools.count(2)):
            self._look()
            current = self._open()
            if fleet is not current:
                fleet, gone = current, current.dead() if is_partial else set()
            request = Request(current, next(self._turn), hedge_after, patience, deadline, limit if is_partial else None, gone)
            try:
                return work(request.deliver), sorted(request.missing)
            except (Retry, Replaced, BusyError) as problem:
                if isinstance(problem, Retry) and not problem.missing <= gone:
                    # The other shards have their time.
                    gone |= problem.missing
                    deadline = time.monotonic() + limit
                if time.monotonic() > deadline:
                    raise ShardsMissing("the shards changed or restarted too often to answer; ask again") from None
                time.sleep(PAUSE)
            finally:
                request.release()
        raise AssertionError("the loop ends by itself")

    def recall(
        self,
        queries: int | None = None,
        k: int | None = None,
        *,
        windows: int | None = None,
        rerank: int | None = None,
        _go_on: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Measures how much of exact float search the shards find together; see :meth:`micpq.Index.recall`. A change meanwhile
        makes it begin again."""
        if self._chunk is not None:
            raise ConfigError("recall needs one code per document, and this index has one per chunk; build it without chunk")

        def work(deliver: Deliver) -> str:
            def deliver_or_stop(calls: list[tuple[int | None, str]]) -> Any:
                _go_on()
                return deliver(calls)

            return self._merger.recall(deliver_or_stop, queries, k, windows, rerank)

        text, _ = self._merged(work, allow_partial=False, timeout=RECALL_SECONDS)
        report: dict[str, Any] = json.loads(text)
        return report

    # Following the folder

    def _stamp(self) -> tuple[int, int]:
        info = os.stat(Manifest.path(self._out))
        return info.st_mtime_ns, info.st_ino

    def refresh(self) -> bool:
        """Switches to the shards of a new manifest, if there is one, and waits until they have started. Every call looks for one, but
        does not wait: the old shards answer until then."""
        old = self._open()
        while (starting := self._look()) is not None:
            starting.result()
        return self._open() is not old

    def _look(self) -> Future[None] | None:
        """Starts the shards of a new manifest, if there is one. Returns the start, or that of an earlier call."""
        if self._starting is None and self._stamp() == self._seen:
            return None
        with self._refreshing:
            if self._starting is None:
                stamp = self._stamp()
                manifest = None if stamp == self._seen else Manifest.read(self._out)
                if manifest is None or manifest.shards == self._open().manifest.shards:
                    self._seen = stamp
                    return None
                self._starting = Future()
                threading.Thread(target=self._start, args=(self._starting, manifest, stamp), daemon=True).start()
            return self._starting

    def _start(self, starting: Future[None], manifest: Manifest, stamp: tuple[int, int]) -> None:
        """Starts the shards of a manifest, and answers with them from then on."""
        problem: BaseException | None = None
        try:
            new = Fleet(self._out, manifest, *self._settings)
            try:
                new.started(self._timeout if self._allow_partial else None)
            except BaseException:
                new.stop()
                raise
            with self._refreshing:
                old = self._fleet
                if old is None:
                    new.stop()
                else:
                    # Requests that the old actors are answering hold them until they are done.
                    self._fleet, self._seen, old.replaced = new, stamp, True
        except BaseException as failed:
            problem = failed
            # The next call tries again, though not each of a hundred a second.
            time.sleep(PAUSE)
        with self._refreshing:
            self._starting = None
        if problem is None:
            starting.set_result(None)
        else:
            starting.set_exception(problem)

    # Changing

    def add(self, data: Data, *, ids: Any = None, embeddings: Any = None, **corpus: Any) -> int:
        """Adds documents, or replaces those with the same ids. Each goes to the shard that owns its id. Returns when every
        shard has committed; a document is then on disk and found by the next search. An error may leave the documents of some
        shards stored: add them again."""
        documents = _inputs.documents(data, corpus, ids=ids)
        count = documents.count()
        if count is None:
            raise ArgumentError("add takes rows or a table; build reads files")
        given = None if embeddings is None else Embedded(_inputs.vectors(embeddings, width=self.model.inputs, rows=count))
        self._add(documents, given)
        return count

    def _add(self, documents: _micpq.Documents, embedded: Embedded | None) -> int:
        """Adds documents that are in memory; the shards encode them if ``embedded`` is None. Returns how many texts the shards
        found longer than the encoder takes."""
        # A shard takes as many insertion sequences as the document has chunks.
        ends = list(itertools.accumulate(documents.sequences(self._chunk is not None), initial=0))

        def parts(shards: int) -> dict[int, tuple[Any, ...]]:
            positions: dict[int, list[int]] = {}
            for position, owner in enumerate(documents.routes(shards)):
                positions.setdefault(owner, []).append(position)
            own = {shard: embedded and embedded.select(at) for shard, at in positions.items()}
            return {shard: (documents.to_bytes(at), [ends[i] for i in at], own[shard]) for shard, at in positions.items()}

        return sum(self._write("put", parts, ends[-1]).values()) if ends[-1] else 0

    def delete(self, ids: Id | Iterable[Id] | None = None, *, filter: str | None = None) -> int:
        """Deletes documents by id or by filter, and returns how many there were. Returns when every shard has committed. A shard
        that dies meanwhile deletes again, and the count lacks what it had deleted before."""
        if ids is None and filter is None:
            raise ConfigError("delete needs ids or a filter")
        if ids is not None and not isinstance(ids, (str, int, Iterable)):
            raise ArgumentError(f"ids must be strings or whole numbers, not {type(ids).__name__}")
        listed = [] if ids is None else [ids] if isinstance(ids, (str, int)) else list(ids)

        known = None if filter is None else self._attributes()

        def parts(shards: int) -> dict[int, tuple[Any, ...]]:
            owned = _by_shard(listed, shards)
            asked = range(shards) if filter is not None else owned
            return {n: ([listed[i] for i in owned.get(n, [])], filter, known) for n in asked}

        return sum(self._write("delete", parts, 0).values())

    def rebalance(self, shards: int) -> None:
        """Moves all documents into another number of shards. The new shards are built beside the old ones while searches go on,
        and the manifest is swapped in one step. Changes are refused meanwhile."""
        from ._rebalance import rebalance

        deadline = time.monotonic() + self._timeout

        def end_writers() -> None:
            for reference in [replicas[0].close.remote() for replicas in self._open().actors]:
                try:
                    get(reference, max(0.1, deadline - time.monotonic()))
                except ABSENT:
                    # The writer ended with its process.
                    pass
                except GetTimeoutError:
                    raise BusyError(f"a writer of {self._out} does not end; move the shards later") from None

        self._moving = True
        try:
            with rebalance(self._out, _inputs.count(shards, "shards"), end_writers, deadline):
                # Nobody can write the old shards until they are gone.
                self.refresh()
        finally:
            self._moving = False

    # Asking actors

    def _open(self) -> Fleet:
        if self._fleet is None:
            raise ClosedError(f"the searcher of {self._out} is closed; open it again")
        return self._fleet

    def _ask(self, method: str, arguments: Callable[[int], dict[int, tuple[Any, ...]]]) -> dict[int, Any]:
        """Calls a method of shards with the arguments for their number, again if the shards were moved meanwhile."""
        return self._until_answered(lambda fleet, deadline: fleet.ask(method, arguments(len(fleet)), deadline))

    def _of_all(self, method: str, *given: Any) -> dict[int, Any]:
        return self._ask(method, lambda shards: {shard: given for shard in range(shards)})

    def _write(self, method: str, arguments: Callable[[int], dict[int, tuple[Any, ...]]], count: int) -> dict[int, Any]:
        if self._moving:
            # Otherwise a change would take the lock that the move waits for.
            raise BusyError("the shards are being moved; write again when that is done")
        try:
            return self._until_answered(lambda fleet, deadline: fleet.write(method, arguments(len(fleet)), count, deadline))
        except BusyError as problem:
            raise BusyError(f"the shards are being moved, or another process writes them; write again later: {problem}") from None

    def _until_answered(self, call: Callable[[Fleet, float], dict[int, Any]]) -> dict[int, Any]:
        deadline = time.monotonic() + self._timeout
        while True:
            self._look()
            try:
                return call(self._open(), deadline)
            except Replaced:
                # The new shards have their time once they have started.
                if self.refresh():
                    deadline = max(deadline, time.monotonic() + self._timeout)
                if time.monotonic() > deadline:
                    raise ShardsMissing("the shards were moved too often to answer; ask again") from None
                time.sleep(PAUSE)

    # The rest

    def info(self) -> dict[str, Any]:
        """Counts of documents, of shards and of replicas."""
        return {"documents": len(self), "shards": self.shards, "replicas": self._settings[0], "bits": self.model.bits}

    def reload(self) -> bool:
        """Switches all replicas to the latest commits, and to a new manifest if there is one."""
        changed = self.refresh()
        return self._open().reload(time.monotonic() + self._timeout) or changed

    def close(self) -> None:
        """Stops the actors. What they acknowledged is on disk."""
        with self._refreshing:
            fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.stop()

    def __repr__(self) -> str:
        return f"Searcher({self.path!r}, {'closed' if self.closed else f'{self.shards} shards'})"


def _by_shard(ids: list[Id], shards: int) -> dict[int, list[int]]:
    """The positions of ids by the shard that owns them."""
    owned: dict[int, list[int]] = {}
    for position, id in enumerate(ids):
        owned.setdefault(_micpq.route(id, shards), []).append(position)
    return owned


def _refused(name: str) -> Any:
    def method(self: Searcher, *args: Any, **options: Any) -> Any:
        raise ConfigError(f"{name} works on one shard: open it with micpq.open")

    method.__doc__ = f"``{name}`` works on one shard: open it with ``micpq.open``."
    return method


for _name in (
    "compact", "dedup", "distill", "topics", "extend_topics", "watch", "watches", "unwatch", "matches", "verify", "backup",
    "codes", "to_arrow", "export",
):
    setattr(Searcher, _name, _refused(_name))
