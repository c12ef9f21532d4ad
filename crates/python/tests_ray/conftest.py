"""Real Ray processes on this machine, with a tiny encoder and generated news."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import micpq
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# Ray runs workers behind everything else on the machine; tests have time limits.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    from bench import write_encoder

    folder = tmp_path_factory.mktemp("micpq-ray")
    os.environ["MICPQ_MODELS"] = str(folder / "models")
    write_encoder(folder / "models" / "tiny")
    return folder


@pytest.fixture(scope="session")
def cluster(workspace):
    """Two nodes, each a real raylet with its own workers and object store."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session")
def documents():
    from bench import news

    return news(0, 600)


@pytest.fixture(scope="session")
def model(workspace, documents):
    import micpq

    return micpq.train(documents, bits=16, encoder=str(workspace / "models" / "tiny"), epochs=2, hidden=32)


@pytest.fixture(scope="session")
def corpus(workspace, documents):
    """Three files of three formats, in the order of their names, with two bad rows."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    folder = workspace / "corpus"
    folder.mkdir()
    with (folder / "a.jsonl").open("w") as file:
        for number, row in enumerate(documents[:250]):
            file.write(json.dumps(row) + "\n")
            if number in (7, 100):
                file.write("{ this is no document\n")
    pa.parquet.write_table(pa.Table.from_pylist(documents[250:450]), folder / "b.parquet")
    pa.csv.write_csv(pa.Table.from_pylist(documents[450:]), folder / "c.csv")
    return folder


@pytest.fixture(scope="session")
def one(workspace, documents, model):
    """The single index that all shards are compared with."""
    import micpq

    with micpq.build(documents, workspace / "one.micpq", model=model) as built:
        yield built


@pytest.fixture(scope="session")
def built(cluster, corpus, model, workspace):
    """A folder of three shards that no test changes."""
    import micpq.ray

    micpq.ray.build(corpus, workspace / "built", model, shards=3, workers=1, documents_per_part=64)
    return workspace / "built"


@pytest.fixture()
def shards(built, tmp_path):
    """A folder of three shards of a test's own."""
    import shutil

    return shutil.copytree(built, tmp_path / "out")


#: Every kind of search, as options of ``search``.
SEARCHES = [
    {"query": "crude oil barrel", "k": 15},
    {"query": "wheat harvest", "k": 7, "rerank": False},
    {"query": "bank loan", "k": 9, "filter": "year:[1987 TO 1988]"},
    {"query": "port strike", "k": 12, "hybrid": 0.4, "snippets": True},
    {"query": "grain price", "k": 10, "hybrid": 1.0},
    {"query": "oil", "k": 20, "radius": 30.0, "rerank": False},
    {"like": {5: 2.0, 9: 1.0}, "query": "tanker", "k": 8},
    {"like": 17, "k": 6, "explain": True},
]


def pages(index, search, most=3, tries=20):
    """The hits of the first pages. A merge behind a change ends a list between two of its pages, and the list is asked for again."""
    try:
        return _pages(index, search, most)
    except micpq.errors.ConfigError as error:
        if tries == 0 or "cursor is stale" not in str(error):
            raise
        time.sleep(0.1)
        return pages(index, search, most, tries - 1)


def _pages(index, search, most):
    found, after = [], None
    for _ in range(most):
        hits = index.search(**search, after=after)
        found.append(list(hits))
        after = hits.next
        if after is None:
            break
    return found


def pid_of(searcher, shard, replica=0):
    """The process of an actor."""
    import ray

    return ray.get(searcher._fleet.actors[shard][replica].pid.remote())


def processes(cluster, title):
    """The processes of this cluster that run a task or an actor of this name. Workers are children of their node's raylet."""
    import glob

    nodes = {entry.process.pid for node in cluster.list_all_nodes() for entry in node.all_processes["raylet"]}
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        pid = int(path.split("/")[2])
        try:
            parent = int(Path(path).read_text().rpartition(")")[2].split()[1])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if parent in nodes and command.startswith(b"ray::" + title.encode()):
            found.append(pid)
    return found


class Killer(threading.Thread):
    """Kills the first process that runs a task or an actor of this name, by its id."""

    def __init__(self, cluster, title):
        super().__init__(daemon=True)
        self.cluster, self.title, self.killed, self.stop = cluster, title, [], threading.Event()

    def run(self):
        while not self.killed and not self.stop.is_set():
            for pid in processes(self.cluster, self.title)[:1]:
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)
            time.sleep(0.01)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.join()


def rounds(short):
    """How often something random is tried: MICPQ_RAY_ROUNDS times as often in the long form."""
    return short * int(os.environ.get("MICPQ_RAY_ROUNDS", "1"))


def assert_equal(index, other, searches=SEARCHES):
    assert len(index) == len(other)
    for search in searches:
        assert pages(index, search) == pages(other, search), search
