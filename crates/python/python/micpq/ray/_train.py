"""Training once for all shards, on a sample that the cluster reads."""

from __future__ import annotations

import heapq
import os
from pathlib import Path
from typing import Any

import ray

from .. import _inputs, _micpq
from .._model import Model
from ._calls import get
from ._files import corpus_files, resolve
from ._parts import MAX_ROWS, read_chunks

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
    for _, packed, rows, _ in read_chunks(filesystem, file, options, _ROWS):
        documents = _micpq.Documents.from_bytes(packed)
        for position, row in enumerate(rows):
            number = -_draw(seed, row)
            if len(heap) < size or number > heap[0][0]:
                entry = (number, documents.to_bytes([position]))
                (heapq.heappush if len(heap) < size else heapq.heapreplace)(heap, entry)
    return [(-number, document) for number, document in heap]


@ray.remote(max_retries=2)
def _fit(documents: list[bytes], settings: str, threads: int) -> bytes:
    """Trains on one machine, and returns the model's directory as an archive."""
    import io
    import tarfile
    import tempfile

    _micpq.set_threads(threads)
    # Each document is a list of one.
    joined = b"[" + b",".join(document[1:-1] for document in documents) + b"]"
    model = _micpq.train(_micpq.Documents.from_bytes(joined), settings, None, None)
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
    bits: int = 64,
    seed: int = 2022,
    cpus: int | None = None,
    gpus: float = 0,
    filesystem: Any = None,
    **options: Any,
) -> Model:
    """Trains a model once, for all shards. The cluster reads the source and draws the sample; one machine encodes the
    sample's views and trains. One seed gives one sample and one model, however the work is spread.

    :param source: as of :func:`micpq.ray.build`.
    :param sample: documents to train on at most, drawn evenly.
    :param cpus: CPUs, and threads, of the training task. Default: those of the largest machine.
    :param gpus: GPUs of the training task.
    :param options: options of :func:`micpq.train` and of reading: ``encoder``, ``method``, ``epochs``, ``text_field``, ...
    """
    corpus, rest = _inputs.split_corpus(options)
    reader, path = resolve(source, filesystem)
    settings = _inputs.options({"on_error": "skip", **corpus})
    files = [(number, name) for number, (name, _) in enumerate(corpus_files(reader, path))]
    assert len(files) < MAX_ROWS
    tasks = [_sample_file.remote(reader, file, settings, sample, seed) for file in files]
    drawn: list[tuple[int, bytes]] = []
    while tasks:
        done, tasks = ray.wait(tasks)
        drawn = heapq.nsmallest(sample, drawn + get(done[0]))
    if cpus is None:
        cpus = max(1, max(int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["Alive"]))
    fitting = _fit.options(num_cpus=cpus, num_gpus=gpus)
    archive = get(fitting.remote([d for _, d in drawn], _inputs.options({"bits": bits, "seed": seed, **rest}), cpus))
    return _unpack(archive)


def _unpack(archive: bytes) -> Model:
    import io
    import tarfile
    import tempfile

    with tempfile.TemporaryDirectory(prefix="micpq-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return Model.load(os.path.join(folder, "model"))
