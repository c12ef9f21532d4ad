"""Training once for all shards, on a sample that the cluster reads."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util import ActorPool

from .. import _inputs, _micpq
from .._model import Model
from ..errors import ConfigError
from ._calls import get, unwrapped
from ._files import corpus_files, resolve
from ._parts import read_parts

#: Documents that a reading task looks at together.
_ROWS = 4096


def _draw(seed: int, row: int) -> int:
    """A number that decides whether a row is in the sample: SplitMix64 of seed and row."""
    x = (row + (seed + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


@ray.remote(num_cpus=0.5, max_retries=-1)
def _sample_file(filesystem: Any, file: tuple[int, str], options: str, size: int, seed: int) -> list[tuple[int, bytes]]:
    """The rows of a file with the smallest numbers, at most ``size``, as (number, document)."""
    heap: list[tuple[int, bytes]] = []
    for _, packed, rows, _ in read_parts(filesystem, file, options, _ROWS):
        documents = _micpq.Documents.from_bytes(packed)
        for position, row in enumerate(rows):
            number = -_draw(seed, row)
            if len(heap) < size or number > heap[0][0]:
                entry = (number, documents.to_bytes([position]))
                (heapq.heappush if len(heap) < size else heapq.heapreplace)(heap, entry)
    return [(-number, document) for number, document in heap]


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
    sample: int = 200_000,
    bits: int | None = None,
    seed: int = 2022,
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
    :param sample: documents to train on at most, drawn evenly.
    :param cpus: CPUs, and threads, of the training task. Default: those of the largest machine.
    :param gpus: GPUs of the training task, and of each worker.
    :param workers: actors that encode views. Default: as many as the CPUs, or GPUs, beside the training task allow. With 0 the
        training task encodes them.
    :param cpus_per_worker: CPUs, and threads, of such an actor.
    :param options: options of :func:`micpq.train` and of reading: ``encoder``, ``method``, ``epochs``, ``text_field``, ...
    """
    corpus, rest = _inputs.split_corpus(options)
    reader, path = resolve(source, filesystem)
    reading = _inputs.options({"on_error": "skip", **corpus})
    files = [(number, name) for number, (name, _) in enumerate(corpus_files(reader, path))]
    tasks = [_sample_file.remote(reader, file, reading, sample, seed) for file in files]
    drawn: list[tuple[int, bytes]] = []
    while tasks:
        done, tasks = ray.wait(tasks)
        drawn = heapq.nsmallest(sample, drawn + get(done[0]))
    if cpus is None:
        cpus = max(1, max(int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["Alive"]))
    free = ray.available_resources()
    fitting = [int((free.get("CPU", 0) - cpus) / cpus_per_worker)] + ([int(free.get("GPU", 0) / gpus) - 1] if gpus else [])
    most = max(0, min(fitting))
    if workers is not None and workers > most:
        # They would wait for a place, and the training for them.
        raise ConfigError(f"there is place for {most} workers beside the training task, not {workers}; give fewer, or fewer CPUs to each")
    # All machines encode in the same arithmetic.
    settings = {"bits": bits, "seed": seed, "sample": sample, "device": "cuda" if gpus else "cpu", **rest}
    fit = _fit.options(num_cpus=cpus, num_gpus=gpus)
    team = (most if workers is None else workers, cpus_per_worker, gpus)
    return _unpack(get(fit.remote([document for _, document in drawn], _inputs.options(settings), cpus, team)))


def _unpack(archive: bytes) -> Model:
    import io
    import tarfile
    import tempfile

    with tempfile.TemporaryDirectory(prefix="micpq-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return Model.load(os.path.join(folder, "model"))
