"""Building an index in shards: read, encode with a pool of actors, write one index per shard.

Two stages, each restartable. Encoding writes parts with fixed names; indexing writes shards with fixed names. Whatever exists
is complete, so a killed build goes on where it was.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import ray

from .. import _inputs, _micpq
from .._model import Model
from ..errors import ConfigError, InputError, StorageError
from ._calls import get, unwrapped
from ._files import CorpusFile, corpus_files, put_in_place, resolve, write_whole
from ._manifest import Manifest, checksum, files_of, shard_name
from ._parts import MAX_BYTES, MAX_ROWS, UNREADABLE, Embedded, notes, part_name, read_part, read_parts, write_part

#: Called with the documents encoded so far and the documents per second of each worker.
Report = Callable[[int, dict[str, float]], None]


@dataclass
class Built:
    """What a build did."""

    documents: int
    shards: int
    #: Bad rows, listed in ``dead-letters.jsonl``.
    bad_rows: int
    #: Texts, or chunks of them, that were longer than the encoder takes.
    cut: int
    seconds: float
    #: Parts that an earlier, killed build had finished.
    resumed_parts: int
    #: Documents per second of each encoding worker while it encoded.
    workers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Plan:
    """Everything that decides the shards. A build goes on only with the same plan."""

    files: list[CorpusFile]
    shards: int
    documents_per_part: int
    model: str
    store: str
    rerank_vectors: str
    language: str
    #: "TOKENS:OVERLAP", or None.
    chunk: str | None
    corpus: str

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)


class _Encoder:
    """An actor of the pool: embeds one part at a time and writes it."""

    def __init__(self, model: str, parts: str, plan: _Plan, threads: int, device: str) -> None:
        _micpq.set_threads(threads)
        self.model = Model.load(model)
        self.parts, self.plan = Path(parts), plan
        self.name = f"{ray.get_runtime_context().get_node_id()[:8]}-{os.getpid()}"
        # While the first part is read. Its error is raised by the first call: that of a call reaches the caller.
        self.loading = ThreadPoolExecutor(1).submit(self.model._native.load_encoder, device)

    def __call__(self, read: pa.Table) -> pa.Table:
        self.loading.result()
        begun = time.perf_counter()
        row = read.to_pylist()[0]
        documents = _micpq.Documents.from_bytes(row["documents"])
        sequences = np.frombuffer(row["sequences"], dtype=np.uint64)
        embedded = Embedded.of(self.model, documents, self.plan.chunk)
        write_part(self.parts / row["part"], self.plan.shards, documents, embedded, sequences, json.loads(row["dead"]))
        seconds = time.perf_counter() - begun
        return pa.table({"part": [row["part"]], "worker": [self.name], "documents": [len(sequences)], "seconds": [seconds]})


@ray.remote(max_retries=-1, num_cpus=1)
def _index_shard(build: str, out: str, name: str, shard: int, plan: _Plan, language: str, parts: list[str]) -> dict[str, Any]:
    """Writes one shard from its rows of all parts, in the order of insertion. A finished one is left as it is."""
    folder, place = Path(build), Path(out) / name
    if not place.exists():
        staged = folder / f"{name}.{uuid.uuid4().hex}"
        model = Model.load(Path(out) / "model")
        options = {"store": plan.store, "rerank_vectors": plan.rerank_vectors, "language": language, "chunk": plan.chunk}
        index = _micpq.Shard.create(staged, model._native, _inputs.options(options))
        _check_parts(folder / "parts", parts)
        for part in parts:
            documents, embedded, sequences = read_part(folder / "parts" / part, shard, model.inputs)
            if sequences:
                index.add(documents, embedded.rows, sequences, embedded.chunks)
        index.commit()
        index.close()
        put_in_place(staged, place)
    return {"name": name, "documents": len(_micpq.Shard.open(place)), "checksum": checksum(files_of(place))}


def build(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: Model | str | os.PathLike[str] | None = None,
    *,
    shards: int = 1,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: float = 0,
    documents_per_part: int = 4096,
    filesystem: Any = None,
    store: str | None = None,
    rerank_vectors: str | None = None,
    language: str | None = None,
    chunk: bool | int | str | None = None,
    train: dict[str, Any] | None = None,
    progress: Report | None = None,
    **corpus: Any,
) -> Built:
    """Builds an index in shards on a Ray cluster. A build that was killed goes on where it was when it is called again with
    the same arguments; one that is finished is left as it is.

    :param source: a file, a folder or a URL of Parquet, JSONL or CSV files; read in the order of their names.
    :param out: a folder that all machines see. It gets ``manifest.json``, ``model/``, one directory per shard, and
        ``dead-letters.jsonl`` with the bad rows.
    :param model: a model or its directory. Default: trained on a sample of the source, see :func:`micpq.ray.train`.
    :param shards: number of shards.
    :param workers: encoding actors. Default: as many as the cluster's CPUs, or GPUs, allow.
    :param cpus_per_worker: CPUs, and threads, of an encoding actor.
    :param gpus_per_worker: GPUs of an encoding actor.
    :param documents_per_part: documents that a worker encodes at a time; a killed build loses at most these per worker.
    :param filesystem: an Arrow or fsspec file system that has the source.
    :param store: ``"all"`` stores texts and attributes, ``"codes"`` only ids and codes. Default, as of the next two: that of
        :func:`micpq.build`.
    :param rerank_vectors: ``"int8"``, ``"f16"`` or ``"none"``.
    :param language: language of keyword search, as of :func:`micpq.build`; ``"auto"`` is that of most of the first texts.
    :param chunk: split long texts, as of :func:`micpq.build`: True, a number of tokens, or ``"TOKENS:OVERLAP"``.
    :param train: options of :func:`micpq.ray.train` where no model is given.
    :param progress: called with the documents encoded so far and the documents per second of each worker.
    :param corpus: options of reading, as of :func:`micpq.build`: ``text_field``, ``id_field``, ...
    """
    begun = time.perf_counter()
    target = _inputs.path(out, "out").absolute()
    _check(shards, documents_per_part, corpus)
    store, rerank_vectors = _inputs.build_default(store, "store"), _inputs.build_default(rerank_vectors, "rerank_vectors")
    language = _inputs.build_default(language, "language")
    # A language that is not known is refused before an hour of encoding.
    _micpq.language_of(language, [])
    reader, path = resolve(source, filesystem)
    files = corpus_files(reader, path)
    folder = target / ".build"
    if not Manifest.path(target).exists():
        (folder / "parts").mkdir(parents=True, exist_ok=True)
    used = _put_model(model, target, source, filesystem, train, chunk, files, corpus)
    sizes = used._native.chunk_sizes(_inputs.options({"chunk": chunk}))
    if len(files) >= (1 << 64) // (MAX_BYTES if sizes else MAX_ROWS):
        raise InputError(f"the source has {len(files)} files, more than there are insertion sequences for; join some of them")
    # Bad rows become dead letters.
    options = _inputs.options({"on_error": "skip", **corpus})
    plan = _Plan(files, shards, documents_per_part, used.fingerprint, store, rerank_vectors, language, sizes, options)
    done = _claim(target, folder, plan)
    if done is not None:
        return done

    finished = frozenset(p.name for p in (folder / "parts").glob("*.arrow"))
    found = _language.remote(reader, plan)
    pool = _Pool.of(workers, cpus_per_worker, gpus_per_worker)
    encoded, rates = _encode(reader, plan, target, folder, finished, pool, progress)
    # Not what a second listing shows: on a network folder that may be older than what the workers wrote.
    parts = sorted(finished | encoded)
    _check_parts(folder / "parts", parts)
    names = [shard_name(1, number, shards) for number in range(shards)]
    tasks = [_index_shard.remote(str(folder), str(target), name, number, plan, found, parts) for number, name in enumerate(names)]
    records = get(tasks)
    noted = [notes(folder / "parts" / part) for part in parts]
    dead = [{"problem": reason} for reasons, _ in noted for reason in reasons]
    unreadable = [letter["problem"] for letter in dead if letter["problem"].startswith(UNREADABLE)]
    if unreadable and not any(record["documents"] for record in records):
        raise InputError(f"no document could be read; {unreadable[0]}")
    write_whole(target / "dead-letters.jsonl", "".join(json.dumps(d, ensure_ascii=False) + "\n" for d in dead).encode())
    documents, cut = sum(record["documents"] for record in records), sum(cut for _, cut in noted)
    built = Built(documents, shards, len(dead), cut, time.perf_counter() - begun, len(finished), rates)
    write_whole(target / "build.json", json.dumps({"plan": json.loads(plan.text()), "built": asdict(built)}, indent=1).encode())
    Manifest(used.fingerprint, records).write(target)
    shutil.rmtree(folder, ignore_errors=True)
    return built


@ray.remote(max_retries=-1, num_cpus=0.1)
def _language(reader: Any, plan: _Plan) -> str:
    """The language of keyword search, from the first documents of the source."""
    texts: list[str] = []
    if plan.language == "auto":
        most = _micpq.language_sample()
        for number, file in enumerate(plan.files):
            for _, documents, _, _ in read_parts(reader, (number, file.path), plan.corpus, most):
                texts += _micpq.Documents.from_bytes(documents).texts()
                if len(texts) >= most:
                    return _micpq.language_of(plan.language, texts[:most])
    return _micpq.language_of(plan.language, texts)


def _check(shards: int, documents_per_part: int, corpus: dict[str, Any]) -> None:
    for name, value in (("shards", shards), ("documents_per_part", documents_per_part)):
        if _inputs.count(value, name) == 0:
            raise ConfigError(f"{name} is 0; give at least 1")
    for name in corpus:
        if name not in _inputs.CORPUS_OPTIONS:
            raise ConfigError(f"unknown option '{name}'; known: {', '.join(sorted(_inputs.CORPUS_OPTIONS))}")


#: Options of training that say where it runs, not what comes out.
_PLACING = {"workers", "cpus", "cpus_per_worker", "cache"}


def _put_model(
    model: Model | str | os.PathLike[str] | None,
    target: Path,
    source: Any,
    filesystem: Any,
    train: dict[str, Any] | None,
    chunk: Any,
    files: list[CorpusFile],
    corpus: dict[str, Any],
) -> Model:
    """Puts the model into the folder once, and returns it. Beside one that is trained here stands what it was trained with."""
    place, record = target / "model", target / "train.json"
    if isinstance(model, (str, os.PathLike)):
        model = Model.load(model)
    options = {name: value for name, value in (train or {}).items() if name not in _PLACING}
    trained = json.loads(json.dumps({"options": options, "chunk": chunk, "corpus": corpus, "files": files}, default=str))
    if place.exists():
        present = Model.load(place)
        if model is not None and model.fingerprint != present.fingerprint:
            raise ConfigError(f"{place} is another model than the one given; name another out, or leave model out to go on")
        before = json.loads(record.read_text()) if record.exists() else None
        if model is None and before is not None:
            other = sorted(name for name, value in trained.items() if before.get(name) != value and (name != "options" or train is not None))
            if other:
                raise ConfigError(f"{place} was trained with another {', '.join(other)}; name another out, or remove {target} to train again")
        if model is None and before is None and train is not None:
            raise ConfigError(f"{place} was given and not trained, so train does nothing; leave it out, or name another out")
        return present
    is_trained = model is None
    if model is None:
        from ._train import train as train_model

        model = train_model(source, filesystem=filesystem, **{"chunk": chunk, **(train or {})}, **corpus)
    if not model.takes_text:
        raise ConfigError("the model was trained on user vectors, so it cannot encode texts; give a model with an encoder")
    target.mkdir(parents=True, exist_ok=True)
    if is_trained:
        write_whole(record, json.dumps(trained, indent=1).encode())
    else:
        record.unlink(missing_ok=True)
    for leftover in target.glob(".model.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staged = target / f".model.{uuid.uuid4().hex}"
    model.save(staged)
    put_in_place(staged, place)
    return model


def _claim(target: Path, folder: Path, plan: _Plan) -> Built | None:
    """Records the plan, or refuses another one. Returns the result of a finished build."""
    if Manifest.path(target).exists():
        record = target / "build.json"
        done = json.loads(record.read_text()) if record.exists() else {}
        if done.get("plan") == json.loads(plan.text()):
            shutil.rmtree(folder, ignore_errors=True)
            return Built(**done["built"])
        raise ConfigError(f"{target} already holds shards of another build; name another out, or remove it")
    recorded = folder / "plan.json"
    if recorded.exists() and recorded.read_text() != plan.text():
        raise ConfigError(
            f"{folder} is of a build with other arguments or another source; call it with the same ones to go on, or remove it to start anew"
        )
    write_whole(recorded, plan.text().encode())
    return None


#: CPUs of a task that reads. It is light: it shares the CPUs that encode.
_READER_CPUS = 0.1


@dataclass(frozen=True)
class _Pool:
    """The encoding actors: how many, and what each has."""

    workers: int
    cpus: int
    gpus: float

    @classmethod
    def of(cls, workers: int | None, cpus: int, gpus: float) -> _Pool:
        """As many as the machines have places for, or as many as are asked for. A machine's rest is no place, and readers need a
        place beside the actors: they would wait for each other."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        places = sum(_places(node, cpus, gpus) for node in nodes)
        left = sum(node.get("CPU", 0) - cpus * _places(node, cpus, gpus) for node in nodes)
        most = places if left >= _READER_CPUS else places - 1
        if most < 1 or workers is not None and workers > most:
            each = f"{cpus} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
            raise ConfigError(
                f"the machines have place for {max(most, 0)} workers of {each} beside the tasks that read, not for {workers or 1}; "
                "give fewer workers, or less to each, or start Ray with more"
            )
        return cls(most if workers is None else workers, cpus, gpus)


