#!/usr/bin/env python3
"""Text in, hits out: micpq beside what a user would write instead, in one run. `make bench-query`.

    make bench-query ARGS="--corpus stories.jsonl --rounds 9"
    make bench-query ARGS="--documents 1000000 --without 'ONNX Runtime f32 + Qdrant'"

Builds the index and encodes its texts where they are missing (work/bench-query). With `--documents` above those of the corpus the
texts are repeated, each copy with its embedding and noise (crates/bench/src/bin/fill.rs). Then one caller, and with `--callers`
above 1 several. Contestants take turns within a round; a ratio compares medians of one round. Every contestant gets the text
and returns ten hits with their texts. The encoder is all-MiniLM-L6-v2 for all of them. Who does not take part is named.
"""

import argparse
import concurrent.futures
import datetime
import http.client
import json
import os
import pathlib
import platform
import random
import re
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RELEASE = ROOT / "target/release"
MICPQ = RELEASE / "micpq"
K = 10
WORDS = 8


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def data(args, work):
    """The index, the embeddings of its texts, and queries: the beginnings of texts, as people ask."""
    if not args.index.exists():
        subprocess.run([MICPQ, "build", args.corpus, "--bits", "64", "--max-tokens", "64", "-o", args.index], check=True)
    if not (work / "documents.npy").exists():
        subprocess.run([MICPQ, "encode", args.corpus, "--encoder", args.encoder, "--max-tokens", "64", "-o",
                        work / "documents.npy"], check=True)


    if args.documents:
        filled = work / f"filled-{args.documents}"
        if not (filled / "queries.f32").exists():
            filled.mkdir(parents=True, exist_ok=True)
            subprocess.run([RELEASE / "fill", args.index, work / "documents.npy", str(args.documents), filled / "index",
                            filled / "vectors.f32", filled / "queries.f32"], check=True)
        args.index = filled / "index"


class Copies:
    """The documents of `fill`: texts of a corpus repeated, numbered anew."""

    def __init__(self, documents, count):
        self.documents, self.count = documents, count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if row >= self.count:
            raise IndexError(row)
        return {"id": int(row), "text": self.documents[row % len(self.documents)]["text"]}


