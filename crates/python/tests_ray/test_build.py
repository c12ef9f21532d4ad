"""Building in shards: equality with one index, resumption, bad rows, object stores."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec.implementations.local
import micpq
import pytest
import ray
from conftest import SEARCHES, Killer, assert_equal

import micpq.ray

ROOT = Path(__file__).resolve().parents[3]


def state(out):
    """Ids, codes and texts of all shards, in the order of insertion."""
    return sorted(
        (row["id"], row["text"]) for d in micpq.ray.Manifest.read(out).directories(out) for row in micpq.open(d).to_arrow().to_pylist()
    )


def test_shards_are_ordinary_indexes_and_answer_as_one(shards, one, documents):
    manifest = micpq.ray.Manifest.read(shards)
    assert len(manifest.shards) == 3 and sum(s["documents"] for s in manifest.shards) == 600
    for directory in manifest.directories(shards):
        assert micpq.open(directory).verify() == []
    assert state(shards) == sorted((d["id"], d["text"]) for d in documents)
    dead = [json.loads(line)["problem"] for line in (shards / "dead-letters.jsonl").read_text().splitlines()]
    assert len(dead) == 2 and all("a.jsonl" in problem for problem in dead)
    with micpq.ray.Searcher(shards) as searcher:
        assert_equal(one, searcher)
        assert searcher.get(5)["text"] == documents[5]["text"] and searcher.get("nobody") is None
        together = searcher.search_many(["crude oil", "bank loan"], k=4)
        assert together == one.search_many(["crude oil", "bank loan"], k=4)
        for wrong in ({"query": "x", "filter": "yaer:1987"}, {"query": "x", "k": 0}, {"like": 12345}):
            with pytest.raises(micpq.Error) as refused:
                one.search(**wrong)
            with pytest.raises(type(refused.value)) as same:
                searcher.search(**wrong)
            assert str(same.value) == str(refused.value)


def test_the_plain_program_searches_a_folder_of_shards(shards, one):
    binary = Path(os.environ.get("MICPQ_BINARY", ROOT / "target" / "release" / "micpq"))
    if not binary.is_file():
        pytest.skip(f"no {binary}")
    for search in SEARCHES[:5]:
        flags = ["-k", str(search["k"]), "--json"]
        flags += ["--rerank", "off"] if search.get("rerank") is False else []
        flags += ["--hybrid", str(search["hybrid"])] if "hybrid" in search else []
        flags += ["--filter", search["filter"]] if "filter" in search else []
        done = subprocess.run([binary, "search", shards, search["query"], *flags], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        found = [json.loads(line)["id"] for line in done.stdout.splitlines()]
        expected = {name: value for name, value in search.items() if name != "snippets"}
        assert found == one.search(**expected).ids, search


def test_a_finished_build_is_left_as_it_is_and_another_refused(shards, corpus, model):
    before = {path: path.stat().st_mtime_ns for path in shards.rglob("*") if path.is_file()}
    built = micpq.ray.build(corpus, shards, model, shards=3, workers=1, documents_per_part=64)
    assert built.documents == 600 and built.bad_rows == 2
    assert before == {path: path.stat().st_mtime_ns for path in shards.rglob("*") if path.is_file()}
    with pytest.raises(micpq.ConfigError, match="another build"):
        micpq.ray.build(corpus, shards, model, shards=4, documents_per_part=64)


def test_bad_arguments_are_refused(cluster, corpus, model, tmp_path):
    for wrong, message in (({"shards": 0}, "shards is 0"), ({"colour": 1}, "unknown option 'colour'")):
        with pytest.raises(micpq.ConfigError, match=message):
            micpq.ray.build(corpus, tmp_path / "out", model, **wrong)
    with pytest.raises(micpq.InputError, match="no such file"):
        micpq.ray.build(tmp_path / "nowhere", tmp_path / "out", model)


def test_an_encoding_worker_killed_on_the_way_loses_and_doubles_nothing(cluster, corpus, model, one, tmp_path):
    killed = []

    def kill(done, rates):
        if not killed and done > 64:
            for name in rates:
                pid = int(name.rsplit("-", 1)[1])
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    out = tmp_path / "out"
    built = micpq.ray.build(corpus, out, model, shards=2, workers=1, documents_per_part=32, progress=kill)
    assert killed and built.documents == 600
    with micpq.ray.Searcher(out) as searcher:
        assert_equal(one, searcher, SEARCHES[:4])


DRIVER = """
import sys, time, ray, micpq.ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")


