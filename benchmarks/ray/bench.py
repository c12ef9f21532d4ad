"""Overhead of Ray against the plain program, in one run: documents per second of a build, latency of a query.

Interleaves the contestants. Writes benchmarks/results/ray.md and ray.json, from which plan.py computes the plan of docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray runs workers behind everything else on the machine; the plain program runs at the usual priority.
os.environ.setdefault("RAY_worker_niceness", "0")
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
WORDS = "oil crude barrel opec pipeline bank rate loan credit deposit wheat corn harvest drought farm ship port strike dock cargo".split()
FILLERS = "the of and said in a to that it was for on market price year company government new would report".split()


def document(number: int) -> dict:
    draw = random.Random(number)
    text = " ".join(draw.choice(WORDS if draw.random() < 0.4 else FILLERS) for _ in range(draw.randrange(30, 60)))
    return {"id": number, "text": text, "year": 1980 + number % 20}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    import micpq
    import micpq.ray
    import ray

    cores = os.cpu_count() or 1
    ray.init(num_cpus=cores + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=200 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    folder = Path(tempfile.mkdtemp(prefix="micpq-bench-ray-"))
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(document(i)) + "\n" for i in range(arguments.documents)))
    model = micpq.train([document(i)["text"] for i in range(1000)], bits=64, encoder=arguments.encoder, epochs=1, views="noise:12", cache=folder / "cache")
    model.save(folder / "model")

    builds: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    for _ in range(arguments.repeats):
        for workers in (1, 2):
            micpq.set_threads(workers)
            begun = time.perf_counter()
            micpq.build(corpus, folder / "plain.micpq", model=model, replace=True).close()
            builds.setdefault(f"plain, {workers} threads", []).append(time.perf_counter() - begun)
            out = folder / "out"
            shutil.rmtree(out, ignore_errors=True)
            begun = time.perf_counter()
            built = micpq.ray.build(corpus, out, folder / "model", shards=workers, workers=workers, chunk=512)
            builds.setdefault(f"Ray, {workers} workers", []).append(time.perf_counter() - begun)
            rates.setdefault(str(workers), []).extend(built.workers.values())
    micpq.set_threads(1)

    plain = micpq.open(folder / "plain.micpq")
    latencies: dict[str, list[float]] = {}
    queries = model.embeddings([document(10_000_000 + i)["text"] for i in range(arguments.queries)])
    for shards in (1, 2):
        out = folder / f"search-{shards}"
        micpq.ray.build(corpus, out, folder / "model", shards=shards, workers=1, chunk=512)
        with micpq.ray.Searcher(out) as searcher:
            for index in (plain, searcher):
                [index.search(query) for query in queries[:20]]
            for query in queries:
                for name, index in ((f"plain (beside {shards} shards)", plain), (f"Ray, {shards} shards", searcher)):
                    begun = time.perf_counter()
                    hits = index.search(query)
                    latencies.setdefault(name, []).append(1e3 * (time.perf_counter() - begun))
                assert hits == plain.search(query)
    size = sum(p.stat().st_size for p in (folder / "plain.micpq").rglob("*") if p.is_file())
    result = {
        "cores": cores, "documents": arguments.documents, "encoder": arguments.encoder,
        "build_seconds": builds, "worker_documents_per_second": rates,
        "query_milliseconds": {name: [statistics.median(v), sorted(v)[int(0.99 * len(v))]] for name, v in latencies.items()},
        "bytes_per_document_on_disk": size / arguments.documents,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "ray.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        "# Ray against the plain program", "",
        f"`make bench-ray ARGS=\"--documents {arguments.documents} --repeats {arguments.repeats} --queries {arguments.queries}\"` on {cores} cores: {arguments.documents} texts of 30 to 60 words, {arguments.encoder}, 64 bits.",
        "Median, and least to greatest, of interleaved runs. A build with Ray includes the start of its actors, which load the encoder.", "",
        "| build | seconds | documents/s |", "|---|---|---|",
    ]
    lines += [f"| {name} | {spread(v)} | {arguments.documents / statistics.median(v):.4g} |" for name, v in builds.items()]
    lines += ["", "| workers | documents/s of a worker while it encodes |", "|---|---|"]
    lines += [f"| {workers} | {spread(v)} |" for workers, v in rates.items()]
    lines += ["", "| query by vector | p50 ms | p99 ms |", "|---|---|---|"]
    lines += [f"| {name} | {p50:.3g} | {p99:.3g} |" for name, (p50, p99) in result["query_milliseconds"].items()]
    lines += ["", f"An index of these documents takes {result['bytes_per_document_on_disk']:.0f} bytes per document on disk, texts included."]
    (RESULTS / "ray.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    ray.shutdown()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
