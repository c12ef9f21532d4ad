"""Training once for all shards, on a sample that the cluster reads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ray
from ray._private.state import available_resources_per_node
from ray.util import ActorPool
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .. import _inputs, _micpq
from .._model import Model
from ..errors import ConfigError, InputError
from ._calls import get, unwrapped
from ._files import corpus_files, resolve
from ._parts import MAX_ROWS, read_parts

#: Documents that a reading task looks at together.
_ROWS = 4096


_Numbers = npt.NDArray[np.uint64]


def _draw(seed: int, rows: _Numbers) -> _Numbers:
    """Numbers that decide whether rows are in the sample: SplitMix64 of seed and row."""
    with np.errstate(over="ignore"):
        x = rows + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _smallest(numbers: _Numbers, rows: _Numbers, size: int) -> tuple[_Numbers, _Numbers]:
    """The rows with the smallest numbers, at most ``size``, with their numbers."""
    if len(numbers) <= size:
        return numbers, rows
    first = np.argpartition(numbers, size - 1)[:size] if size else np.empty(0, dtype=np.int64)
    return numbers[first], rows[first]


@ray.remote(num_cpus=0.5, max_retries=-1)
def _draw_file(filesystem: Any, file: tuple[int, str], options: str, size: int, seed: int) -> tuple[_Numbers, _Numbers]:
    """The smallest numbers of a file's rows, at most ``size``, and the rows."""
    drawn = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)
    for _, _, found, _ in read_parts(filesystem, file, options, _ROWS):
        rows = np.array(found, dtype=np.uint64)
        numbers = _draw(seed, rows)
        drawn = _smallest(np.concatenate([drawn[0], numbers]), np.concatenate([drawn[1], rows]), size)
    return drawn


@ray.remote(num_cpus=0.5, max_retries=-1)
def _fetch_rows(filesystem: Any, file: tuple[int, str], options: str, wanted: _Numbers) -> list[bytes]:
    """Rows of a file, each as a list of one document, in the order in which they stand there."""
    found: list[bytes] = []
    left = set(wanted.tolist())
    for _, packed, rows, _ in read_parts(filesystem, file, options, _ROWS):
        positions = [position for position, row in enumerate(rows) if row in left]
        if positions:
            documents = _micpq.Documents.from_bytes(packed)
            found += [documents.to_bytes([position]) for position in positions]
        if len(found) == len(left):
            break
    return found


def _sample(filesystem: Any, files: list[tuple[int, str]], options: str, size: int, seed: int) -> list[bytes]:
    """A sample of the rows of all files. Their numbers are compared first, so that no more documents travel than it has."""
    drawn = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)
    tasks = [_draw_file.remote(filesystem, file, options, size, seed) for file in files]
    while tasks:
        done, tasks = ray.wait(tasks)
        numbers, rows = get(done[0])
        drawn = _smallest(np.concatenate([drawn[0], numbers]), np.concatenate([drawn[1], rows]), size)
    owners = drawn[1] // np.uint64(MAX_ROWS)
    of_file = {file: drawn[1][owners == file[0]] for file in files}
    fetching = {file: _fetch_rows.remote(filesystem, file, options, rows) for file, rows in of_file.items() if len(rows)}
    documents: list[tuple[int, bytes]] = []
    for file, task in fetching.items():
        rows = np.sort(of_file[file])
        found = get(task)
        if len(found) != len(rows):
            raise InputError(f"{file[1]} has changed while the sample was drawn; train again")
        documents += zip(_draw(seed, rows).tolist(), found)
    return [document for _, document in sorted(documents)]


@ray.remote(max_restarts=-1, max_task_retries=-1)
class ViewActor:
    """Encodes views for a training on another machine. Ray starts it again when its process dies, and sends the batch again."""

    def __init__(self, settings: str, threads: int) -> None:
        # Nothing here may fail: Ray does not start an actor again whose constructor raised.
        _micpq.set_threads(threads)
        self.settings = settings
        self.encoder: _micpq.ViewEncoder | None = None

    def encode(self, batch: bytes) -> bytes:
        self.encoder = self.encoder or _micpq.ViewEncoder(self.settings)
        return self.encoder.encode(batch)


def _workers(settings: str, count: int, cpus: int, gpus: float) -> tuple[int, Callable[[list[bytes]], list[bytes]]]:
    """The function by which a training has batches encoded."""
    place = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": "SPREAD"}
    pool = ActorPool([ViewActor.options(**place).remote(settings, cpus) for _ in range(count)])

    def encode(batches: list[bytes]) -> list[bytes]:
        with unwrapped():
            return list(pool.map(lambda actor, batch: actor.encode.remote(batch), batches))

    return count, encode


@ray.remote(max_retries=2)
def _fit(documents: list[bytes], settings: str, threads: int, workers: tuple[int, int, float]) -> bytes:
    """Trains on one machine, and returns the model's directory as an archive."""
    import io
    import tarfile
    import tempfile

    _micpq.set_threads(threads)
    # Each document is a list of one.
    joined = _micpq.Documents.from_bytes(b"[" + b",".join(document[1:-1] for document in documents) + b"]")
    model = _micpq.train(joined, settings, workers=_workers(settings, *workers) if workers[0] else None)
    with tempfile.TemporaryDirectory(prefix="micpq-") as folder:
        directory = Path(folder) / "model"
        model.save(directory)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(directory, "model")
    return archive.getvalue()


