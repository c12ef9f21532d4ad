"""Overhead of Ray against the plain program, in one run: documents per second of a build, training, latency of a query.

The contestants take turns, and an overhead compares two runs of one round. A build is run at two sizes: what does not grow with the
documents, the start of the workers above all, is told apart from the rate. So a run with few documents says what a large one would.
Writes benchmarks/results/ray.md and ray.json, from which plan.py computes the plan of docs/scale.md.
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
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import report

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


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


#: Workers, and threads of the plain program.
COUNTS = (1, 2)
#: The small build has so many documents less.
SMALL = 4


class Builds:
    """Seconds of builds by the plain program with so many threads, and on Ray with so many workers of one thread, by workers and size."""

    def __init__(self, folder: Path, corpora: dict[int, Path]) -> None:
        self.folder, self.corpora = folder, corpora
        sizes = sorted(corpora)
        self.plain: dict[int, dict[int, list[float]]] = {count: {size: [] for size in sizes} for count in COUNTS}
        self.ray: dict[int, dict[int, list[float]]] = {count: {size: [] for size in sizes} for count in COUNTS}
        #: Seconds from the last encoded part to the end: the shards are written, one task each.
        self.index: dict[int, dict[int, list[float]]] = {count: {size: [] for size in sizes} for count in COUNTS}
        # Of the large build alone:
        #: documents per second of a worker while it encodes;
        self.workers: dict[int, list[float]] = {count: [] for count in COUNTS}
        #: seconds until the first part is encoded: the processes start and load the encoder;
        self.start: dict[int, list[float]] = {count: [] for count in COUNTS}
        #: bytes of the parts between encoding and indexing.
        self.parts = 0

    def round(self, number: int) -> None:
        import micpq

        for count in COUNTS:
            for size in sorted(self.corpora):
                contestants: list[Callable[[int, int], None]] = [self.build_plain, self.build_ray]
                for build in contestants if number % 2 == 0 else contestants[::-1]:
                    build(count, size)
        micpq.set_threads(0)

    def build_plain(self, threads: int, size: int) -> None:
        import micpq

        micpq.set_threads(threads)
        begun = time.perf_counter()
        # The encoder is loaded by each build, as each worker of Ray loads it.
        model = micpq.Model.load(self.folder / "model")
        micpq.build(self.corpora[size], self.folder / "plain.micpq", model=model, replace=True).close()
        self.plain[threads][size].append(time.perf_counter() - begun)

    def build_ray(self, workers: int, size: int) -> None:
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
            if done == size:
                self.parts = size_of(out / ".build" / "parts")

        begun = time.perf_counter()
        # Parts small enough that two workers share a small corpus.
        built = micpq.ray.build(
            self.corpora[size], out, self.folder / "model", shards=workers, workers=workers, documents_per_part=512, progress=progress
        )
        end = time.perf_counter()
        assert built.documents == size
        self.ray[workers][size].append(end - begun)
        self.index[workers][size].append(end - last[0])
        if size == max(self.corpora):
            self.workers[workers].extend(built.workers.values())
            self.start[workers].append(first[0])


def train(folder: Path, count: int, encoder: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of training on so many texts, by the plain program with all threads and on Ray with one worker beside."""
    import micpq
    import micpq.ray

    corpus = folder / "sample.jsonl"
    corpus.write_text("".join(json.dumps(document(i)) + "\n" for i in range(count)))
    options = {"bits": 64, "encoder": encoder, "epochs": 1, "views": "noise:12"}
    found: dict[str, list[float]] = {"plain": [], "ray": []}
    for number in range(rounds):
        # Without the cache of an earlier round.
        caches = [folder / f"cache-{number}-{who}" for who in found]
        begun = time.perf_counter()
        micpq.train(corpus, **options, cache=caches[0])
        middle = time.perf_counter()
        micpq.ray.train(corpus, **options, sample=count, cpus=1, workers=1, cache=caches[1])
        found["plain"].append(middle - begun)
        found["ray"].append(time.perf_counter() - middle)
        print(f"training, round {number + 1} of {rounds}: {found}", flush=True)
    return found


def starts(rounds: int) -> list[float]:
    """Seconds to start Ray on this machine, in a process of its own, until it has run a task."""
    program = (
        "import os, time; begun = time.perf_counter(); import ray; "
        "ray.init(address='local', num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level='ERROR', object_store_memory=100 << 20); "
        "ray.get(ray.remote(lambda: None).remote()); print(time.perf_counter() - begun); ray.shutdown()"
    )
    # The cluster that is running here is not the one to be joined.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    run = [sys.executable, "-c", program]
    return [float(subprocess.run(run, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]) for _ in range(rounds)]


Times = dict[str, list[list[list[float]]]]


