"""The HTTP interface of Ray Serve: that of ``micpq serve``."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import micpq
import numpy as np
import pytest
import ray
from conftest import rounds

import micpq.ray
from micpq.ray import _openapi

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("MICPQ_BINARY", ROOT / "target" / "release" / "micpq"))


@pytest.fixture(scope="module")
def server(built, tmp_path_factory):
    """The address of a served folder of shards."""
    import shutil

    port = 20000 + os.getpid() % 20000
    shards = shutil.copytree(built, tmp_path_factory.mktemp("served") / "out")
    micpq.ray.serve(shards, name="news", port=port, replicas=2)
    yield f"http://127.0.0.1:{port}"
    ray.serve.shutdown()


def send(server, path, body=None, method="POST", headers={}):
    """Status, body and headers of an answer."""
    typed = {"content-type": "application/json"} if body is not None else {}
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    request = urllib.request.Request(server + path, data, {**typed, **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(body or b"null") if is_json or not body else body, answer.headers
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read() or b"null"), refused.headers


def test_the_description_is_that_of_the_server():
    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}")
    whole = subprocess.run([BINARY, "serve", "--openapi"], check=True, capture_output=True).stdout
    assert json.loads(_openapi.Description().text) == json.loads(whole), "run 'make ray-openapi'"


def test_queries_have_the_answers_of_one_index(server, one):
    status, found, _ = send(server, "/v1/indexes/news/query", {"text": "crude oil", "k": 5.0, "hybrid": 0.3, "snippets": True})
    expected = one.search("crude oil", k=5, hybrid=0.3, snippets=True)
    assert status == 200 and [hit["id"] for hit in found["hits"]] == expected.ids
    assert set(found) == {"hits", "next", "milliseconds"} and found["hits"][0]["snippet"]["text"] == expected[0].snippet[0]
    queries = [{"document": 5}, {"like": [{"text": "wheat"}, {"document": "9", "weight": 2}], "rerank": "off"}]
    status, both, _ = send(server, "/v1/indexes/news/query/batch", {"queries": queries})
    assert status == 200 and [hit["id"] for hit in both["answers"][0]["hits"]] == one.search(like=5).ids
    assert [hit["id"] for hit in both["answers"][1]["hits"]] == one.search("wheat", like={9: 2}, rerank=False).ids
    vector = one.model.embeddings(["bank loan"])[0]
    octets = {"content-type": "application/octet-stream"}
    path = "/v1/indexes/news/query/vector?k=3&filter=year%3A1988"
    status, near, _ = send(server, path, vector.astype("<f4").tobytes(), headers=octets)
    assert status == 200 and [hit["id"] for hit in near["hits"]] == one.search(vector, k=3, filter="year:1988").ids
    assert send(server, "/v1/indexes/news/count", {"filter": "year:1988"})[1] == {"count": one.count("year:1988")}


def test_every_operation_of_the_description_has_an_answer(server):
    assert send(server, "/readyz", method="GET")[:2] == (200, {"status": "ok", "unavailable": []})
    version = send(server, "/v1/version", method="GET")[1]
    assert version["name"] == "micpq" and version["version"] == micpq.__version__ and version["index_format"] > 0
    described = json.loads(urllib.request.urlopen(f"{server}/openapi.json").read())["paths"]
    unsupported = set()
    for path, methods in described.items():
        for method, operation in methods.items():
            filled = path.replace("{index}", "news").replace("{codebook}", "0").replace("{codeword}", "0").replace("{job}", "0").replace("{id}", "nobody")
            status, found, _ = send(server, filled, {} if method in ("put", "post") else None, method.upper())
            if status == 409:
                assert found["error"]["code"] == "unsupported" and len(found["error"]["message"]) > 60
                unsupported.add(operation["operationId"])
            assert status != 404 or found["error"]["code"] != "unknown_path", path
    assert unsupported == {
        "createIndex", "dropIndex", "trainIndex", "findDuplicates", "findTopics", "getTopics", "makeMap", "getMap", "getMapPoints", "getMapValues",
        "getMapDocuments", "getMapPlaces", "listSavedQueries", "saveQuery", "removeSavedQuery", "listMatches", "createBackup",
    }  # fmt: skip


def test_refusals_have_the_codes_of_the_server(server):
    wrong = [
        ({"text": "x", "colour": 1}, 400, "bad_request"), ({"text": "x", "k": 0}, 400, "bad_request"), (b"{", 400, "not_json"),
        (b'{"text": "\\ud800"}', 400, "not_json"), (b"[" * 100_000, 400, "not_json"), ({}, 422, "bad_query"),
        ({"text": "x", "like": [{"text": "y"}]}, 422, "bad_query"), ({"text": "x", "filter": "yaer:1"}, 422, "bad_filter"),
        ({"vector": [1.0]}, 422, "bad_vector"), ({"vector": [1e300] * 32}, 422, "bad_vector"), ({"document": "nobody"}, 422, "bad_query"),
        ({"text": "x" * (1 << 21)}, 413, "too_large"),
    ]  # fmt: skip
    for body, status, code in wrong:
        refused = send(server, "/v1/indexes/news/query", body)
        assert refused[0] == status and refused[1]["error"]["code"] == code, (str(body)[:80], refused)
    assert send(server, "/v1/indexes/other/query", {"text": "x"})[1]["error"]["code"] == "unknown_index"
    assert send(server, "/v1/nothing", {"text": "x"})[1]["error"]["code"] == "unknown_path"
    status, refused, headers = send(server, "/v1/indexes/news/query", method="GET")
    assert (status, refused["error"]["code"], headers["allow"]) == (405, "wrong_method", "POST")
    assert send(server, "/v1/indexes/news/query", b"{}", headers={"content-type": "text/plain"})[0] == 415
    assert send(server, "/v1/indexes/news/query", {"text": "x"}, headers={"host": "evil.example"})[0] == 421
    assert send(server, "/v1/indexes/news/query", {"text": "x"}, headers={"origin": "http://evil.example"})[0] == 403


def test_documents_are_stored_shown_and_deleted(server, one):
    new = [
        {"id": "a/b", "text": "crude oil", "labels": ["oil"], "attributes": {"year": 1999, "text": "yes", "share": 0.5, "big": 2**64}},
        {"id": "77777", "vector": [0.5] * 32},
    ]
    status, done, _ = send(server, "/v1/indexes/news/documents", {"documents": new}, "PUT")
    assert (status, done["changed"], done["documents"]) == (200, 2, 602)
    status, shown, _ = send(server, "/v1/indexes/news/documents/a%2Fb", method="GET")
    assert status == 200 and shown["id"] == "a/b" and shown["attributes"] == {"year": 1999, "text": "yes", "share": 0.5, "big": pytest.approx(2.0**64)}
    assert shown["labels"] == ["oil"] and shown["sequence"] > 600 and len(shown["code"]) == 4 and max(shown["code"]) < 16
    packed = one.model.encode(["crude oil"])[0]
    assert shown["code"] == np.stack([packed & 15, packed >> 4], axis=1).flatten().tolist()
    both = send(server, "/v1/indexes/news/documents/get", {"ids": [77777, "nobody", "a/b"]})[1]["documents"]
    assert [document and document["id"] for document in both] == [77777, None, "a/b"]
    assert send(server, "/v1/indexes/news/query", {"text": "x", "filter": "year:1999"})[1]["hits"][0]["id"] == "a/b"
    for body, code in (
        ({"documents": [{"id": 1}]}, "bad_document"), ({"documents": [{"id": 1, "vector": [0.0]}]}, "bad_vector"),
        ({"documents": []}, "bad_request"), ({"documents": [{"id": -1, "text": "x"}]}, "bad_request"),
        ({"documents": [{"id": 1, "text": "x", "attributes": {"a": {}}}]}, "bad_request"),
    ):  # fmt: skip
        assert send(server, "/v1/indexes/news/documents", body, "PUT")[1]["error"]["code"] == code, body
    assert send(server, "/v1/indexes/news/documents/77777", method="DELETE")[1] == {"changed": 1, "documents": 601, "cut": 0}
    assert send(server, "/v1/indexes/news/documents/77777", method="DELETE")[1]["error"]["code"] == "unknown_document"
    assert send(server, "/v1/indexes/news/documents/delete", {"filter": "year:1999"})[1] == {"changed": 1, "documents": 600, "cut": 0}
    assert send(server, "/v1/indexes/news/documents/delete", {"ids": ["a/b", "nobody"]})[1]["changed"] == 0
    assert send(server, "/v1/indexes/news/documents/delete", {})[1]["error"]["code"] == "bad_query"


NDJSON = {"content-type": "application/x-ndjson"}


def test_a_stream_is_stored_while_it_comes(server):
    import gzip
    import http.client

    path = "/v1/indexes/news/documents/stream"
    lines = [json.dumps({"id": f"s{i}", "text": f"dock union {i}", "label": "port", "year": 1990}) + "\n" for i in range(600)]
    before = send(server, "/v1/indexes/news/count", {})[1]["count"]
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=60)

    def pieces():
        for start in range(0, 600, 100):
            yield "".join(lines[start : start + 100]).encode()
        # The rest comes when the beginning is found already.
        limit = time.monotonic() + 50
        while send(server, "/v1/indexes/news/documents/s0", method="GET")[0] != 200 and time.monotonic() < limit:
            time.sleep(0.1)
        assert send(server, "/v1/indexes/news/documents/s0", method="GET")[0] == 200
        yield b"{}\n"

    connection.request("POST", path + "?on_error=skip", pieces(), NDJSON, encode_chunked=True)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    assert answer.status == 200 and found["changed"] == 600 and found["skipped"] == 1, found
    assert len(found["reasons"]) == 1 and "stream" in found["reasons"][0] and found["documents"] == before + 600
    assert send(server, "/v1/indexes/news/count", {"filter": "labels:port AND year:1990"})[1]["count"] >= 600
    # Compressed, with other fields; then a bad line, after which nothing more is stored.
    packed = gzip.compress(b'{"key": "g", "words": "dock union"}\n')
    assert send(server, path + "?id_field=key&text_field=words", packed, headers=NDJSON)[1]["changed"] == 1
    status, refused, _ = send(server, path, (lines[0] + "{ no document\n" + lines[1]).encode(), headers=NDJSON)
    assert (status, refused["error"]["code"], refused["error"]["line"]) == (422, "bad_document", 2)
    assert refused["error"]["committed"] == 1
    assert send(server, path, b"", headers=NDJSON)[1]["changed"] == 0
    for query, code in (("?colour=1", "bad_request"), ("?on_error=no", "bad_request"), ("?id_field=", "bad_request"), ("?on_duplicate=skip", "unsupported")):
        assert send(server, path + query, lines[0].encode(), headers=NDJSON)[1]["error"]["code"] == code
    assert send(server, path, lines[0].encode(), headers={"content-type": "text/plain"})[0] == 415
    ids = [f"s{i}" for i in range(600)] + ["g"]
    assert send(server, "/v1/indexes/news/documents/delete", {"ids": ids})[1] == {"changed": 601, "documents": before, "cut": 0}


def test_the_index_and_the_metrics_are_shown(server, one):
    listed = send(server, "/v1/indexes", method="GET")[1]
    shown = send(server, "/v1/indexes/news", method="GET")[1]
    assert set(listed) == {"indexes", "unavailable"} and listed["unavailable"] == []
    # A merge in the background may change these between two requests, and nothing else.
    merged = ("deleted", "segments", "bytes")
    [only] = listed["indexes"]
    assert only.keys() == shown.keys() and {**only, **{key: shown[key] for key in merged}} == shown
    assert shown["name"] == "news" and shown["documents"] == 600 and shown["bits"] == 16 and shown["width"] == one.model.inputs
    assert shown["model"] == one.model.fingerprint and shown["texts"] is True and shown["encoder"].endswith("tiny")
    assert shown["segments"] >= 3 and shown["bytes"]["codes"] > 0
    with urllib.request.urlopen(f"{server}/metrics") as answer:
        text = answer.read().decode()
    assert 'micpq_documents{index="news"} 600.0' in text and 'micpq_shards{index="news"}' in text
    assert 'micpq_http_requests_total{method="GET",route="getIndex",status="200"}' in text


def test_the_server_moves_its_own_shards(server, one):
    handle = ray.serve.get_app_handle("micpq-news")
    before = send(server, "/v1/indexes/news/query", {"text": "crude oil"})[1]["hits"]
    handle.rebalance.remote(2).result(timeout_s=120)
    assert 'micpq_shards{index="news"} 2.0' in urllib.request.urlopen(f"{server}/metrics").read().decode()
    assert send(server, "/v1/indexes/news/query", {"text": "crude oil"})[1]["hits"] == before
    new = {"documents": [{"id": "moved", "text": "crude oil"}]}
    assert send(server, "/v1/indexes/news/documents", new, "PUT")[0] == 200
    assert send(server, "/v1/indexes/news/documents/moved", method="DELETE")[0] == 200


def test_answers_match_the_description(server, tmp_path):
    """The contract test of the server: schemathesis makes requests from the description and compares the answers with it. Some of
    them delete documents, so it comes last."""
    pytest.importorskip("schemathesis")
    folder = ROOT / "crates" / "serve"
    program = Path(sys.executable).with_name("schemathesis")
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = ["--config-file", folder / "schemathesis.toml", "run", "--no-color", "--max-examples", str(rounds(12)), f"{server}/openapi.json"]
    done = subprocess.run([program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert send(server, "/healthz", method="GET")[1] == {"status": "ok"}
