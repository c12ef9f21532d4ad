"""Several fronts of Ray Serve over one folder, which another process changes."""

import os
import shutil
import time

import micpq
import pytest
import ray
from bench import news
from test_http import send

import micpq.ray


@pytest.fixture(scope="module")
def served(built, tmp_path_factory):
    port = 20000 + (os.getpid() + 1) % 20000
    shards = shutil.copytree(built, tmp_path_factory.mktemp("fronts") / "out")
    micpq.ray.serve(shards, name="news", port=port, fronts=2, follow=0.2, allow_partial=True, timeout=6)
    yield shards, f"http://127.0.0.1:{port}"
    ray.serve.shutdown()


def test_all_fronts_follow_a_process_that_writes(served):
    shards, server = served
    refused = send(server, "/v1/indexes/news/documents", {"documents": [{"id": 1, "text": "x"}]}, "PUT")
    assert refused[0] == 409 and refused[1]["error"]["code"] == "unsupported"
    refused = send(server, "/v1/jobs", method="GET")
    assert refused[0] == 409 and refused[1]["error"]["code"] == "unsupported"
    assert send(server, "/v1/indexes/news/facets", method="GET")[0] == 200
    with micpq.ray.Searcher(shards) as writer:
        assert writer.add(news(3000, 3010)) == 10
    limit, same = time.monotonic() + 60, 0
    while same < 20 and time.monotonic() < limit:
        same = same + 1 if send(server, "/v1/indexes/news/count", {})[1]["count"] == 610 else 0
        time.sleep(0.02)
    assert same == 20, "one front still answers from before"


def test_an_answer_without_a_shard_says_so(served):
    shards, server = served
    manifest = micpq.ray.Manifest.read(shards)
    status, _, headers = send(server, "/v1/indexes/news/query", {"text": "oil"})
    assert status == 200 and headers["x-micpq-missing-shards"] is None
    # Both fronts lose the actors of one shard, which cannot open it again.
    gone = manifest.directories(shards)[1]
    os.rename(gone, shards / "elsewhere")
    try:
        killed = 0
        for path in os.listdir("/proc"):
            if path.isdigit() and maps_of(path, str(shards / gone.name), str(shards / "elsewhere")):
                os.kill(int(path), 9)
                killed += 1
        assert killed >= 2
        status, found, headers = send(server, "/v1/indexes/news/query", {"text": "oil", "k": 30})
        assert status == 200 and headers["x-micpq-missing-shards"] == "1" and len(found["hits"]) == 30
        assert all(micpq._micpq.route(hit["id"], 3) != 1 for hit in found["hits"])
        assert send(server, "/readyz", method="GET")[0] == 503
    finally:
        os.rename(shards / "elsewhere", gone)


def maps_of(pid, *folders):
    """Whether a process of this test, an actor, has files of one of the folders mapped."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if not file.read().startswith(b"ray::ShardActor"):
                return False
        with open(f"/proc/{pid}/maps") as file:
            return any(folder in line for line in file for folder in folders)
    except OSError:
        return False