def progress(done, _):
    print(done, flush=True)
    time.sleep(0.1)


micpq.ray.build(sys.argv[2], sys.argv[3], sys.argv[4], shards=2, workers=1, documents_per_part=8, progress=progress)
"""


def test_a_killed_driver_goes_on_where_it_was(cluster, corpus, model, one, tmp_path):
    model.save(tmp_path / "model")
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", DRIVER, cluster.address, str(corpus), str(out), str(tmp_path / "model")]
    driver = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in driver.stdout:
        if line.strip().isdigit() and int(line) >= 80:
            break
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert not (out / "manifest.json").exists()
    parts = sorted((out / ".build" / "parts").glob("*.arrow"))
    assert parts
    before = {part.name: part.read_bytes() for part in parts}
    built = micpq.ray.build(corpus, out, model, shards=2, workers=1, documents_per_part=8)
    assert built.resumed_parts >= len(before) and built.documents == 600 and not (out / ".build").exists()
    with micpq.ray.Searcher(out) as searcher:
        assert_equal(one, searcher, SEARCHES[:4])


def test_a_model_is_trained_on_the_cluster_when_none_is_given(cluster, corpus, workspace, tmp_path):
    options = {"encoder": str(workspace / "models" / "tiny"), "epochs": 1, "hidden": 32, "bits": 16, "sample": 200, "cpus": 1}
    built = micpq.ray.build(corpus, tmp_path / "out", shards=2, workers=1, train=options)
    assert built.documents == 600
    fingerprint = micpq.ray.Manifest.read(tmp_path / "out").model
    # Without a cache, and with a worker that dies: its batch is encoded again, with the same bits.
    with Killer(cluster, "ViewActor.encode") as killer:
        again = micpq.ray.train(corpus, **options, workers=2, cache=tmp_path / "cache")
    assert killer.killed and again.fingerprint == fingerprint, "one seed, one sample, one model"
    alone = micpq.ray.train(corpus, **options, workers=0, cache=tmp_path / "other")
    assert alone.fingerprint == fingerprint
    with pytest.raises(micpq.ConfigError, match="workers beside the training task, not 50"):
        micpq.ray.train(corpus, **options, workers=50)


def test_a_worker_that_finds_no_gpu_says_so(cluster, corpus, model, tmp_path):
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    # Ray believes the node.
    node = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=100 << 20)
    try:
        # Ray Data wraps what a worker raises.
        with pytest.raises(ray.exceptions.RayError, match="DeviceError: device cuda:0: the NVIDIA driver was not found"):
            micpq.ray.build(corpus, tmp_path / "out", model, workers=1, gpus_per_worker=1)
    finally:
        cluster.remove_node(node)


class NotedFiles(fsspec.implementations.local.LocalFileSystem):
    """The local file system of fsspec. It notes every file that is opened."""

    def __init__(self, notes, **options):
        super().__init__(**options)
        self.notes = notes

    def open(self, path, mode="rb", **options):
        with Path(self.notes).open("a") as notes:
            notes.write(f"{path}\n")
        return super().open(path, mode, **options)


class Enough(Exception):
    pass


def test_readers_are_held_back_while_no_worker_encodes(cluster, model, tmp_path):
    # 300 MB of texts, three times what an object store of the test holds.
    (tmp_path / "corpus").mkdir()
    for number in range(120):
        rows = (json.dumps({"id": 40 * number + i, "text": "oil " * 16_000}) + "\n" for i in range(40))
        (tmp_path / "corpus" / f"{number:03}.jsonl").write_text("".join(rows))
    notes, opened = tmp_path / "notes", []

    def stop_encoding(done, rates):
        (worker,) = (int(name.rsplit("-", 1)[1]) for name in rates)
        os.kill(worker, signal.SIGSTOP)
        try:
            while not opened or len(opened) < 4 or opened[-1] != opened[-4]:
                time.sleep(1)
                opened.append(len(notes.read_text().splitlines()))
        finally:
            os.kill(worker, signal.SIGCONT)
        raise Enough

    with pytest.raises(Enough):
        micpq.ray.build(tmp_path / "corpus", tmp_path / "out", model, workers=1, progress=stop_encoding, filesystem=NotedFiles(str(notes)), language="en")
    print(opened)
    assert opened[-1] < 100, "the readers went on"


def test_one_file_is_encoded_by_all_workers(cluster, documents, model, tmp_path):
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    first, late = [], []

    def stop_the_first(done, rates):
        """Until the other has encoded something, or for two minutes: then the other never will."""
        if not first:
            first.extend(int(name.rsplit("-", 1)[1]) for name in rates)
            os.kill(first[0], signal.SIGSTOP)
            late.append(threading.Timer(120, os.kill, (first[0], signal.SIGCONT)))
            late[0].start()
        elif len(rates) == 2:
            os.kill(first[0], signal.SIGCONT)

    built = micpq.ray.build(tmp_path / "corpus.jsonl", tmp_path / "out", model, shards=2, workers=2, documents_per_part=8, progress=stop_the_first)
    late[0].cancel()
    assert len(built.workers) == 2, built
    assert built.documents == len(documents)


def test_a_killed_indexing_task_loses_and_doubles_nothing(cluster, corpus, model, one, tmp_path):
    with Killer(cluster, "_index_shard") as killer:
        built = micpq.ray.build(corpus, tmp_path / "out", model, shards=2, workers=1)
    assert killer.killed and built.documents == 600
    with micpq.ray.Searcher(tmp_path / "out") as searcher:
        assert_equal(one, searcher, SEARCHES[:4])
    left = [p.name for p in (tmp_path / "out").iterdir() if p.name not in ("manifest.json", "model", "dead-letters.jsonl", "build.json")]
    assert sorted(left) == [shard["name"] for shard in micpq.ray.Manifest.read(tmp_path / "out").shards]


@pytest.fixture(scope="session")
def object_store(workspace):
    """moto's server on this machine, as an S3 file system of Arrow and one of fsspec."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"access_key": "test", "secret_key": "test"}
    boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    ).create_bucket(Bucket="news")
    arrow = fs.S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", region="us-east-1", **keys)
    yield arrow, s3fs.S3FileSystem(key="test", secret="test", client_kwargs={"endpoint_url": f"http://{host}:{port}"})
    server.stop()


