"""Ray Serve beside the ordinary server with the same documents: what an index holds, embeddings, jobs and backups."""

import json
import os
import subprocess
import threading
import time

import micpq
import pytest
import ray
from bench import news
from test_http import BINARY, send

import micpq.ray
from micpq.ray._jobs import Job

#: Recall says something from 1,000 documents on.
DOCUMENTS = 1200


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("insight")


@pytest.fixture(scope="module")
def many(model, folder):
    """One index with all documents."""
    with micpq.build(news(0, DOCUMENTS), folder / "many.micpq", model=model) as built:
        yield built


@pytest.fixture(scope="module")
def plain(many):
    """The address of the ordinary server."""
    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}")
    command = [BINARY, "serve", f"news={many.path}", "--listen", "127.0.0.1:0", "--json", "--set", "log=warn"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://{json.loads(server.stdout.readline())['address']}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module")
def served(cluster, model, folder):
    """The address of Ray Serve with the same documents in three shards."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, start in enumerate(range(0, DOCUMENTS, 500)):
        rows = news(start, min(start + 500, DOCUMENTS))
        (corpus / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    micpq.ray.build(corpus, folder / "shards", model, shards=3, workers=1)
    port = 20000 + (os.getpid() + 2) % 20000
    micpq.ray.serve(folder / "shards", name="news", port=port, replicas=2, timeout=60, backups=folder / "backups")
    yield f"http://127.0.0.1:{port}"
    ray.serve.shutdown()


INDEX = "/v1/indexes/news"
TEXTS = ["crude oil barrel", "wheat"]

#: Method, path and body of requests that both servers answer alike.
SAME = [
    ("GET", f"{INDEX}/facets", None),
    ("GET", f"{INDEX}/facets?values=1", None),
    ("GET", f"{INDEX}/facets?filter=year%3A1988%20AND%20labels%3Aoil&values=2", None),
    ("GET", f"{INDEX}/facets?filter=colour%3Ared", None),
    ("GET", f"{INDEX}/codebooks", None),
    *[("GET", f"{INDEX}/codebooks/{codebook}/{codeword}", None) for codebook in range(4) for codeword in (0, 3, 15)],
    ("GET", f"{INDEX}/codebooks/1/2?documents=1000", None),
    ("GET", f"{INDEX}/codebooks/1/2?documents=1", None),
    ("GET", f"{INDEX}/training", None),
    ("GET", f"{INDEX}/recall", None),
    ("GET", "/v1/jobs", None),
    ("GET", "/v1/models", None),
    ("POST", "/v1/embeddings", {"model": "news", "input": TEXTS}),
    ("POST", "/v1/embeddings", {"model": "news", "input": TEXTS[0], "encoding_format": "base64", "input_type": "query"}),
    ("POST", "/v1/embeddings", {"model": "news", "input": [2, 4, 5.0, 3], "user": "somebody", "dimensions": 32}),
    ("POST", "/v1/embeddings", {"model": "news/code", "input": TEXTS, "dimensions": 4}),
    ("POST", "/v1/embeddings", {"model": "news/code", "input": [[2, 4, 3], [2, 5, 3]], "encoding_format": "base64"}),
    # Refused.
    ("GET", f"{INDEX}/facets?values=0", None),
    ("GET", f"{INDEX}/facets?values=x", None),
    ("GET", f"{INDEX}/facets?colour=1", None),
    ("GET", f"{INDEX}/facets?values=1&values=2", None),
    ("GET", f"{INDEX}/facets?filter=yaer%3A1988", None),
    ("GET", f"{INDEX}/codebooks/99/0", None),
    ("GET", f"{INDEX}/codebooks/0/99", None),
    ("GET", f"{INDEX}/codebooks/x/0", None),
    ("GET", f"{INDEX}/codebooks/0/0?documents=0", None),
    ("POST", "/v1/embeddings", {"model": "other", "input": TEXTS}),
    ("POST", "/v1/embeddings", {"model": "news", "input": TEXTS, "dimensions": 4}),
    ("POST", "/v1/embeddings", {"model": "news", "input": []}),
    ("POST", "/v1/embeddings", {"model": "news", "input": ["oil", ""]}),
    ("POST", "/v1/embeddings", {"model": "news", "input": [4_000_000_000]}),
    ("POST", "/v1/embeddings", {"model": "news"}),
    ("POST", f"{INDEX}/recall", {"queries": 0}),
    ("POST", f"{INDEX}/recall", {"neighbours": 1}),
    ("POST", f"{INDEX}/recall", b"queries"),
    ("GET", "/v1/jobs/7", None),
    ("GET", "/v1/jobs/x", None),
    ("DELETE", "/v1/jobs/7", None),
]  # fmt: skip


def told(answer):
    """The status, and the body without what says when or where it was made, or the code of a refusal."""
    status, body, _ = answer
    return status, body["error"]["code"] if status >= 400 else body


def test_both_servers_answer_alike(plain, served):
    def compare():
        for method, path, body in SAME:
            assert told(send(served, path, body, method)) == told(send(plain, path, body, method)), (method, path, body)

    # Before, only one shard has a document with a colour; an index without one refuses the filter.
    compare()
    assert send(served, f"{INDEX}/facets?filter=colour%3Ared", method="GET")[0] == 422
    odd = {"documents": [{"id": "odd", "text": "crude oil", "labels": ["oil"], "attributes": {"colour": "red", "year": 1999, "share": 0.5}}]}
    for server in (plain, served):
        assert send(server, f"{INDEX}/documents", odd, "PUT")[0] == 200
        assert send(server, f"{INDEX}/documents/delete", {"ids": list(range(100, 141))})[1]["changed"] == 41
    assert send(served, f"{INDEX}/facets?filter=colour%3Ared", method="GET")[0] == 200
    compare()


def test_an_explanation_tells_the_shared_codewords_of_one_index(plain, served, many):
    queries = [
        {"text": "crude oil", "k": 20, "explain": True},
        {"document": 5, "k": 7, "explain": True, "rerank": "off", "filter": "year:1988"},
        {"text": "wheat", "hybrid": 0.5, "snippets": True, "explain": True},
    ]
    terms = 0
    for query in queries:
        expected, found = (send(server, f"{INDEX}/query", query)[1] for server in (plain, served))
        assert found["hits"] == expected["hits"]
        assert found["explanation"]["codewords"] == expected["explanation"]["codewords"]
        terms += sum(len(shared["terms"]) for hit in found["hits"] for shared in hit["shared"])
    assert terms > 20
    batch = {"queries": [queries[0], {"text": "wheat"}]}
    expected, found = (send(server, f"{INDEX}/query/batch", batch)[1]["answers"] for server in (plain, served))
    assert [answer["hits"] for answer in found] == [answer["hits"] for answer in expected]
    assert "shared" not in found[1]["hits"][0]
    # The same from Python.
    many.reload()
    expected = send(plain, f"{INDEX}/query", queries[0])[1]["hits"]
    hits = many.search("crude oil", k=20, explain=True)
    names = ("codebook", "codeword", "terms")
    assert [[dict(zip(names, shared)) for shared in hit.shared] for hit in hits] == [hit["shared"] for hit in expected]
    assert many.search("crude oil")[0].shared is None


def test_the_plain_program_explains_shards_as_one_index(many, served, folder):
    def explained(path):
        command = [BINARY, "search", path, "wheat harvest", "-k", "12", "--explain", "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        hits = [json.loads(line) for line in done.stdout.splitlines()][:-1]
        # The cursor names commits.
        hits[-1].pop("next")
        return hits

    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}")
    hits = explained(many.path)
    assert len(hits) == 12 and any(shared["terms"] for hit in hits for shared in hit["shared"])
    assert explained(folder / "shards") == hits


def ended(server, job):
    """A job when it is done."""
    limit = time.monotonic() + 120
    while True:
        status, view, _ = send(server, f"/v1/jobs/{job}", method="GET")
        assert status == 200
        if view["status"] != "running":
            return view
        assert time.monotonic() < limit, view
        time.sleep(0.1)


def test_recall_is_measured_in_a_job_and_is_that_of_one_index(plain, served):
    reports = []
    for server in (plain, served):
        status, begun, _ = send(server, f"{INDEX}/recall", {"queries": 60, "k": 5, "windows": 3, "rerank": 20})
        assert status == 202 and begun["kind"] == "recall" and begun["index"] == "news"
        done = ended(server, begun["id"])
        assert done["status"] == "succeeded" and done["error"] is None and done["seconds"] > 0
        assert done.keys() == begun.keys()
        assert send(server, f"{INDEX}/recall", method="GET")[1] == {"report": done["result"]}
        assert send(server, "/v1/jobs", method="GET")[1]["jobs"][0] == done
        reports.append(done["result"])
    assert reports[1] == reports[0] and 0 < reports[0]["recall"] < 1
    # Without a body, and cancelled.
    status, begun, _ = send(served, f"{INDEX}/recall")
    assert status == 202 and begun["id"] == 2
    assert send(served, "/v1/jobs/2", method="DELETE")[0] == 202
    assert ended(served, 2)["status"] in ("cancelled", "succeeded")
    assert send(served, INDEX, method="GET")[1]["job_running"] is False


def test_a_job_ends_as_its_work_does():
    cancelled, failed, running = Job(1, "recall", "news"), Job(2, "recall", "news"), Job(3, "recall", "news")
    cancelled.stop.set()
    cancelled.run(lambda job: job.go_on())
    assert cancelled.view()["status"] == "cancelled" and cancelled.view()["result"] is None

    def fail(_):
        raise micpq.ConfigError("the index has 3 documents")

    failed.run(fail)
    assert failed.view()["status"] == "failed" and failed.view()["error"] == "the index has 3 documents"
    go_on = threading.Event()
    thread = threading.Thread(target=running.run, args=(lambda _: {"found": go_on.wait(60)},))
    thread.start()
    assert running.running
    go_on.set()
    thread.join()
    assert running.view()["result"] == {"found": True} and not running.running


def test_backups_are_snapshots_of_all_shards(served, folder):
    assert send(served, f"{INDEX}/backups", method="GET")[:2] == (200, {"backups": []})
    status, made, _ = send(served, f"{INDEX}/backups")
    assert status == 201 and made["name"].startswith("news-")
    # A part of a backup is none, and neither is one of another index.
    (folder / "backups" / "news-17" / "shard").mkdir(parents=True)
    (folder / "backups" / "other-17").mkdir()
    (folder / "backups" / "other-17" / "snapshot.json").write_text("{}")
    assert send(served, f"{INDEX}/backups", method="GET")[1] == {"backups": [made["name"]]}
    micpq.ray.restore(folder / "backups" / made["name"], folder / "back")
    with micpq.ray.Searcher(folder / "back") as back:
        assert back.count() == made["documents"] == send(served, f"{INDEX}/count", {})[1]["count"]
        hits = send(served, f"{INDEX}/query", {"text": "crude oil"})[1]["hits"]
        assert back.search("crude oil").ids == [hit["id"] for hit in hits]