class MicpqRust:
    """The library in a process of its own, which takes its times itself."""

    def __init__(self, args):
        self.process = subprocess.Popen([RELEASE / "text_query", args.index], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, texts, callers=1):
        self.process.stdin.write(json.dumps({"texts": texts, "k": K, "callers": callers}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask(self, text):
        return [int(found) if found.isdigit() else found for found in self.call([text])["ids"][0]]

    def times(self, texts):
        return self.call(texts)["ms"]

    def rate(self, texts, callers):
        return len(texts) / self.call(texts, callers)["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Micpq:
    """The server over one connection per thread."""

    def __init__(self, args):
        self.process = subprocess.Popen(
            [MICPQ, "serve", f"news={args.index}", "--listen", "127.0.0.1:0", "--json", "--set", "log=warn"],
            stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]
        self.own = threading.local()
        self.stages = {}

    def ask(self, text):
        if not hasattr(self.own, "connection"):
            host, port = self.address.split(":")
            self.own.connection = http.client.HTTPConnection(host, int(port))
        self.own.connection.request("POST", "/v1/indexes/news/query", json.dumps({"text": text, "k": K}),
                                    {"Content-Type": "application/json"})
        answer = json.loads(self.own.connection.getresponse().read())
        for stage, took in answer["milliseconds"].items():
            self.stages.setdefault(stage, []).append(took)
        return [hit["id"] for hit in answer["hits"]]

    def close(self):
        self.process.terminate()
        self.process.wait()


class MicpqPython:
    """The Python package in this process."""

    def __init__(self, args):
        import micpq
        self.index = micpq.open(str(args.index))

    def ask(self, text):
        return [hit.id for hit in self.index.search(text, k=K)]

    def close(self):
        pass


class Encoder:
    """ONNX Runtime on all cores."""

    def __init__(self, args, work, precision):
        import onnx_bert
        import onnxruntime
        from tokenizers import Tokenizer
        directory = pathlib.Path(args.encoder).expanduser()
        onnx_bert.export(directory, work / "onnx")
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(64)
        self.session = onnxruntime.InferenceSession(work / f"onnx/{precision}.onnx", providers=["CPUExecutionProvider"])

    def __call__(self, text):
        ids = np.array([self.tokenizer.encode(text).ids])
        vector = self.session.run(None, {"input_ids": ids})[0]
        return vector / np.linalg.norm(vector)


class Faiss:
    def __init__(self, args, work, documents, vectors, precision="f32"):
        import faiss
        self.encode, self.documents = Encoder(args, work, precision), documents
        self.index = faiss.IndexFlatIP(vectors.shape[1])
        self.index.add(vectors)

    def ask(self, text):
        rows = self.index.search(self.encode(text), K)[1][0]
        return [found["id"] for found in [self.documents[row] for row in rows]]

    def close(self):
        pass


class Lance:
    def __init__(self, args, work, documents, vectors):
        import lancedb
        self.encode = Encoder(args, work, "f32")
        database = lancedb.connect(work / "lance")
        rows = [{"id": d["id"], "text": d["text"], "vector": v} for d, v in zip(documents, vectors)]
        self.table = database.create_table("news", rows, mode="overwrite")

    def ask(self, text):
        found = self.table.search(self.encode(text)[0]).distance_type("cosine").limit(K).to_list()
        return [row["id"] for row in found]

    def close(self):
        pass


class SentenceTransformers(Faiss):
    """sentence-transformers on all cores in place of ONNX Runtime."""

    def __init__(self, args, work, documents, vectors):
        import faiss
        import sentence_transformers
        model = sentence_transformers.SentenceTransformer(args.encoder, device="cpu")
        model.max_seq_length = 64
        self.encode = lambda text: model.encode([text], normalize_embeddings=True)
        self.documents, self.index = documents, faiss.IndexFlatIP(vectors.shape[1])
        self.index.add(vectors)


class Pgvector:
    """PostgreSQL with pgvector, HNSW over the float vectors, at the address of PGVECTOR."""

    def __init__(self, args, work, documents, vectors):
        import psycopg
        if "PGVECTOR" not in os.environ:
            raise ImportError("PGVECTOR does not name a database, postgresql://user@host/name")
        self.encode, self.own = Encoder(args, work, "f32"), threading.local()
        with psycopg.connect(os.environ["PGVECTOR"], autocommit=True) as database:
            database.execute("CREATE EXTENSION IF NOT EXISTS vector")
            database.execute("DROP TABLE IF EXISTS news")
            database.execute(f"CREATE TABLE news (id text, body text, vector vector({vectors.shape[1]}))")
            with database.cursor().copy("COPY news FROM STDIN") as rows:
                for document, vector in zip(documents, vectors):
                    rows.write_row((str(document["id"]), document["text"], "[" + ",".join(map(str, vector)) + "]"))
            database.execute("CREATE INDEX ON news USING hnsw (vector vector_cosine_ops)")

    def ask(self, text):
        import psycopg
        if not hasattr(self.own, "database"):
            self.own.database = psycopg.connect(os.environ["PGVECTOR"], autocommit=True)
        vector = "[" + ",".join(map(str, self.encode(text)[0])) + "]"
        rows = self.own.database.execute("SELECT id, body FROM news ORDER BY vector <=> %s LIMIT %s", (vector, K)).fetchall()
        return [int(row[0]) if row[0].isdigit() else row[0] for row in rows]

    def close(self):
        pass


class Qdrant:
    """The client in local mode, which is Python and NumPy; Qdrant's server does not install from a registry."""

    def __init__(self, args, work, documents, vectors):
        from qdrant_client import QdrantClient, models
        self.encode, self.client = Encoder(args, work, "f32"), QdrantClient(":memory:")
        config = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
        self.client.create_collection("news", vectors_config=config)
        payload = [{"text": d["text"]} for d in documents]
        self.client.upload_collection("news", vectors=vectors, ids=[d["id"] for d in documents], payload=payload)

    def ask(self, text):
        found = self.client.query_points("news", query=self.encode(text)[0], limit=K)
        return [point.id for point in found.points]

    def close(self):
        pass


def contestants(args, work, documents, vectors):
    makers = {
        "micpq, HTTP": lambda: Micpq(args),
        "micpq, Rust": lambda: MicpqRust(args),
        "micpq, Python": lambda: MicpqPython(args),
        "ONNX Runtime f32 + FAISS flat": lambda: Faiss(args, work, documents, vectors),
        "ONNX Runtime int8 + FAISS flat": lambda: Faiss(args, work, documents, vectors, "int8"),
        "ONNX Runtime f32 + LanceDB": lambda: Lance(args, work, documents, vectors),
        "ONNX Runtime f32 + Qdrant's local client": lambda: Qdrant(args, work, documents, vectors),
        "sentence-transformers + FAISS flat": lambda: SentenceTransformers(args, work, documents, vectors),
        "ONNX Runtime f32 + pgvector": lambda: Pgvector(args, work, documents, vectors),
    }
    made, absent = {}, {}
    for name, make in makers.items():
        if any(name.startswith(left_out) for left_out in args.without):
            absent[name] = "left out (--without)"
            continue
        try:
            made[name] = make()
        except ImportError as missing:
            absent[name] = str(missing)
            print(f"{name} does not take part: {missing}", flush=True)
    return made, absent


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def recall(args, work, made, queries, vectors, documents):
    """Share of the ten nearest by float search, with f32 embeddings of the queries, among the ten hits."""
    encode = Encoder(args, work, "f32")
    found = {name: [] for name in made}
    for text in queries:
        nearest = np.argsort(-(vectors @ encode(text)[0]), kind="stable")[:K]
        ids = {documents[row]["id"] for row in nearest}
        for name, contestant in made.items():
            found[name].append(len(ids & set(contestant.ask(text))) / K)
    return {name: statistics.mean(shares) for name, shares in found.items()}


def one(args, made, queries):
    """Rounds of one caller: milliseconds per query by contestant and round."""
    rounds = []
    for number in range(args.rounds + 1):
        part = queries[number * args.queries:][:args.queries]
        times = {}
        for name, contestant in made.items():
            if hasattr(contestant, "times"):
                times[name] = contestant.times(part)
                continue
            took = []
            for text in part:
                begun = time.perf_counter()
                contestant.ask(text)
                took.append(1e3 * (time.perf_counter() - begun))
            times[name] = took
        if number > 0:
            rounds.append(times)
        print({name: round(statistics.median(took), 2) for name, took in times.items()}, flush=True)
    return rounds


def many(args, made, queries):
    """Requests per second of `callers` threads, by contestant and round."""
    rounds = []
    for number in range(args.rounds + 1):
        rates = {}
        for name, contestant in made.items():
            part = queries[number * args.queries:][:args.queries]
            if hasattr(contestant, "rate"):
                rates[name] = contestant.rate(part, args.callers)
                continue
            with concurrent.futures.ThreadPoolExecutor(args.callers) as pool:
                begun = time.perf_counter()
                list(pool.map(contestant.ask, part))
                rates[name] = len(part) / (time.perf_counter() - begun)
        if number > 0:
            rounds.append(rates)
        print({name: round(rate) for name, rate in rates.items()}, flush=True)
    return rounds


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").exists() else ""
    model, flags = re.search(r"model name\s*: (.*)", text), re.search(r"^flags\s*: (.*)", text, re.M)
    wanted = ["avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8"]
    have = [flag for flag in wanted if flags and flag in flags[1].split()]
    return f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores, {' '.join(have)}"


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def report(found):
    ours = "micpq, HTTP"
    lines = [
        "# Text in, hits out", "",
        f"`{found['command']}`, {found['date']}; {found['machine']}; {found['documents']:,} documents, {K} hits with their texts, queries of "
        f"{WORDS} words; micpq {found['commit']}, MICPQ_SIMD={found['simd']}; load average {found['load'][0]:.1f} at the start, "
        f"{found['load'][1]:.1f} at the end" + (": the machine had other work, so single figures wander." if max(found["load"]) > 1.5 else "."), "",
        "The encoder is all-MiniLM-L6-v2. Peers run it in ONNX Runtime on all cores and search its float vectors; micpq runs it in int8 and searches "
        "codes of 64 bits, re-ranked. Medians of rounds (least .. most), milliseconds. Ratio: the contestant's median over that of micpq over HTTP, within a "
        "round. Recall@10 is against float search over the same embeddings.", "",
        "| contestant | p50 | p99 | ratio | recall@10 |", "|---|---|---|---|---|",
    ]
    for name in found["one"][0]:
        medians = [statistics.median(r[name]) for r in found["one"]]
        tails = [percentile(r[name], 0.99) for r in found["one"]]
        ratios = [statistics.median(r[name]) / statistics.median(r[ours]) for r in found["one"]]
        lines.append(f"| {name} | {spread(medians)} | {spread(tails)} | {spread(ratios)} | {found['recall'][name]:.3f} |")
    lines += [""] + [f"{name} does not take part: {why}." for name, why in found["absent"].items()]
    stages = ", ".join(f"{stage} {statistics.median(took):.3f}" for stage, took in found["stages"].items())
    lines += ["", f"Where micpq's time goes, medians in milliseconds: {stages}. The rest is HTTP, JSON, hand-over and Python's client."]
    if found.get("many"):
        lines += ["", f"## {found['callers']} callers", "", "Requests per second of threads of one Python process, which is also the client of the server.", "",
                  "| contestant | requests/s | times that of micpq over HTTP |", "|---|---|---|"]
        for name in found["many"][0]:
            rates = [r[name] for r in found["many"]]
            lines.append(f"| {name} | {spread(rates, 0)} | {spread([r[name] / r[ours] for r in found['many']])} |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=pathlib.Path, default=ROOT / "work/demo/stories.jsonl", help="JSONL with id and text")
    p.add_argument("--index", type=pathlib.Path, default=ROOT / "work/demo/news.micpq")
    p.add_argument("--encoder", default="~/.cache/micpq/models/all-MiniLM-L6-v2")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--queries", type=int, default=50, help="per round and contestant (50)")
    p.add_argument("--callers", type=int, default=16)
    p.add_argument("--documents", type=int, default=0, help="repeat the texts up to so many documents (0: as they are)")
    p.add_argument("--without", nargs="*", default=[], help="beginnings of the names of contestants to leave out")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "benchmarks/results/query.md")
    args = p.parse_args()
    args.encoder = str(pathlib.Path(args.encoder).expanduser())
    work = ROOT / "work/bench-query"
    work.mkdir(parents=True, exist_ok=True)
    data(args, work)
    documents = read(args.corpus)
    if args.documents:
        documents = Copies(documents, args.documents)
        vectors = np.fromfile(args.index.parent / "vectors.f32", np.float32).reshape(args.documents, -1)
    else:
        vectors = np.load(work / "documents.npy").astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    draw = random.Random(1)
    queries = [" ".join(documents[draw.randrange(len(documents))]["text"].split()[:WORDS]) for _ in range(args.queries * (args.rounds + 1))]
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    found = {"command": " ".join(["make bench-query", f'ARGS="{" ".join(sys.argv[1:])}"'][: 1 + bool(sys.argv[1:])]), "commit": commit,
             "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(),
             "simd": os.environ.get("MICPQ_SIMD", "auto"), "documents": len(documents), "callers": args.callers, "load": [os.getloadavg()[0]]}
    made, found["absent"] = contestants(args, work, documents, vectors)
    found["one"] = one(args, made, queries)
    found["stages"] = dict(made["micpq, HTTP"].stages)
    found["recall"] = recall(args, work, made, queries[:100], vectors, documents)
    if args.callers > 1:
        found["many"] = many(args, made, queries)
    found["load"].append(os.getloadavg()[0])
    for contestant in made.values():
        contestant.close()
    (work / "query.json").write_text(json.dumps(found))
    args.out.write_text(report(found))
    print(args.out.read_text())


if __name__ == "__main__":
    main()