def test_a_corpus_and_a_snapshot_in_an_object_store(cluster, corpus, model, one, object_store, tmp_path):
    from micpq.ray._files import upload
    from pyarrow import fs

    object_store, by_fsspec = object_store
    for path in sorted(corpus.iterdir()):
        upload(path, object_store, f"news/corpus/{path.name}")
    out = tmp_path / "out"
    built = micpq.ray.build("s3://news/corpus", out, model, shards=2, workers=1, filesystem=by_fsspec)
    assert built.documents == 600 and built.bad_rows == 2
    assert "news/corpus/a.jsonl" in (out / "dead-letters.jsonl").read_text()
    micpq.ray.snapshot(out, "news/snapshot", filesystem=object_store)
    with pytest.raises(micpq.ConfigError, match="already holds a snapshot"):
        micpq.ray.snapshot(out, "news/snapshot", filesystem=object_store)
    micpq.ray.restore("news/snapshot", tmp_path / "back", filesystem=object_store)
    with micpq.ray.Searcher(tmp_path / "back") as searcher:
        assert_equal(one, searcher, SEARCHES[:4])
    # A damaged object is refused.
    objects = object_store.get_file_info(fs.FileSelector("news/snapshot", recursive=True))
    name = next(entry.path for entry in objects if entry.path.endswith(".store"))
    with object_store.open_output_stream(name) as stream:
        stream.write(b"damage")
    with pytest.raises(micpq.FormatError, match="damaged"):
        micpq.ray.restore("news/snapshot", tmp_path / "again", filesystem=object_store)
    assert not (tmp_path / "again" / "manifest.json").exists()


