"""Changes to resident shards: equality over histories, writers beside each other, killed actors, rebalancing."""

import contextlib
import os
import random
import signal
import threading
import time

import micpq
import pytest
import ray
from bench import news
from conftest import SEARCHES, assert_equal, pid_of, rounds

import micpq.ray


@pytest.mark.parametrize("seed", range(rounds(1)))
def test_random_histories_leave_the_shards_equal_to_one_index(shards, one, tmp_path, seed):
    draw = random.Random(5 + seed)
    single = one.backup(tmp_path / "single.micpq")
    with micpq.ray.Searcher(shards, replicas=2) as searcher:
        for step in range(12):
            kind = draw.random()
            if kind < 0.5:
                rows = [{**row, "id": draw.randrange(700)} for row in news(1000 + 20 * step, 1000 + 20 * step + draw.randrange(1, 9))]
                rows = list({row["id"]: row for row in rows}.values())
                assert searcher.add(rows) == single.add(rows) == len(rows)
            elif kind < 0.6:
                filter = draw.choice(["year:1988 AND label:oil", "wheat AND grain", f"id:{draw.randrange(700)}"]).replace("label:", "labels:")
                assert searcher.delete(filter=filter) == single.delete(filter=filter)
            else:
                ids = [draw.randrange(700) for _ in range(draw.randrange(1, 6))]
                ids = list(dict.fromkeys(ids))
                assert searcher.delete(ids) == single.delete(ids)
            assert_equal(single, searcher, draw.sample(SEARCHES[:6], 2))
        searcher.rebalance(2)
        assert searcher.shards == 2 and not any(p.name.startswith("shard-001") for p in shards.iterdir())
        assert_equal(single, searcher, SEARCHES[:6])
        rows = news(2000, 2005)
        assert searcher.add(rows) == single.add(rows)
        assert_equal(single, searcher, SEARCHES[:6])
    single.close()


def test_a_shard_killed_during_a_write_loses_nothing_acknowledged(shards, one, tmp_path):
    single = one.backup(tmp_path / "single.micpq")
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        searcher.add(news(3000, 3001))
        single.add(news(3000, 3001))
        victim = pid_of(searcher, micpq._micpq.route(3001, 3))
        killer = threading.Timer(0.01, os.kill, (victim, signal.SIGKILL))
        killer.start()
        for start in range(3001, 3011):
            assert searcher.add(news(start, start + 1)) == 1
            single.add(news(start, start + 1))
        killer.join()
        assert all(searcher.get(id) is not None for id in range(3000, 3011))
        assert_equal(single, searcher, SEARCHES[:4])
    single.close()


def test_a_filter_deletes_in_every_shard_and_a_wrong_one_nowhere(shards, one, tmp_path):
    single = one.backup(tmp_path / "single.micpq")
    with micpq.ray.Searcher(shards, replicas=2) as searcher:
        # Only the shard of this document has the attribute.
        for index in (searcher, single):
            index.add([{"id": "odd", "text": "crude oil", "colour": "red"}])
            assert index.count("colour:red") == 1
            assert index.delete(filter="colour:red OR year:1989") == 201
        assert_equal(single, searcher, SEARCHES[:4])
        for wrong in ("yaer:1987", "year:["):
            with pytest.raises(micpq.FilterError) as refused:
                single.delete(filter=wrong)
            with pytest.raises(micpq.FilterError) as same:
                searcher.delete(filter=wrong)
            assert str(same.value) == str(refused.value)
        assert len(searcher) == len(single) == 400
        for wrong in ({}, {"ids": 1.5}):
            with pytest.raises(micpq.Error):
                searcher.delete(**wrong)
    single.close()