def train(
    source: str | os.PathLike[str],
    *,
    sample: int | None = None,
    bits: int | None = None,
    seed: int | None = None,
    cpus: int | None = None,
    gpus: float = 0,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    filesystem: Any = None,
    **options: Any,
) -> Model:
    """Trains a model once, for all shards. The cluster reads the source, draws the sample and encodes its views; one machine
    trains. One seed gives one sample and one model, however the work is spread.

    :param source: as of :func:`micpq.ray.build`.
    :param sample: documents to train on at most, drawn evenly. Default, as of ``seed``: that of :func:`micpq.train`.
    :param cpus: CPUs, and threads, of the training task. Default: those of the largest machine.
    :param gpus: GPUs of the training task, and of each worker.
    :param workers: actors that encode views. Default: as many as the CPUs, or GPUs, beside the training task allow. With 0 the
        training task encodes them.
    :param cpus_per_worker: CPUs, and threads, of such an actor.
    :param options: options of :func:`micpq.train` and of reading: ``encoder``, ``method``, ``epochs``, ``text_field``, ...
    """
    corpus, rest = _inputs.split_corpus(options)
    sample, seed = _inputs.build_default(sample, "sample"), _inputs.build_default(seed, "seed")
    reader, path = resolve(source, filesystem)
    reading = _inputs.options({"on_error": "skip", **corpus})
    files = [(number, file.path) for number, file in enumerate(corpus_files(reader, path))]
    documents = _sample(reader, files, reading, sample, seed)
    place = _Place.of(cpus, gpus, cpus_per_worker, workers)
    if workers is not None and workers > place.workers:
        # They would wait for a place, and the training for them.
        raise ConfigError(
            f"there is place for {place.workers} workers beside the training task, not {workers}; give fewer, or fewer CPUs to each"
        )
    # All machines encode in the same arithmetic.
    settings = {"bits": bits, "seed": seed, "sample": sample, "device": "cuda" if gpus else "cpu", **rest}
    fit = _fit.options(num_cpus=place.cpus, num_gpus=gpus, scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=True))
    team = (place.workers if workers is None else workers, cpus_per_worker, gpus)
    return _unpack(get(fit.remote(documents, _inputs.options(settings), place.cpus, team)))


#: Seconds to wait for places that are wanted, and for more where the number is ours to choose.
_WAIT_FOR_WANTED, _WAIT_FOR_MORE = 10.0, 2.0


@dataclass(frozen=True)
class _Place:
    """Where the training task runs, and how many workers the machines have place for beside it."""

    node: str
    cpus: int
    workers: int

    @classmethod
    def of(cls, cpus: int | None, gpus: float, cpus_per_worker: int, wanted: int | None = None) -> _Place:
        """The place for the training and so many workers. Ray hears with a delay that a task or an actor has ended, so what the machines
        have and is not free is waited for."""
        most = cls._among({}, cpus, gpus, cpus_per_worker)
        if wanted is not None and most.workers < wanted:
            return most
        wait, enough = (_WAIT_FOR_MORE, most.workers) if wanted is None else (_WAIT_FOR_WANTED, wanted)
        deadline = time.monotonic() + wait
        while True:
            # What resident actors have is not free.
            place = cls._among(available_resources_per_node(), cpus, gpus, cpus_per_worker)
            if place.workers >= enough or time.monotonic() > deadline:
                return place
            time.sleep(0.1)

    @classmethod
    def _among(cls, free: dict[str, dict[str, float]], cpus: int | None, gpus: float, cpus_per_worker: int) -> _Place:
        """On the machine that leaves the most places, counted machine by machine: a worker cannot have CPUs of two. A machine that is
        not in ``free`` has all that it has."""
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        if cpus is None:
            with_gpus = [node for node in nodes.values() if node.get("GPU", 0) >= gpus] or list(nodes.values())
            cpus = max(1, max(int(node.get("CPU", 1)) for node in with_gpus))
        left = {name: free.get(name, node) for name, node in nodes.items()}

        def workers(training: str) -> int:
            found = 0
            for name, node in left.items():
                own = name == training
                by_cpu = int((node.get("CPU", 0) - (cpus if own else 0)) // cpus_per_worker)
                by_gpu = int((node.get("GPU", 0) - (gpus if own else 0)) // gpus) if gpus else by_cpu
                found += max(0, min(by_cpu, by_gpu))
            return found

        able = [name for name, node in nodes.items() if node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus]
        if not able:
            what = f"{cpus} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
            raise ConfigError(f"no machine has {what} for the training task; give fewer")
        best = max(able, key=lambda name: (left[name].get("CPU", 0) >= cpus, workers(name)))
        return cls(best, cpus, workers(best))


def _unpack(archive: bytes) -> Model:
    import io
    import tarfile
    import tempfile

    with tempfile.TemporaryDirectory(prefix="micpq-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return Model.load(os.path.join(folder, "model"))