def _places(node: dict[str, float], cpus: int, gpus: float) -> int:
    """Workers for which a machine has place."""
    by_cpu = int(node.get("CPU", 0) / cpus)
    return min(by_cpu, int(node.get("GPU", 0) / gpus)) if gpus else by_cpu


def _check_parts(folder: Path, names: list[str]) -> None:
    """Raises if a part that a worker wrote is not here, after some time for a network folder to show it."""
    for pause in (0.0, 1.0, 5.0, 30.0):
        time.sleep(pause)
        # Opening a file asks a network folder for it; a listing may be old.
        absent = [name for name in names if not _is_readable(folder / name)]
        if not absent:
            return
    raise StorageError(
        f"{folder} lacks {len(absent)} parts that workers wrote, the first {absent[0]}; is it one folder on all machines? "
        "Call build again to go on"
    )


def _is_readable(path: Path) -> bool:
    try:
        path.open("rb").close()
    except FileNotFoundError:
        return False
    return True


def _encode(
    reader: Any,
    plan: _Plan,
    target: Path,
    folder: Path,
    finished: frozenset[str],
    pool: _Pool,
    progress: Report | None,
) -> tuple[set[str], dict[str, float]]:
    """Reads and encodes every part that is not finished. Returns the names of the encoded parts, and the documents per second of each
    worker."""
    parts = folder / "parts"

    def read_file(batch: dict[str, Any]) -> Iterator[pa.Table]:
        file = (int(batch["number"][0]), str(batch["path"][0]))
        pieces = read_parts(reader, file, plan.corpus, plan.documents_per_part, plan.chunk is not None)
        for part, documents, sequences, dead in pieces:
            name = part_name(file[0], part)
            if name not in finished:
                numbers = np.array(sequences, dtype=np.uint64).tobytes()
                row = {"part": [name], "documents": [documents], "sequences": [numbers], "dead": [json.dumps(dead)]}
                yield pa.table(row)

    source = ray.data.from_items(
        [{"number": number, "path": file.path} for number, file in enumerate(plan.files)], override_num_blocks=len(plan.files)
    )
    # A block is a part, however small: a block of several would be one worker's while others wait. Readers are held back by the number
    # of blocks.
    source.context.target_max_block_size = 1
    read = source.map_batches(read_file, batch_size=1, num_cpus=_READER_CPUS)
    strategy = ray.data.ActorPoolStrategy(size=pool.workers, max_tasks_in_flight_per_actor=2)
    device = "cuda" if pool.gpus else "cpu"
    settings = {"model": str(target / "model"), "parts": str(parts), "plan": plan, "threads": pool.cpus, "device": device}
    encoded = read.map_batches(
        _Encoder, fn_constructor_kwargs=settings, batch_size=1, batch_format="pyarrow", compute=strategy, num_cpus=pool.cpus, num_gpus=pool.gpus or None
    )
    done, work, written = 0, dict[str, tuple[int, float]](), set[str]()
    with unwrapped():
        for row in encoded.iter_rows():
            documents, seconds = work.get(row["worker"], (0, 0.0))
            work[row["worker"]] = (documents + row["documents"], seconds + row["seconds"])
            written.add(row["part"])
            done += row["documents"]
            if progress is not None:
                progress(done, _rates(work))
    if not finished and not work:
        raise InputError("the source has no rows")
    return written, _rates(work)


def _rates(work: dict[str, tuple[int, float]]) -> dict[str, float]:
    return {worker: documents / seconds for worker, (documents, seconds) in work.items() if seconds > 0}