def test_threads_that_write_beside_each_other_lose_nothing(shards, one):
    with micpq.ray.Searcher(shards, replicas=2) as searcher:
        problems = []

        def write(thread):
            try:
                for step in range(4):
                    first = 10_000 + 100 * thread + 10 * step
                    assert searcher.add([{**row, "id": first + i} for i, row in enumerate(news(0, 7))]) == 7
                    assert searcher.delete([first, first + 1]) == 2
                    # A refused change takes nothing of another thread's back.
                    with pytest.raises(micpq.FilterError):
                        searcher.delete(filter="nowhere:1")
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=write, args=(thread,)) for thread in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not problems
        assert len(searcher) == 600 + 3 * 4 * 5
        expected = {10_000 + 100 * t + 10 * s + i for t in range(3) for s in range(4) for i in range(2, 7)}
        found = {id for id in range(10_000, 10_300) if id in expected and searcher.get(id) is not None}
        assert found == expected


def test_two_searchers_write_different_shards_at_once_and_lose_nothing(shards):
    with micpq.ray.Searcher(shards, timeout=60) as one_of_both, micpq.ray.Searcher(shards, timeout=60) as other:
        searchers, problems, together = [one_of_both, other], [], threading.Barrier(2)
        owned = [[id for id in range(10_000, 11_000) if micpq._micpq.route(id, 3) == shard][:8] for shard in range(3)]

        def write(number):
            try:
                together.wait()
                for id in owned[number][:6]:
                    assert searchers[number].add([{"id": id, "text": "dock union"}]) == 1
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not problems
        for searcher in searchers:
            searcher.reload()
            found = searcher._get([*range(600), *owned[0][:6], *owned[1][:6]])
            assert all(found) and len({document["sequence"] for document in found}) == 612
        # No sequence is given out twice, committed or not.
        first, second, third = (ray.get(searcher._fleet.sequences.reserve.remote(5, 0)) for searcher in (one_of_both, other, one_of_both))
        assert first + 5 == second and second + 5 == third
        # A change that needs a shard of the other searcher is refused, and stored when that one is closed.
        rows = [{"id": owned[shard][7], "text": "dock union"} for shard in range(3)]
        with pytest.raises(micpq.BusyError, match="another process writes"):
            other.add(rows)
        one_of_both.close()
        limit, stored = time.monotonic() + 60, 0
        while not stored and time.monotonic() < limit:
            # Until its processes have ended.
            with contextlib.suppress(micpq.BusyError):
                stored = other.add(rows)
        other.reload()
        found = other._get([*range(600), *(id for own in owned for id in own)])
        expected = {*range(600), *owned[0][:6], *owned[1][:6], *(row["id"] for row in rows)}
        assert stored == 3 and {document["id"] for document in found if document} == expected
        assert len({document["sequence"] for document in found if document}) == len(expected)


def test_one_searcher_writes_and_others_follow(shards, one):
    with micpq.ray.Searcher(shards) as writer, micpq.ray.Searcher(shards) as reader:
        assert writer.add(news(3000, 3010)) == 10
        with pytest.raises(micpq.BusyError, match="another process writes"):
            reader.add(news(4000, 4010))
        assert reader.reload() and reader.count() == writer.count() == 610
        writer.rebalance(2)
        assert reader.count() == 610 and reader.shards == 2
        assert reader.search(**SEARCHES[0]) == writer.search(**SEARCHES[0])


def test_searches_go_on_while_shards_are_moved_and_changes_are_refused(shards, one):
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        assert searcher.add(news(3000, 3001)) == 1
        expected = searcher.search(**SEARCHES[0])
        answers, refused, stored, problems, stop = [], [], [3000], [], threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    assert searcher.search(**SEARCHES[0]) == expected
                    assert searcher.get(5)["id"] == 5
                    answers.append(searcher.shards)
                except BaseException as problem:
                    problems.append(problem)

        def write():
            # Far from the query: the answer stays.
            for id in range(4000, 4400):
                if stop.is_set():
                    return
                try:
                    searcher.delete(["nobody"])
                    searcher.add([{"id": id, "text": "dock union"}])
                    stored.append(id)
                except micpq.BusyError:
                    refused.append(id)
                except BaseException as problem:
                    problems.append(problem)

        # An answer compares equal only while no nearer document comes.
        assert "dock union" not in [hit.text for hit in searcher.search("crude oil barrel", k=15)]
        threads = [threading.Thread(target=ask), threading.Thread(target=write)]
        [thread.start() for thread in threads]
        time.sleep(0.3)
        for shards_now in (5, 2):
            searcher.rebalance(shards_now)
            time.sleep(0.3)
        stop.set()
        [thread.join() for thread in threads]
        assert not problems, problems[:3]
        assert {3, 5, 2} & set(answers) == set(answers) and {5, 2} <= set(answers)
        assert refused, "no change fell into the move"
        assert all(searcher.get(id) is not None for id in stored), "what was acknowledged is there"
        assert sorted(p.name for p in shards.iterdir() if "shard-" in p.name) == [s["name"] for s in micpq.ray.Manifest.read(shards).shards]