def test_a_listing_that_is_older_than_the_parts_loses_nothing(cluster, corpus, model, one, tmp_path, monkeypatch):
    # What a network folder may do: parts of other machines are readable, and no listing of this machine shows them.
    listed = Path.glob

    def old(self, pattern):
        return (path for path in listed(self, pattern) if not (pattern == "*.arrow" and path.name.endswith("1.arrow")))

    monkeypatch.setattr(Path, "glob", old)
    built = micpq.ray.build(corpus, tmp_path / "out", model, shards=2, workers=1, documents_per_part=64)
    assert built.documents == 600
    with micpq.ray.Searcher(tmp_path / "out") as searcher:
        assert_equal(one, searcher, SEARCHES[:2])


def test_a_part_that_does_not_appear_stops_the_build(tmp_path, monkeypatch):
    from micpq.ray import _build

    pauses = []
    monkeypatch.setattr(_build.time, "sleep", pauses.append)
    (tmp_path / "000000-00000000.arrow").write_bytes(b"")
    _build._check_parts(tmp_path, ["000000-00000000.arrow"])
    with pytest.raises(micpq.StorageError, match="lacks 1 parts that workers wrote, the first 000000-00000001.arrow"):
        _build._check_parts(tmp_path, ["000000-00000000.arrow", "000000-00000001.arrow"])
    assert sum(pauses) > 30


