"""Searches over resident shards: killed actors, hedging, partial answers."""

import asyncio
import os
import signal
import threading
import time

import micpq
import pytest
from conftest import SEARCHES, assert_equal, pid_of

import micpq.ray


def test_a_killed_shard_answers_again_by_itself(shards, one):
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        assert_equal(one, searcher, SEARCHES[:1])
        old = pid_of(searcher, 1)
        os.kill(old, signal.SIGKILL)
        assert_equal(one, searcher, SEARCHES[:4])
        assert pid_of(searcher, 1) != old


def test_searches_go_on_while_actors_are_killed(shards, one):
    with micpq.ray.Searcher(shards, replicas=2, timeout=60) as searcher:
        expected = one.search(**SEARCHES[0])
        wrong, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                if searcher.search(**SEARCHES[0]) != expected:
                    wrong.append(1)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        [thread.start() for thread in threads]
        for shard in range(3):
            os.kill(pid_of(searcher, shard, shard % 2), signal.SIGKILL)
            time.sleep(0.5)
        stop.set()
        [thread.join() for thread in threads]
        assert not wrong


def test_partial_answers_only_if_allowed_and_then_marked(shards, one):
    # Nobody starts a shard whose directory is gone.
    with micpq.ray.Searcher(shards, timeout=6) as searcher:
        assert searcher.search("oil", k=3).missing == []
        name = micpq.ray.Manifest.read(shards).shards[2]["name"]
        os.rename(shards / name, shards / "elsewhere")
        os.kill(pid_of(searcher, 2), signal.SIGKILL)
        with pytest.raises(micpq.ray.ShardsMissing, match="shards 2 of 3"):
            searcher.search("oil", k=30)
        hits = searcher.search("oil", k=30, allow_partial=True)
        assert hits.missing == [2] and len(hits) == 30
        assert all(micpq._micpq.route(id, 3) != 2 for id in hits.ids)
        os.rename(shards / "elsewhere", shards / name)


def test_a_replica_that_stalls_under_load_is_hedged(shards, one):
    # A stopped process never answers, so that whoever waits for it runs into the timeout.
    with micpq.ray.Searcher(shards, replicas=2, hedge_after=0.05, timeout=120) as searcher:
        expected = [one.search(**search) for search in SEARCHES]
        answered, wrong, stop = [0] * 3, [], threading.Event()

        def ask(thread):
            while not stop.is_set():
                number = (answered[thread] + thread) % len(SEARCHES)
                try:
                    if searcher.search(**SEARCHES[number]) != expected[number]:
                        wrong.append(number)
                except BaseException as problem:
                    wrong.append(problem)
                answered[thread] += 1

        threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(3)]
        [thread.start() for thread in threads]
        while min(answered) < 5:
            time.sleep(0.01)
        # Searches are under way, so some have the commit of this replica and begin again with another.
        slow = pid_of(searcher, 0, 0)
        os.kill(slow, signal.SIGSTOP)
        try:
            before, limit = list(answered), time.monotonic() + 100
            while any(now < then + 8 for now, then in zip(answered, before)) and time.monotonic() < limit:
                time.sleep(0.01)
            stalled = [now - then for now, then in zip(answered, before)]
            stop.set()
            [thread.join() for thread in threads]
        finally:
            os.kill(slow, signal.SIGCONT)
        assert min(stalled) >= 8 and not wrong, (stalled, wrong[:3])
        # It takes part again.
        assert pid_of(searcher, 0, 0) == slow
        assert_equal(one, searcher, SEARCHES[:2])


def test_a_shard_that_stalls_is_missing_only_where_that_is_allowed(shards, one):
    with micpq.ray.Searcher(shards, timeout=6) as searcher:
        assert searcher.search("oil", k=3).missing == []
        slow = pid_of(searcher, 1)
        os.kill(slow, signal.SIGSTOP)
        try:
            with pytest.raises(micpq.ray.ShardsMissing, match="shards 1 of 3"):
                searcher.search("oil", k=30)
            hits = searcher.search("oil", k=30, allow_partial=True)
            assert hits.missing == [1] and len(hits) == 30
            assert all(micpq._micpq.route(id, 3) != 1 for id in hits.ids)
        finally:
            os.kill(slow, signal.SIGCONT)
        assert searcher.search(**SEARCHES[0]) == one.search(**SEARCHES[0])


