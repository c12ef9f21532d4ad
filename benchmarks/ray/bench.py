"""Overhead of Ray against the plain program, in one run: documents per second of a build, latency of a query.

The contestants take turns, and an overhead compares two runs of one round. Writes benchmarks/results/ray.md and ray.json, from
which plan.py computes the plan of docs/scale.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray runs workers behind everything else on the machine; the plain program runs at the usual priority.
os.environ.setdefault("RAY_worker_niceness", "0")
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
WORDS = "oil crude barrel opec pipeline bank rate loan credit deposit wheat corn harvest drought farm ship port strike dock cargo".split()
FILLERS = "the of and said in a to that it was for on market price year company government new would report".split()
#: What the kernels look at.
FEATURES = "avx2 avx512f avx512bw avx512_vnni avx512_bf16 amx_tile asimd asimddp".split()


def document(number: int) -> dict:
    draw = random.Random(number)
    text = " ".join(draw.choice(WORDS if draw.random() < 0.4 else FILLERS) for _ in range(draw.randrange(30, 60)))
    return {"id": number, "text": text, "year": 1980 + number % 20}


def machine() -> str:
    text = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", text)
    flags = set((re.search(r"(?:flags|Features)\s*: (.*)", text) or ["", ""])[1].split())
    return f"{name[1] if name else 'CPU'}, {os.cpu_count()} cores, {' '.join(f for f in FEATURES if f in flags)}"


def revision() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def spread(values: list[float], digits: int = 4) -> str:
    return f"{statistics.median(values):.{digits}g} ({min(values):.{digits}g} to {max(values):.{digits}g})"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


class Builds:
    """Seconds of builds by the plain program with so many threads, and on Ray with so many workers of one thread."""

    def __init__(self, folder: Path, corpus: Path, documents: int) -> None:
        self.folder, self.corpus, self.documents = folder, corpus, documents
        self.plain: dict[int, list[float]] = {1: [], 2: []}
        self.ray: dict[int, list[float]] = {1: [], 2: []}
        #: Documents per second of a worker while it encodes.
        self.workers: dict[int, list[float]] = {1: [], 2: []}
        #: Seconds until the first part is encoded: the processes start and load the encoder.
        self.start: dict[int, list[float]] = {1: [], 2: []}
        #: Seconds from the last encoded part to the end: the shards are written, one task each.
        self.index: dict[int, list[float]] = {1: [], 2: []}
        #: Bytes of the parts between encoding and indexing.
        self.parts = 0

    def round(self, number: int) -> None:
        import micpq

        for count in (1, 2):
            contestants: list[Callable[[int], None]] = [self.build_plain, self.build_ray]
            for build in contestants if number % 2 == 0 else contestants[::-1]:
                build(count)
        micpq.set_threads(0)

    def build_plain(self, threads: int) -> None:
        import micpq

        micpq.set_threads(threads)
        begun = time.perf_counter()
        # The encoder is loaded by each build, as each worker of Ray loads it.
        model = micpq.Model.load(self.folder / "model")
        micpq.build(self.corpus, self.folder / "plain.micpq", model=model, replace=True).close()
        self.plain[threads].append(time.perf_counter() - begun)

    def build_ray(self, workers: int) -> None:
        import micpq.ray

        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        first: list[float] = []
        last = [0.0]

        def progress(done: int, rates: dict[str, float]) -> None:
            last[0] = time.perf_counter()
            if not first:
                # The first part was encoded at this rate.
                first.append(last[0] - begun - done / max(rates.values()))
            if done == self.documents:
                self.parts = size_of(out / ".build" / "parts")

        begun = time.perf_counter()
        built = micpq.ray.build(self.corpus, out, self.folder / "model", shards=workers, workers=workers, progress=progress)
        end = time.perf_counter()
        self.ray[workers].append(end - begun)
        self.index[workers].append(end - last[0])
        self.workers[workers].extend(built.workers.values())
        self.start[workers].append(first[0])
        assert built.documents == self.documents

    def overheads(self, count: int) -> list[float]:
        return [100 * (ray / plain - 1) for ray, plain in zip(self.ray[count], self.plain[count])]


def queries(folder: Path, corpus: Path, model: object, count: int, rounds: int) -> dict[int, list[tuple[list[float], list[float]]]]:
    """Milliseconds of queries by vector, by the number of shards: (plain, Ray) of each round."""
    import micpq
    import micpq.ray

    vectors = model.embeddings([document(10_000_000 + i)["text"] for i in range(count)])
    found: dict[int, list[tuple[list[float], list[float]]]] = {}
    plain = micpq.open(folder / "plain.micpq")
    for shards in (1, 2):
        out = folder / f"search-{shards}"
        micpq.ray.build(corpus, out, folder / "model", shards=shards, workers=2)
        with micpq.ray.Searcher(out) as searcher:
            for number in range(rounds + 1):
                times: tuple[list[float], list[float]] = ([], [])
                for vector in vectors:
                    answers = []
                    for index, took in zip((plain, searcher), times):
                        begun = time.perf_counter()
                        answers.append(index.search(vector))
                        took.append(1e3 * (time.perf_counter() - begun))
                    assert answers[0] == answers[1]
                # The first round warms up.
                if number:
                    found.setdefault(shards, []).append(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    import micpq
    import micpq.ray
    import ray

    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    # The tasks that read and index need a place beside the workers.
    ray.init(address="local", num_cpus=cores + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=200 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    folder = Path(tempfile.mkdtemp(prefix="micpq-bench-ray-"))
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(document(i)) + "\n" for i in range(arguments.documents)))
    model = micpq.train(
        [document(i)["text"] for i in range(1000)], bits=64, encoder=arguments.encoder, epochs=1, views="noise:12", cache=folder / "cache"
    )
    model.save(folder / "model")

    builds = Builds(folder, corpus, arguments.documents)
    for number in range(arguments.rounds):
        builds.round(number)
        print(f"round {number + 1} of {arguments.rounds}: plain {builds.plain}, Ray {builds.ray}", flush=True)
    latencies = queries(folder, corpus, model, arguments.queries, arguments.rounds)
    shard = max((folder / "search-1").glob("shard-*"))
    result = {
        "machine": machine(),
        "documents": arguments.documents,
        "encoder": arguments.encoder,
        "bits": 64,
        "plain_build_seconds": builds.plain,
        "ray_build_seconds": builds.ray,
        "worker_documents_per_second": builds.workers,
        "start_seconds": builds.start,
        "index_seconds": builds.index,
        "part_bytes_per_document": builds.parts / arguments.documents,
        "query_milliseconds": {
            shards: [[statistics.median(plain), statistics.median(ray)] for plain, ray in rounds] for shards, rounds in latencies.items()
        },
        # Every shard has a copy of the model, however many documents it has.
        "bytes_per_document": (size_of(shard) - size_of(shard / "model")) / arguments.documents,
        "code_bytes_per_document": size_of(shard / "codes") / arguments.documents,
    }
    (RESULTS / "ray.json").write_text(json.dumps(result, indent=1) + "\n")
    report = table(arguments, result, builds, latencies, load)
    (RESULTS / "ray.md").write_text(report)
    print(report)
    ray.shutdown()
    shutil.rmtree(folder)


def table(arguments: argparse.Namespace, result: dict, builds: Builds, latencies: dict, load: float) -> str:
    import ray

    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    lines = [
        "# Ray against the plain program", "",
        f'`make bench-ray ARGS="--documents {arguments.documents} --rounds {arguments.rounds} --queries {arguments.queries}"`, {now}; '
        f"{result['machine']}; micpq {revision()}, Ray {ray.__version__}; load average {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.", "",
        f"{arguments.documents:,} texts of 30 to 60 words, {arguments.encoder}, 64 bits, int8 rerank vectors. Medians (least to greatest) of interleaved rounds; an overhead",
        "compares two runs of one round. Both load the encoder in every build. Ray itself is running; its workers are started by the build.", "",
        "## Building", "",
        "A worker has one thread, and there are as many shards as workers; the plain program has as many threads as Ray has workers.", "",
        "| workers | plain, s | Ray, s | plain, documents/s | Ray, documents/s | overhead, % | a worker while it encodes, documents/s | until the first document, s | writing the shards, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for count in (1, 2):
        plain, on_ray = builds.plain[count], builds.ray[count]
        rates = [arguments.documents / statistics.median(seconds) for seconds in (plain, on_ray)]
        lines.append(
            f"| {count} | {spread(plain)} | {spread(on_ray)} | {rates[0]:.0f} | {rates[1]:.0f} | {spread(builds.overheads(count), 3)} "
            f"| {spread(builds.workers[count])} | {spread(builds.start[count], 3)} | {spread(builds.index[count], 3)} |"
        )
    lines += [
        "", "## Searching", "",
        "A query by vector, k 10 with texts, re-ranked; one caller; the answers are compared. Milliseconds; the overhead is that of the medians of a round.", "",
        "| shards | plain p50 | plain p99 | Ray p50 | Ray p99 | overhead of Ray, p50 |", "|---|---|---|---|---|---|",
    ]
    for shards, rounds in latencies.items():
        columns = [spread([percentile(times[who], share) for times in rounds], 3) for who in (0, 1) for share in (0.5, 0.99)]
        overhead = spread([statistics.median(on_ray) - statistics.median(plain) for plain, on_ray in rounds], 3)
        lines.append(f"| {shards} | {' | '.join(columns)} | {overhead} |")
    lines += [
        "", f"A shard takes {result['bytes_per_document']:.0f} bytes per document on disk, texts and rerank vectors included; {result['code_bytes_per_document']:.1f} of them are packed codes. "
        f"While it is built, the parts between encoding and indexing take {result['part_bytes_per_document']:.0f} bytes per document.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
