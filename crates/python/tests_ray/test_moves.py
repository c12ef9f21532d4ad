"""Moves of shards and snapshots while something dies: the driver, a task, a node."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import micpq
import pytest
import ray
from bench import news
from conftest import SEARCHES, Killer, assert_equal, pid_of
from pyarrow import fs

import micpq.ray
from micpq.ray import _snapshot
from micpq.ray._fleet import Replaced

DRIVER = """
import os, signal, sys, threading, time
from pathlib import Path
import ray, micpq.ray
from micpq.ray import _manifest, _rebalance, _snapshot

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
write = _manifest.Manifest.write


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def swap_and_die(manifest, out):
    write(manifest, out)
    die()


what, out, place = sys.argv[2:]
if what == "move":
    _manifest.Manifest.write = die
    micpq.ray.Searcher(out).rebalance(2)
elif what == "swap":
    _manifest.Manifest.write = swap_and_die
    micpq.ray.Searcher(out).rebalance(2)
elif what == "snapshot":
    get = _snapshot.get
    _snapshot.get = lambda tasks: (ray.wait(tasks), die())
    micpq.ray.snapshot(out, place)
elif what == "restore":
    _manifest.Manifest.write = die
    micpq.ray.restore(place, out)
"""


def run_and_die(cluster, what, out, place=""):
    """Runs a driver that is killed on the way."""
    command = [sys.executable, "-c", DRIVER, cluster.address, what, str(out), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == -9, done.stderr[-2000:]


def names(out):
    return sorted(path.name for path in out.iterdir() if "shard-" in path.name)


def test_a_killed_move_task_loses_and_doubles_nothing(cluster, shards, one):
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        with Killer(cluster, "_move") as killer:
            searcher.rebalance(4)
        assert killer.killed and searcher.shards == 4
        assert_equal(one, searcher, SEARCHES[:4])
        assert names(shards) == sorted(shard["name"] for shard in micpq.ray.Manifest.read(shards).shards)


@pytest.mark.parametrize("what", ["move", "swap"])
def test_a_driver_that_is_killed_while_it_moves_shards_leaves_the_old_or_the_new(cluster, shards, one, what):
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        old = searcher._fleet
        run_and_die(cluster, what, shards)
        assert len(micpq.ray.Manifest.read(shards).shards) == (3 if what == "move" else 2)
        if what == "swap":
            # A change that was on its way to the old shards, which are still there, is not acknowledged by them.
            rows = micpq._micpq.Documents.from_bytes(json.dumps([{"id": 5000, "text": "crude oil", "labels": [], "attributes": []}]).encode())
            owner = micpq._micpq.route(5000, 3)
            with pytest.raises(Replaced):
                old.write("put", {owner: (rows.to_bytes([0]), [0], None)}, 1, time.monotonic() + 60)
            with pytest.raises(Replaced):
                old.write("delete", {owner: ([5], None, None)}, 0, time.monotonic() + 60)
        assert searcher.get(5000) is None and searcher.get(5) is not None
        assert searcher.add([{"id": 5001, "text": "dock union"}]) == 1
        assert searcher.get(5001) is not None
        searcher.delete([5001])
        assert_equal(one, searcher, SEARCHES[:4])
        # The next move clears up.
        searcher.rebalance(3)
        assert_equal(one, searcher, SEARCHES[:4])
    assert names(shards) == sorted(shard["name"] for shard in micpq.ray.Manifest.read(shards).shards)


def test_a_move_takes_a_dead_writer_for_ended(shards, one):
    with micpq.ray.Searcher(shards, timeout=60) as searcher:
        assert searcher.add(news(3000, 3004)) == 4
        for shard in range(3):
            os.kill(pid_of(searcher, shard), 9)
        searcher.rebalance(2)
        assert searcher.count() == 604


def test_searches_do_not_wait_for_the_shards_of_a_new_manifest(shards, one, monkeypatch):
    from micpq.ray import _searcher

    with micpq.ray.Searcher(shards, timeout=6) as reader, micpq.ray.Searcher(shards, timeout=60) as mover:
        expected = one.search(**SEARCHES[0])
        started = _searcher.Fleet.started
        waiting = threading.Event()

        def slowly(fleet, *given):
            # Longer than a search may take.
            if len(fleet) == 2:
                waiting.wait(20)
            return started(fleet, *given)

        mover.rebalance(4)
        assert reader.shards == 4
        monkeypatch.setattr(_searcher.Fleet, "started", slowly)
        run = threading.Thread(target=lambda: mover.rebalance(2))
        run.start()
        limit = time.monotonic() + 60
        while len(micpq.ray.Manifest.read(shards).shards) != 2 and time.monotonic() < limit:
            time.sleep(0.05)
        for _ in range(10):
            assert reader.search(**SEARCHES[0]) == expected
        assert len(reader._fleet) == 4, "the old shards answered"
        waiting.set()
        run.join()
        assert reader.shards == 2
        assert reader.search(**SEARCHES[0]) == expected


def test_a_machine_that_goes_away_takes_no_answer_with_it(cluster, shards, one):
    node = cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    searcher = None
    try:
        searcher = micpq.ray.Searcher(shards, replicas=2, timeout=60)
        where = {ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())) for actor in searcher._fleet.everyone()}
        assert node.node_id in where, "no actor is on the machine"
        expected = one.search(**SEARCHES[0])
        assert searcher.search(**SEARCHES[0]) == expected
        stop, wrong, answered = threading.Event(), [], []

        def ask():
            while not stop.is_set():
                try:
                    if searcher.search(**SEARCHES[0]) != expected:
                        wrong.append("another answer")
                    answered.append(1)
                except BaseException as problem:
                    wrong.append(problem)

        thread = threading.Thread(target=ask)
        thread.start()
        cluster.remove_node(node, allow_graceful=False)
        node = None
        time.sleep(2)
        before = len(answered)
        limit = time.monotonic() + 60
        while len(answered) < before + 3 and time.monotonic() < limit:
            time.sleep(0.1)
        stop.set()
        thread.join()
        assert not wrong and len(answered) >= before + 3, wrong[:3]
        assert searcher.add(news(3000, 3006)) == 6
        assert searcher.count() == 606
    finally:
        if searcher is not None:
            searcher.close()
        if node is not None:
            cluster.remove_node(node)


def test_a_snapshot_under_writes_has_what_was_acknowledged_before_it(shards, tmp_path):
    with micpq.ray.Searcher(shards, replicas=2, timeout=60) as searcher:
        stop, stored, problems = threading.Event(), [], []

        def write():
            try:
                for start in range(3000, 9000, 3):
                    if stop.is_set():
                        return
                    searcher.add(news(start, start + 3))
                    stored.extend(range(start, start + 3))
            except BaseException as problem:
                problems.append(problem)

        writer = threading.Thread(target=write)
        writer.start()
        while len(stored) < 9 and not problems:
            time.sleep(0.01)
        before = list(stored)
        micpq.ray.snapshot(shards, tmp_path / "monday")
        while len(stored) < len(before) + 9 and not problems:
            time.sleep(0.01)
        stop.set()
        writer.join()
        assert not problems
    micpq.ray.restore(tmp_path / "monday", tmp_path / "back")
    assert micpq.ray.verify(tmp_path / "back") == micpq.ray.Verified([], [])
    with micpq.ray.Searcher(tmp_path / "back") as back:
        assert all(back.get(id) is not None for id in before)
        assert 600 + len(before) <= back.count() <= 600 + len(stored)


def wait_until_idle(folders):
    """Waits for tasks of a killed driver, which Ray ends a little later: they hold the locks of their folders."""
    for folder in list(folders):
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(lock)


def test_a_killed_snapshot_is_none_and_the_next_clears_up(cluster, shards, one, tmp_path):
    run_and_die(cluster, "snapshot", shards, tmp_path / "monday")
    with pytest.raises(micpq.FormatError, match="no complete snapshot"):
        micpq.ray.restore(tmp_path / "monday", tmp_path / "back")
    # What a killed task leaves.
    (shards / ".snapshot.shard.0").mkdir()
    wait_until_idle(shards.glob(".snapshot.*"))
    micpq.ray.snapshot(shards, tmp_path / "monday")
    assert not list(shards.glob(".snapshot.*"))
    micpq.ray.restore(tmp_path / "monday", tmp_path / "back")
    with micpq.ray.Searcher(tmp_path / "back") as searcher:
        assert_equal(one, searcher, SEARCHES[:4])


def test_two_attempts_of_a_snapshot_task_do_not_mix(cluster, shards, tmp_path):
    """Ray may run a task twice at once, and a change may be committed between the two."""
    place, files = tmp_path / "monday", fs.LocalFileSystem()
    directory = micpq.ray.Manifest.read(shards).directories(shards)[0]

    def attempt():
        return ray.get(_snapshot._save.remote(str(directory), files, str(place), "call"))

    first = attempt()
    with micpq.ray.Searcher(shards) as searcher:
        searcher.add(news(3000, 3030))
    second = attempt()
    assert second["documents"] > first["documents"]
    for record in (first, second):
        back = tmp_path / record["folder"]
        ray.get(_snapshot._load.remote(files, str(place / record["folder"]), str(back), record["files"]))
        assert len(micpq._micpq.Shard.open(back)) == record["documents"]
    _snapshot._remove_others(files, str(place), "another call", set())
    assert {path.name for path in place.iterdir()} == {first["folder"], second["folder"]}
    _snapshot._remove_others(files, str(place), "call", {second["folder"]})
    assert {path.name for path in place.iterdir()} == {second["folder"]}


def test_a_killed_restore_goes_on_with_its_own_snapshot_only(cluster, shards, one, tmp_path):
    micpq.ray.snapshot(shards, tmp_path / "monday")
    with micpq.ray.Searcher(shards) as searcher:
        searcher.add(news(3000, 3009))
    micpq.ray.snapshot(shards, tmp_path / "tuesday")
    back = tmp_path / "back"
    run_and_die(cluster, "restore", back, tmp_path / "monday")
    assert names(back) and not (back / "manifest.json").exists()
    with pytest.raises(micpq.ConfigError, match="part of another snapshot, .*monday"):
        micpq.ray.restore(tmp_path / "tuesday", back)
    micpq.ray.restore(tmp_path / "monday", back)
    with micpq.ray.Searcher(back) as searcher:
        assert_equal(one, searcher, SEARCHES[:4])
    assert not [path.name for path in back.iterdir() if path.name.startswith(".")]
    # Shards of something else are not taken for a part of the snapshot.
    foreign = tmp_path / "foreign"
    (foreign / names(back)[0]).mkdir(parents=True)
    with pytest.raises(micpq.ConfigError, match="no restore put there"):
        micpq.ray.restore(tmp_path / "monday", foreign)