def queries(folder: Path, corpus: Path, model: object, count: int, rounds: int) -> tuple[dict[int, Times], list[float]]:
    """Milliseconds of queries by the number of shards and by what they are, "vector" or "text": for each round those of the plain program
    and those of Ray. And milliseconds of an empty call to an actor, of which a search needs one at least."""
    import micpq
    import micpq.ray
    import ray

    texts = [document(10_000_000 + i)["text"] for i in range(count)]
    asked = {"vector": list(model.embeddings(texts)), "text": texts}
    found: dict[int, Times] = {}
    calls: list[float] = []
    # Both encode a query with all threads.
    plain = micpq.open(folder / "plain.micpq")
    for shards in (1, 2, 4):
        out = folder / f"search-{shards}"
        micpq.ray.build(corpus, out, folder / "model", shards=shards, workers=2)
        with micpq.ray.Searcher(out) as searcher:
            actor = searcher._fleet.actors[0][0]
            for number in range(rounds + 1):
                for kind, of_kind in asked.items():
                    times: list[list[float]] = [[], []]
                    for position, query in enumerate(of_kind):
                        answers = []
                        contestants = [(plain, times[0]), (searcher, times[1])]
                        for index, took in contestants if position % 2 == 0 else contestants[::-1]:
                            begun = time.perf_counter()
                            answers.append(index.search(query))
                            took.append(1e3 * (time.perf_counter() - begun))
                        assert answers[0] == answers[1]
                    # The first round warms up.
                    if number:
                        found.setdefault(shards, {}).setdefault(kind, []).append(times)
                for _ in range(count if number and shards == 1 else 0):
                    begun = time.perf_counter()
                    ray.get(actor.pid.remote())
                    calls.append(1e3 * (time.perf_counter() - begun))
        print(f"queries over {shards} shards: done", flush=True)
    return found, calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=40_000, help="8000 takes about a quarter of the time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--train", type=int, default=2000, help="texts to train on")
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    import micpq
    import ray

    load = os.getloadavg()[0]
    ray_start = starts(arguments.rounds)
    cores = os.cpu_count() or 1
    # The tasks that read and index need a place beside the workers.
    ray.init(address="local", num_cpus=cores + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=200 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    folder = Path(tempfile.mkdtemp(prefix="micpq-bench-ray-"))
    try:
        corpora = {size: folder / f"corpus-{size}.jsonl" for size in (max(1, arguments.documents // SMALL), arguments.documents)}
        for size, corpus in corpora.items():
            corpus.write_text("".join(json.dumps(document(i)) + "\n" for i in range(size)))
        model = micpq.train(
            [document(i)["text"] for i in range(1000)], bits=64, encoder=arguments.encoder, epochs=1, views="noise:12", cache=folder / "cache"
        )
        model.save(folder / "model")
        builds = Builds(folder, corpora)
        for number in range(arguments.rounds):
            builds.round(number)
            print(f"round {number + 1} of {arguments.rounds}: plain {builds.plain}, Ray {builds.ray}", flush=True)
        training = train(folder, arguments.train, arguments.encoder, arguments.rounds)
        # Of as many documents as the shards.
        builds.build_plain(2, arguments.documents)
        builds.plain[2][arguments.documents].pop()
        latencies, calls = queries(folder, corpora[arguments.documents], model, arguments.queries, arguments.rounds)
        shard = max((folder / "search-1").glob("shard-*"))
        result = {
            "machine": machine(),
            "cores": cores,
            "documents": arguments.documents,
            "encoder": arguments.encoder,
            "bits": 64,
            "ray_start_seconds": ray_start,
            "plain_build_seconds": builds.plain,
            "ray_build_seconds": builds.ray,
            "worker_documents_per_second": builds.workers,
            "start_seconds": builds.start,
            "index_seconds": builds.index,
            "part_bytes_per_document": builds.parts / arguments.documents,
            "train_documents": arguments.train,
            "train_seconds": training,
            "call_milliseconds": report.percentile(calls, 0.5),
            "query_milliseconds": {
                shards: {kind: [[report.percentile(t, share) for t in times for share in (0.5, 0.99)] for times in rounds] for kind, rounds in kinds.items()}
                for shards, kinds in latencies.items()
            },
            # Every shard has a copy of the model, however many documents it has.
            "bytes_per_document": (size_of(shard) - size_of(shard / "model")) / arguments.documents,
            "code_bytes_per_document": size_of(shard / "codes") / arguments.documents,
        }
        result |= report.derived(result)
        (RESULTS / "ray.json").write_text(json.dumps(result, indent=1) + "\n")
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        run = (
            f'`make bench-ray ARGS="--documents {arguments.documents} --rounds {arguments.rounds} --queries {arguments.queries} --train {arguments.train}"`, {now}; '
            f"{result['machine']}; micpq {revision()}, Ray {ray.__version__}; load average {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end."
        )
        # As the file has it: its keys are text.
        text = report.text(run, json.loads(json.dumps(result)))
        (RESULTS / "ray.md").write_text(text)
        print(text)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