def test_a_file_that_cannot_be_read_is_a_dead_letter(cluster, corpus, documents, model, tmp_path):
    import gzip

    folder = tmp_path / "corpus"
    folder.mkdir()
    rows = [json.dumps(row) + "\n" for row in documents[:300]]
    (folder / "a.jsonl").write_text("".join(rows[:50]))
    packed = gzip.compress("".join(rows[50:250]).encode())
    (folder / "b.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "c.parquet").write_bytes(b"PAR1 and nothing else")
    (folder / "d.jsonl").write_text("".join(rows[250:]))
    built = micpq.ray.build(folder, tmp_path / "out", model, shards=2, workers=1, documents_per_part=16)
    assert 100 <= built.documents < 300 and built.bad_rows == 2
    letters = (tmp_path / "out" / "dead-letters.jsonl").read_text().splitlines()
    assert "b.jsonl.gz" in letters[0] and "c.parquet" in letters[1] and all("cannot be read further" in line for line in letters)
    with micpq.ray.Searcher(tmp_path / "out") as searcher:
        assert searcher.get(0) and searcher.get(299), "the other files are there"
        # What was read of a file before it broke off is there too.
        assert len(searcher) == built.documents
    for name in ("a.jsonl", "d.jsonl", "b.jsonl.gz"):
        (folder / name).unlink()
    with pytest.raises(micpq.InputError, match="no document could be read"):
        micpq.ray.build(folder, tmp_path / "none", model, shards=2, workers=1)


def test_a_build_does_not_go_on_with_files_that_were_written_again(cluster, corpus, model, tmp_path):
    import shutil

    folder, out = shutil.copytree(corpus, tmp_path / "corpus"), tmp_path / "out"

    def stop(done, rates):
        raise Enough

    with pytest.raises(Enough):
        micpq.ray.build(folder, out, model, workers=1, documents_per_part=16, progress=stop)
    # The same size, another time.
    os.utime(folder / "a.jsonl", (1, 1))
    with pytest.raises(micpq.ConfigError, match="another source"):
        micpq.ray.build(folder, out, model, workers=1, documents_per_part=16)


def test_other_options_of_training_are_refused(cluster, corpus, workspace, model, tmp_path):
    options = {"encoder": str(workspace / "models" / "tiny"), "epochs": 1, "hidden": 32, "bits": 16, "sample": 100, "cpus": 1}
    out = tmp_path / "out"
    built = micpq.ray.build(corpus, out, shards=2, workers=1, train={**options, "workers": 0})
    # Where it runs does not change the model.
    assert micpq.ray.build(corpus, out, shards=2, workers=1, train={**options, "workers": 1}) == built
    with pytest.raises(micpq.ConfigError, match="trained with another options"):
        micpq.ray.build(corpus, out, shards=2, workers=1, train={**options, "sample": 101})
    given = tmp_path / "given"
    micpq.ray.build(corpus, given, model, shards=2, workers=1)
    with pytest.raises(micpq.ConfigError, match="was given and not trained"):
        micpq.ray.build(corpus, given, shards=2, workers=1, train=options)
    assert micpq.ray.build(corpus, given, shards=2, workers=1).documents == 600


def test_workers_without_a_place_are_refused_at_once(cluster, corpus, model, tmp_path):
    # All CPUs for encoding leave none for reading: they would wait for each other.
    for workers, cpus in ((4, 1), (2, 2), (3, 2), (1, 3)):
        with pytest.raises(micpq.ConfigError, match="beside the tasks that read"):
            micpq.ray.build(corpus, tmp_path / "out", model, workers=workers, cpus_per_worker=cpus)


def test_places_for_training_are_counted_by_machine(cluster, corpus, workspace):
    options = {"encoder": str(workspace / "models" / "tiny"), "epochs": 1, "hidden": 32, "bits": 16, "sample": 100}
    node = cluster.add_node(num_cpus=3, object_store_memory=100 << 20)
    try:
        # What earlier tests had is given back a moment later.
        limit = time.monotonic() + 60
        while ray.available_resources().get("CPU", 0) < 7 and time.monotonic() < limit:
            time.sleep(0.1)
        # 7 CPUs of 3 machines: beside a training task of one, there is one place of 3, not two.
        with pytest.raises(micpq.ConfigError, match="place for 1 workers beside the training task, not 2"):
            micpq.ray.train(corpus, **options, cpus=1, workers=2, cpus_per_worker=3)
        with pytest.raises(micpq.ConfigError, match="no machine has 9 CPUs"):
            micpq.ray.train(corpus, **options, cpus=9)
    finally:
        cluster.remove_node(node)


def test_a_sample_is_the_rows_with_the_smallest_numbers(cluster, corpus, documents):
    from micpq.ray import _files, _train

    def draw(seed, row):
        x = (row + (seed + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return x ^ (x >> 31)

    reader, path = _files.resolve(corpus)
    files = [(number, file.path) for number, file in enumerate(_files.corpus_files(reader, path))]
    rows = [(0, i) for i in range(250)] + [(1, i) for i in range(200)] + [(2, i) for i in range(150)]
    numbered = sorted((draw(7, (file << 32) + row), document["id"]) for (file, row), document in zip(rows, documents))
    for size in (0, 1, 40, 600, 1000):
        found = _train._sample(reader, files, json.dumps({"on_error": "skip"}), size, 7)
        assert [json.loads(document)[0]["id"] for document in found] == [id for _, id in numbered[:size]]


def test_a_folder_of_shards_is_verified(shards, cluster):
    assert micpq.ray.verify(shards) == micpq.ray.Verified([], [])
    binary = Path(os.environ.get("MICPQ_BINARY", ROOT / "target" / "release" / "micpq"))
    if binary.is_file():
        sound = subprocess.run([binary, "index", "verify", shards], text=True, capture_output=True)
        assert sound.returncode == 0 and "sound" in sound.stdout, sound.stderr
    with micpq.ray.Searcher(shards) as searcher:
        searcher.add([{"id": 5, "text": "crude oil"}])
    names = [shard["name"] for shard in micpq.ray.Manifest.read(shards).shards]
    found = micpq.ray.verify(shards)
    assert found.problems == [] and found.changed == [names[micpq._micpq.route(5, 3)]]
    store = next((shards / names[0]).rglob("*.store"))
    content = bytearray(store.read_bytes())
    content[len(content) // 2] ^= 1
    store.write_bytes(content)
    assert any(store.name in problem for problem in micpq.ray.verify(shards).problems)
    if binary.is_file():
        damaged = subprocess.run([binary, "index", "verify", shards], text=True, capture_output=True)
        assert damaged.returncode == 1 and store.name in damaged.stderr
