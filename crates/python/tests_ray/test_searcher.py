"""Resident shards: equality over histories, killed actors, hedging, partial answers, rebalancing, HTTP."""

import json
import os
import random
import signal
import threading
import time
import urllib.request

import micpq
import pytest
import ray
from bench import news
from conftest import SEARCHES, assert_equal

import micpq.ray


def pid_of(searcher, shard, replica=0):
    return ray.get(searcher._fleet.actors[shard][replica].pid.remote())


def test_random_histories_leave_the_shards_equal_to_one_index(shards, one, tmp_path):
    draw = random.Random(5)
    single = one.backup(tmp_path / "single.micpq")
    with micpq.ray.Searcher(shards, replicas=2) as searcher:
        for step in range(12):
            if draw.random() < 0.6:
                rows = [{**row, "id": draw.randrange(700)} for row in news(1000 + 20 * step, 1000 + 20 * step + draw.randrange(1, 9))]
                rows = list({row["id"]: row for row in rows}.values())
                assert searcher.add(rows) == single.add(rows) == len(rows)
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


def test_partial_answers_only_if_allowed_and_then_marked(shards, one):
    # Nobody starts a shard whose directory is gone.
    with micpq.ray.Searcher(shards, timeout=3) as searcher:
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


def test_a_slow_replica_is_hedged(shards, one):
    with micpq.ray.Searcher(shards, replicas=2, hedge_after=0.05, timeout=30) as searcher:
        assert_equal(one, searcher, SEARCHES[:1])
        slow = pid_of(searcher, 0, 0)
        os.kill(slow, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert searcher.search(**SEARCHES[1]) == one.search(**SEARCHES[1])
            assert searcher.search(**SEARCHES[1]) == one.search(**SEARCHES[1])
            assert time.monotonic() - begun < 20, "the stopped replica would never answer"
        finally:
            os.kill(slow, signal.SIGCONT)


def test_http_answers_have_the_form_of_the_server(shards, one):
    port = 20000 + os.getpid() % 20000
    micpq.ray.serve(shards, name="news", port=port)

    def post(path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())

    status, found = post("/v1/indexes/news/query", {"text": "crude oil", "k": 5, "hybrid": 0.3, "snippets": True})
    expected = one.search("crude oil", k=5, hybrid=0.3, snippets=True)
    assert status == 200 and [hit["id"] for hit in found["hits"]] == expected.ids
    assert set(found) == {"hits", "next", "milliseconds"} and found["hits"][0]["snippet"]["text"] == expected[0].snippet[0]
    status, both = post("/v1/indexes/news/query/batch", {"queries": [{"document": 5}, {"like": [{"text": "wheat"}, {"document": 9, "weight": 2}]}]})
    assert status == 200 and [hit["id"] for hit in both["answers"][0]["hits"]] == one.search(like=5).ids
    for body, status, code in (
        ({"text": "x", "colour": 1}, 400, "bad_request"), ({}, 422, "bad_query"), ({"text": "x", "filter": "yaer:1"}, 422, "bad_filter"),
    ):
        refused = post("/v1/indexes/news/query", body)
        assert refused[0] == status and refused[1]["error"]["code"] == code, refused
    assert post("/v1/indexes/other/query", {"text": "x"})[1]["error"]["code"] == "unknown_index"
    ray.serve.shutdown()
