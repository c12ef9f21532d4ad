"""Long calls: the interpreter's lock, Ctrl-C, asyncio, threads and forks."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import micpq
import numpy as np
import pytest
from bench import news


def test_other_threads_run_while_training(tmp_path):
    """A thread that only counts must advance while a training runs. It cannot if the training holds the lock."""
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    seen = []

    def progress(kind, text, number):
        seen.append(counted[0])
        if len(seen) > 1 and seen[-1] > seen[0] + 20:
            raise StopIteration("enough")

    counter.start()
    try:
        with pytest.raises(StopIteration):
            vectors = np.random.default_rng(0).normal(size=(3000, 64)).astype(np.float32)
            micpq.train(embeddings=vectors, method="micpq", bits=64, epochs=100_000, patience=100_000, cache=tmp_path, progress=progress)
    finally:
        done.set()
        counter.join()


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_stops_training_and_the_same_call_continues(tmp_path):
    code = f"""
        import sys, micpq, numpy
        vectors = numpy.random.default_rng(0).normal(size=(2000, 32)).astype("float32")
        def progress(kind, text, number):
            if kind == "note":
                print(text, flush=True)
        try:
            micpq.train(embeddings=vectors, method="micpq", bits=32, epochs=100000, patience=100000, cache={str(tmp_path)!r}, progress=progress)
        except KeyboardInterrupt:
            print("stopped", flush=True)
            sys.exit(7)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not first.stdout.readline().startswith("epoch 2"):
        assert first.poll() is None
    first.send_signal(signal.SIGINT)
    rest, _ = first.communicate(timeout=120)
    assert first.returncode == 7 and rest.rstrip().endswith("stopped")
    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = second.stdout.readline()
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=120)
    assert line.startswith("resuming after epoch"), line


def test_asyncio_searches_while_other_tasks_run(shared):
    async def work():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        found = await asyncio.gather(*(shared.asearch(q, k=5) for q in ["crude oil", "bank loan", "port"] * 5))
        many = await shared.asearch_many(["crude oil"] * 40, k=5)
        ticking.cancel()
        return ticks, found, many

    ticks, found, many = asyncio.run(work())
    assert ticks > 15 and found[0] == shared.search("crude oil", k=5) and many[3] == found[0]


def test_the_index_answers_after_a_cancelled_search(shared):
    async def work():
        task = asyncio.create_task(shared.asearch_many(["crude oil and the price of the barrel"] * 5000, k=100))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await shared.asearch("bank", k=2)

    assert len(asyncio.run(work())) == 2


def test_an_error_in_a_task_is_of_the_package(shared):
    with pytest.raises(micpq.ConfigError):
        asyncio.run(shared.asearch("oil", k=0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_searches(shared):
    """multiprocessing forks on Linux. A thread pool does not survive a fork, so the child builds its own."""
    expected = shared.search("crude oil", k=5).ids
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = shared.search("crude oil", k=5).ids
            answers = len(shared.search_many(["bank"] * 64, k=3))
            os.write(write, b"same" if found == expected and answers == 64 else b"other")
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 10) == b"same"
    os.waitpid(child, 0)


def test_an_error_of_a_generator_reaches_the_caller(encoder):
    def texts():
        yield "oil"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        micpq.build(texts(), bits=16, encoder=encoder)


def test_a_stopped_build_of_vectors_leaves_no_index(tmp_path):
    """No encoder checks for the stop here; the pipeline itself must."""
    vectors = np.random.default_rng(0).normal(size=(40_000, 8)).astype(np.float32)
    model = micpq.train(embeddings=vectors[:500], bits=16, epochs=1)

    def progress(kind, text, number):
        if text == "indexing":
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        texts = [f"story number {i}" for i in range(len(vectors))]
        micpq.build(texts, tmp_path / "i", model=model, embeddings=vectors, progress=progress)
    assert not (tmp_path / "i").exists()


def test_two_writers_take_turns(index):
    errors = []

    def add(start):
        for i in range(3):
            while True:
                try:
                    index.add(news(start + 10 * i, start + 10 * i + 10))
                    break
                except micpq.BusyError:
                    time.sleep(0.05)
                except Exception as problem:
                    errors.append(problem)
                    return

    threads = [threading.Thread(target=add, args=(start,)) for start in (1000, 2000)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors and len(index) == 460