def test_a_shard_killed_during_a_move_changes_nothing(shards, one):
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        killed = []

        def kill():
            for shard in range(3):
                pid = pid_of(searcher, shard)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        killer = threading.Timer(0.2, kill)
        killer.start()
        searcher.rebalance(2)
        killer.join()
        assert killed
        assert_equal(one, searcher, SEARCHES[:4])
        assert searcher.add(news(5000, 5003)) == 3


def test_sequences_go_on_after_their_actor_was_killed(shards, one, tmp_path):
    single = one.backup(tmp_path / "single.micpq")
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        for start in (3000, 3100):
            assert searcher.add(news(start, start + 5)) == single.add(news(start, start + 5))
            ray.kill(searcher._fleet.sequences, no_restart=False)
        assert searcher.add(news(3200, 3205)) == single.add(news(3200, 3205))
        assert_equal(single, searcher, SEARCHES[:4])
    single.close()


def everywhere(searcher, id):
    """Whether each replica of its shard has a document."""
    shard = micpq._micpq.route(id, len(searcher._fleet))
    return [ray.get(actor.get.remote([id]))[0] is not None for actor in searcher._fleet.actors[shard]]


def test_replicas_answer_alike_after_a_change_that_failed_in_one_shard(shards):
    with micpq.ray.Searcher(shards, replicas=3, timeout=20) as searcher:
        # Another process has the writer's lock of shard 2.
        lock = micpq._micpq.Shard.open(micpq.ray.Manifest.read(shards).directories(shards)[2])
        lock.begin()
        rows = [{**row, "id": 4000 + i} for i, row in enumerate(news(0, 30))]
        with pytest.raises(micpq.BusyError):
            searcher.add(rows)
        lock.close()
        stored = [row["id"] for row in rows if micpq._micpq.route(row["id"], 3) != 2]
        assert stored and all(everywhere(searcher, id) == [True] * 3 for id in stored)
        assert searcher.add(rows) == 30
        assert all(everywhere(searcher, row["id"]) == [True] * 3 for row in rows)


def test_readers_follow_other_processes(shards):
    with micpq.ray.Searcher(shards) as writer, micpq.ray.Searcher(shards, replicas=2, follow=0.2) as reader:
        assert writer.add(news(3000, 3010)) == 10
        limit = time.monotonic() + 30
        while not all(everywhere(reader, id) == [True, True] for id in range(3000, 3010)) and time.monotonic() < limit:
            time.sleep(0.1)
        assert reader.count() == 610


def test_sequences_rise_over_the_changes_of_two_searchers(shards):
    def owned(shard, start):
        return next(id for id in range(start, start + 1000) if micpq._micpq.route(id, 3) == shard)

    with micpq.ray.Searcher(shards) as first:
        a = owned(0, 5000)
        first.add([{"id": a, "text": "crude oil"}])
        with micpq.ray.Searcher(shards) as second:
            b = owned(1, 6000)
            second.add([{"id": i, "text": "crude oil"} for i in (b, owned(1, 6500), owned(1, 7000))])
        c = owned(0, 8000)
        first.add([{"id": c, "text": "crude oil"}])
        first.reload()
        sequences = [document["sequence"] for document in first._get([a, b, c])]
        assert sequences == sorted(sequences), "the last one was added last"
