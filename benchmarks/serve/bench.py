#!/usr/bin/env python3
"""The server under load, beside PostgreSQL with pgvector and milvus-lite in the same run.

    make bench-serve                                  everything, 1,000,000 documents
    make bench-serve ARGS="--documents 100000 --seconds 5 --parts ours,stream"

Parts: data (index and vectors, kept between runs), ours (wrk), stream (NDJSON), postgres, milvus, report. Each keeps its
figures in work/bench-serve/, and the report is made of those that are there.
"""

import argparse
import csv
import datetime
import gzip
import http.client
import itertools
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MICPQ = ROOT / "target/release/micpq"
PARTS = ["data", "ours", "stream", "postgres", "milvus", "report"]
CONNECTIONS = [1, 16, 256]
K = 10


def run(*command, **options):
    print("+", " ".join(str(c) for c in command), flush=True)
    return subprocess.run([str(c) for c in command], check=True, **options)


def data(args, work):
    """A base index of real news, then documents moved by noise until there are enough."""
    base = work / "base.micpq"
    if not base.exists():
        run(MICPQ, "build", args.corpus, "--bits", 64, "--views", "noise", "-o", base)
    if not (work / "base.npy").exists():
        run(MICPQ, "encode", args.corpus, "-o", work / "base.npy")
    run(ROOT / "target/release/fill", base, work / "base.npy", args.documents, work / "big.micpq",
        work / "vectors.f32", work / "queries.f32")
    with gzip.open(args.corpus, "rt", newline="") as file:
        texts = [row[-1] for row in itertools.islice(csv.reader(file), 1, 1001)]
    # A query is a sentence's beginning: about ten words, as people ask.
    texts = [" ".join(text.split()[:10]) for text in texts if text]
    width = np.load(work / "base.npy", mmap_mode="r").shape[1]
    queries = np.fromfile(work / "queries.f32", dtype=np.float32).reshape(-1, width)
    dump = lambda name, rows: (work / name).write_text("".join(json.dumps(r) + "\n" for r in rows))
    short = lambda v: [round(float(x), 5) for x in v]
    dump("vector.jsonl", [{"vector": short(q), "k": K, "documents": False} for q in queries])
    dump("text.jsonl", [{"text": t, "k": K, "documents": False} for t in texts])
    # The id is filled in by the load script; as JSON it stands without quotes.
    write = lambda **more: json.dumps({"documents": [{"id": "@ID@", **more}]}).replace('"@ID@"', "@ID@")
    (work / "write-vector.jsonl").write_text(
        "".join(write(text="a document with a vector of its own", vector=short(q)) + "\n" for q in queries[:200]))
    (work / "write-text.jsonl").write_text("".join(write(text=t) + "\n" for t in texts[:200]))
    return {"documents": args.documents, "width": width, "bits": 64}