def test_a_searcher_has_every_call_of_an_index_or_refuses_it(shards, one):
    with micpq.ray.Searcher(shards) as searcher:
        assert asyncio.run(searcher.asearch(**SEARCHES[0])) == one.search(**SEARCHES[0])
        assert asyncio.run(searcher.asearch_many(["crude oil"], k=4)) == one.search_many(["crude oil"], k=4)
        assert 5 in searcher and "nobody" not in searcher and searcher.count("year:1988") == one.count("year:1988")
        assert searcher.info()["documents"] == 600 and searcher.reload() is False
        # What is neither the searcher's own nor one of these would reach for a single index.
        shared = {"asearch", "asearch_many", "create", "to_pandas", "to_polars", "__contains__", "__enter__", "__exit__"}
        own = {name for name, value in vars(micpq.Index).items() if callable(value) or isinstance(value, (property, classmethod))}
        public = {name for name in own if not name.startswith("_")}
        assert public - shared - set(vars(micpq.ray.Searcher)) == set()
        for name in ("compact", "dedup", "verify", "codes", "to_pandas"):
            with pytest.raises(micpq.ConfigError, match="works on one shard"):
                getattr(searcher, name)()
    with pytest.raises(micpq.ClosedError):
        searcher.search("oil")


def stopped(searcher, shard, replica):
    """Stops an actor's process, and returns it."""
    pid = pid_of(searcher, shard, replica)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_counts_and_documents_are_hedged_and_a_third_replica_is_asked(shards, one):
    with micpq.ray.Searcher(shards, replicas=3, hedge_after=0.05, timeout=120) as searcher:
        assert_equal(one, searcher, SEARCHES[:1])
        # Two of three replicas never answer.
        slow = [stopped(searcher, 0, replica) for replica in (0, 2)]
        try:
            for _ in range(6):
                assert searcher.count("year:1988") == one.count("year:1988")
                assert all(searcher.get(id)["id"] == id for id in range(6))
                assert searcher.search(**SEARCHES[0]) == one.search(**SEARCHES[0])
        finally:
            [os.kill(pid, signal.SIGCONT) for pid in slow]


def test_a_shard_that_stalls_in_the_middle_is_missing_where_that_is_allowed(shards, one, monkeypatch):
    from micpq.ray import _request

    send, slow = _request.Request._send, []
    with micpq.ray.Searcher(shards, timeout=6) as searcher:
        # It answers the first call, the statistics of the keywords, and nothing after that.
        victim = pid_of(searcher, 1)

        def stop_before_the_second_call(request, shard, replica, call):
            if shard == 1 and shard in request.chosen and not slow:
                os.kill(victim, signal.SIGSTOP)
                slow.append(victim)
            return send(request, shard, replica, call)

        monkeypatch.setattr(_request.Request, "_send", stop_before_the_second_call)
        try:
            hits = searcher.search("port strike", k=12, hybrid=0.4, allow_partial=True)
            assert slow and hits.missing == [1] and len(hits) == 12
            assert all(micpq._micpq.route(id, 3) != 1 for id in hits.ids)
            # It is remembered: the next answers do not wait for it.
            assert searcher._fleet.dead() == {1}
            assert searcher.search("port strike", k=12, allow_partial=True).missing == [1]
            with pytest.raises(micpq.ray.ShardsMissing):
                searcher.search("port strike", k=12)
        finally:
            [os.kill(pid, signal.SIGCONT) for pid in slow]
        time.sleep(5)
        assert searcher.search("port strike", k=12, hybrid=0.4, allow_partial=True).missing == []


def test_a_searcher_opens_without_a_shard_only_if_that_is_allowed(shards, one):
    name = micpq.ray.Manifest.read(shards).shards[0]["name"]
    os.rename(shards / name, shards / "elsewhere")
    with pytest.raises(micpq.Error, match="shard"):
        micpq.ray.Searcher(shards, timeout=3)
    # The processes of the other shards start within this time on a busy machine, too.
    with micpq.ray.Searcher(shards, timeout=30, allow_partial=True) as searcher:
        hits = searcher.search("oil", k=30)
        assert hits.missing == [0] and len(hits) == 30
        with pytest.raises(micpq.ray.ShardsMissing):
            searcher.search("oil", k=30, allow_partial=False)
        os.rename(shards / "elsewhere", shards / name)
        limit = time.monotonic() + 60
        while searcher.search("oil", k=3).missing and time.monotonic() < limit:
            time.sleep(0.2)
        assert searcher.search(**SEARCHES[0]) == one.search(**SEARCHES[0])