class Server:
    def __init__(self, index):
        self.process = subprocess.Popen(
            [str(MICPQ), "serve", f"big={index}", "--listen", "127.0.0.1:0", "--json", "--set", "log=warn"],
            stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def get(self, path):
        host, port = self.address.split(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def fresh(work):
    """A copy of the index to write to, so that every run begins with the same one."""
    copy = work / "run.micpq"
    shutil.rmtree(copy, ignore_errors=True)
    run(MICPQ, "index", "backup", work / "big.micpq", copy, stdout=subprocess.DEVNULL)
    return copy


def ours(args, work):
    rows = []
    for kind in ["vector", "text"]:
        for connections in CONNECTIONS:
            with Server(fresh(work)) as server:
                def wrk(seconds, writes):
                    out = subprocess.run(
                        ["wrk", "-t", str(min(2, connections)), "-c", str(connections), "-d", f"{seconds}s", "--timeout",
                         "30s", "-s", str(HERE / "load.lua"), f"http://{server.address}", "--",
                         "/v1/indexes/big/query", str(work / f"{kind}.jsonl"), "/v1/indexes/big/documents",
                         str(work / f"write-{kind}.jsonl"), str(writes)], check=True, capture_output=True, text=True).stdout
                    line = next(l for l in out.splitlines() if l.startswith("RESULT "))
                    return json.loads(line[len("RESULT "):])
                wrk(2, 0)
                row = wrk(args.seconds, args.writes)
                row |= {"kind": kind, "connections": connections, "per_second": row["requests"] / row["seconds"]}
                metrics = server.get("/metrics")
                total = lambda name: sum(float(l.rsplit(" ", 1)[1]) for l in metrics.splitlines() if l.startswith(name))
                row["batch"] = total("micpq_batch_queries_sum") / max(1, total("micpq_batch_queries_count"))
                row["commits"] = total("micpq_commit_seconds_count")
                row["rss_mb"] = total("process_resident_memory_bytes") / 1e6
                print(row, flush=True)
                rows.append(row)
    return {"rows": rows, "seconds": args.seconds, "writes_per_thousand": args.writes}


def stream(args, work):
    """Our own writer: one connection, chunked, as fast as the server takes it."""
    texts = [json.loads(line)["text"] for line in (work / "text.jsonl").read_text().splitlines()]
    lines = [json.dumps({"id": 3_000_000_000 + i, "text": texts[i % len(texts)], "year": 1987 + i % 3}) + "\n"
             for i in range(args.stream)]
    with Server(fresh(work)) as server:
        host, port = server.address.split(":")
        connection = http.client.HTTPConnection(host, int(port))
        begun = time.monotonic()
        body = ("".join(lines[i:i + 100]).encode() for i in range(0, len(lines), 100))
        connection.request("POST", "/v1/indexes/big/documents/stream", body=body, encode_chunked=True,
                           headers={"Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"})
        answer = json.loads(connection.getresponse().read())
        seconds = time.monotonic() - begun
    assert answer.get("changed") == args.stream, answer
    return {"documents": args.stream, "seconds": seconds, "per_second": args.stream / seconds}


def percentiles(times):
    times = sorted(times)
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))] * 1e3
    return {"p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "max_ms": times[-1] * 1e3}


def load(seconds, connections, open_client):
    """As many clients as connections, each asking again when it is answered."""
    times, stop, lock = [], time.monotonic() + seconds, threading.Lock()
    failures = []

    def work(number):
        try:
            ask, rng, own = open_client(number), np.random.default_rng(number), []
            while (begun := time.monotonic()) < stop:
                ask(rng)
                own.append(time.monotonic() - begun)
            with lock:
                times.extend(own)
        except Exception as error:  # told in the report, not swallowed
            failures.append(str(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(connections)]
    begun = time.monotonic()
    [t.start() for t in threads]
    [t.join() for t in threads]
    if not times:
        raise RuntimeError(failures[:1])
    return {"requests": len(times), "per_second": len(times) / (time.monotonic() - begun), "failed": len(failures),
            "connections": connections, "kind": "vector"} | percentiles(times)


def exact(vectors, queries, k):
    """The true neighbours by Euclidean distance, chunk by chunk."""
    best = [[] for _ in queries]
    for start in range(0, len(vectors), 100_000):
        part = np.asarray(vectors[start:start + 100_000])
        d = (part ** 2).sum(1)[None] - 2 * queries @ part.T
        for q, row in enumerate(d):
            near = np.argpartition(row, k)[:k]
            best[q] = sorted(best[q] + [(row[i], start + int(i)) for i in near])[:k]
    return [{i for _, i in b} for b in best]


def recall(truth, found):
    return statistics.mean(len(t & set(f)) / len(t) for t, f in zip(truth, found))


def arrays(work):
    width = np.load(work / "base.npy", mmap_mode="r").shape[1]
    vectors = np.memmap(work / "vectors.f32", dtype=np.float32, mode="r").reshape(-1, width)
    return vectors, np.fromfile(work / "queries.f32", dtype=np.float32).reshape(-1, width)


def postgres(args, work):
    import pgserver
    import psycopg
    vectors, queries = arrays(work)
    place, before = work / "postgres", work / "postgres.json"
    server = pgserver.get_server(place)
    try:
        uri = server.get_uri()
        text = lambda v: "[" + ",".join(f"{x:.5f}" for x in v) + "]"
        lists = max(10, len(vectors) // 1000)
        with psycopg.connect(uri, autocommit=True) as db:
            # Loading takes ten minutes: what an earlier run loaded is taken again, without what it wrote.
            db.execute("CREATE EXTENSION IF NOT EXISTS vector")
            db.execute(f"CREATE TABLE IF NOT EXISTS d (id bigint PRIMARY KEY, v vector({vectors.shape[1]}))")
            db.execute("DELETE FROM d WHERE id >= %s", (len(vectors),))
            version = db.execute("SHOW server_version").fetchone()[0]
            extension = db.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()[0]
            loaded = db.execute("SELECT count(*) FROM d").fetchone()[0] == len(vectors)
            if loaded and before.exists():
                db.execute("VACUUM ANALYZE d")
                built = json.loads(before.read_text())["build_seconds"]
            else:
                db.execute("TRUNCATE d")
                db.execute("DROP INDEX IF EXISTS d_v")
                begun = time.monotonic()
                with db.cursor().copy("COPY d (id, v) FROM STDIN") as copy:
                    for i, v in enumerate(vectors):
                        copy.write_row((i, text(v)))
                db.execute("SET maintenance_work_mem = '2GB'")
                db.execute(f"CREATE INDEX d_v ON d USING ivfflat (v vector_l2_ops) WITH (lists = {lists})")
                db.execute("ANALYZE d")
                built = time.monotonic() - begun
            size = db.execute("SELECT pg_total_relation_size('d')").fetchone()[0]
            ask = f"SELECT id FROM d ORDER BY v <-> %s::vector LIMIT {K}"
            truth = exact(vectors, queries[:100], K)
            probes = 1
            while True:
                db.execute(f"SET ivfflat.probes = {probes}")
                got = recall(truth, [[r[0] for r in db.execute(ask, (text(q),))] for q in queries[:100]])
                if got >= 0.9 or probes >= lists:
                    break
                probes *= 2
        asked = [text(q) for q in queries]
        rows = []

        def client(number):
            db = psycopg.connect(uri, autocommit=True)
            db.execute(f"SET ivfflat.probes = {probes}")
            ids = iter(range(10_000_000 * (number + 1) + int(time.time()) % 1000 * 10_000, 1 << 40))

            def one(rng):
                if rng.integers(1000) < args.writes:
                    db.execute("INSERT INTO d VALUES (%s, %s)", (next(ids), asked[rng.integers(len(asked))]))
                else:
                    db.execute(ask, (asked[rng.integers(len(asked))],)).fetchall()
            return one
        for connections in [c for c in CONNECTIONS if c <= 90]:  # its limit is 100
            rows.append(load(args.seconds, connections, client))
            print(rows[-1], flush=True)
        return {"version": f"PostgreSQL {version}, pgvector {extension}, ivfflat {lists} lists, {probes} probes",
                "recall": got, "build_seconds": built, "bytes": size, "rows": rows}
    finally:
        server.cleanup()


def milvus(args, work):
    from importlib.metadata import version
    from pymilvus import MilvusClient
    vectors, queries = arrays(work)
    # It looks at every vector for every query, in Python: a million would take most of a minute each.
    vectors = vectors[:args.milvus]
    place = work / "milvus.db"
    shutil.rmtree(place, ignore_errors=True)
    place.unlink(missing_ok=True)
    db = MilvusClient(str(place))
    begun = time.monotonic()
    db.create_collection("d", dimension=vectors.shape[1], metric_type="L2")
    for start in range(0, len(vectors), 5000):
        rows = [{"id": start + i, "vector": v.tolist()} for i, v in enumerate(vectors[start:start + 5000])]
        db.insert("d", rows)
    db.load_collection("d")
    built = time.monotonic() - begun
    found = db.search("d", data=[q.tolist() for q in queries[:20]], limit=K)
    got = recall(exact(vectors, queries[:20], K), [[h["id"] for h in hits] for hits in found])
    asked = [q.tolist() for q in queries]
    rows = []

    def client(number):
        ids = iter(range(10_000_000 * (number + 1) + int(time.time()) % 1000 * 10_000, 1 << 40))

        def one(rng):
            if rng.integers(1000) < args.writes:
                db.insert("d", [{"id": next(ids), "vector": asked[rng.integers(len(asked))]}])
            else:
                db.search("d", data=[asked[rng.integers(len(asked))]], limit=K)
        return one
    for connections in CONNECTIONS:
        # It answers one query at a time: where a round of all connections would take minutes, one is enough to tell.
        if rows and rows[0]["p50_ms"] * connections > 120_000:
            continue
        rows.append(load(args.seconds, connections, client))
        print(rows[-1], flush=True)
    size = sum(f.stat().st_size for f in ([place] if place.is_file() else place.rglob("*")) if f.is_file())
    return {"version": f"milvus-lite {version('milvus-lite')}, its default index, {len(vectors):,} documents only", "recall": got,
            "documents": len(vectors),
            "build_seconds": built, "bytes": size, "rows": rows}


def our_recall(work):
    """What share of the true ten our answers hold: by codes and the second stage."""
    vectors, queries = arrays(work)
    truth = exact(vectors, queries[:100], K)
    bodies = (work / "vector.jsonl").read_text().splitlines()[:100]
    with Server(work / "big.micpq") as server:
        host, port = server.address.split(":")
        connection = http.client.HTTPConnection(host, int(port))
        found = []
        for body in bodies:
            connection.request("POST", "/v1/indexes/big/query", body=body, headers={"Content-Type": "application/json"})
            found.append([h["id"] for h in json.loads(connection.getresponse().read())["hits"]])
    return recall(truth, found)


def report(args, work):
    kept = {p: json.loads((work / f"{p}.json").read_text()) for p in PARTS if (work / f"{p}.json").exists()}
    if "ours" in kept and "recall" not in kept["ours"]:
        kept["ours"]["recall"] = our_recall(work)
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.processor())
    version = subprocess.run([str(MICPQ), "--version"], capture_output=True, text=True).stdout.strip()
    load_average = os.getloadavg()
    documents = kept.get("data", {}).get("documents", args.documents)
    out = [
        "# The server under load", "",
        f"{datetime.date.today()}, {cpu}, {os.cpu_count()} cores, {version}, load average {load_average[1]:.1f} at the end. "
        f"{documents:,} documents (features of real news by MiniLM, moved by noise), {kept.get('data', {}).get('bits', 64)}-bit codes "
        f"with int8 features kept for the second stage; k = {K}; {args.writes / 10:g} % of the requests are writes, each answered when "
        "it is on disk. Load and server share the cores. Command: `make bench-serve`.", ""]
    head = ["| system | query | connections | requests/s | p50 ms | p90 ms | p99 ms | refused |", "|---|---|---|---|---|---|---|---|"]
    out += head
    names = {"ours": "micpq", "postgres": "pgvector", "milvus": "milvus-lite"}
    for part, name in names.items():
        for row in kept.get(part, {}).get("rows", []):
            out.append(f"| {name} | {row['kind']} | {row['connections']} | {row['per_second']:,.0f} | {row['p50_ms']:.2f} | "
                       f"{row['p90_ms']:.2f} | {row['p99_ms']:.2f} | {row.get('refused', row.get('failed', 0))} |")
    out += [""]
    for part, name in names.items():
        if part in kept:
            r = kept[part]
            told = f"{name}: {r.get('version', version)}; recall@{K} against exact float search {r['recall']:.3f}"
            if "build_seconds" in r:
                told += f"; built in {r['build_seconds']:.0f} s, {r['bytes'] / r.get('documents', documents):,.0f} bytes a document"
            out.append(f"- {told}.")
    if "ours" in kept:
        rows = kept["ours"]["rows"]
        out.append("- micpq's queries a batch: " + ", ".join(f"{r['kind']} {r['connections']}: {r['batch']:.1f}" for r in rows)
                   + f". Resident memory at most {max(r['rss_mb'] for r in rows):,.0f} MB.")
    if "stream" in kept:
        s = kept["stream"]
        out.append(f"- NDJSON stream, one connection, texts encoded by the server: {s['documents']:,} documents in {s['seconds']:.1f} s, "
                   f"{s['per_second']:,.0f} a second, all of them on disk.")
    out += ["", "pgvector and milvus-lite are asked through their own Python clients, a thread a connection, and encode no text; "
            "PostgreSQL's limit is 100 connections. wrk counts what a stalled connection would have sent too; those clients do not. "
            "Recall: the codes and the second stage answer by kind before they answer by neighbour (docs/search.md); pgvector "
            "compares whole vectors, at several times the bytes a document."]
    results = ROOT / "benchmarks/results"
    (results / "serve.md").write_text("\n".join(out) + "\n")
    (results / "serve.json").write_text(json.dumps(kept, indent=1) + "\n")
    print("\n".join(out))
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--writes", type=int, default=10, help="writes in a thousand requests")
    parser.add_argument("--stream", type=int, default=5000, help="documents of the NDJSON stream")
    parser.add_argument("--milvus", type=int, default=20_000, help="documents milvus-lite is given, at most")
    parser.add_argument("--parts", default=",".join(PARTS))
    shared = pathlib.Path(os.environ.get("MICPQ_SHARED", ROOT.parent / "shared"))
    parser.add_argument("--corpus", type=pathlib.Path, default=shared / "data/agnews/test.csv.gz")
    args = parser.parse_args()
    work = ROOT / "work/bench-serve"
    work.mkdir(parents=True, exist_ok=True)
    for part in args.parts.split(","):
        print(f"== {part}", flush=True)
        result = globals()[part](args, work)
        if result is not None:
            (work / f"{part}.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    sys.exit(main())
