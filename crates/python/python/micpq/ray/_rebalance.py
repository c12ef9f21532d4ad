"""Moving documents into another number of shards, beside the old ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import ray

from .. import _micpq
from .._model import Model
from ..errors import BusyError, ConfigError, Error
from ._calls import get
from ._files import put_in_place
from ._manifest import Manifest, checksum, files_of, shard_name


@ray.remote(max_retries=-1, num_cpus=1)
def _move(sources: list[str], place: str, number: int, shards: int) -> dict[str, object]:
    """Writes one new shard from its documents of all old ones, with their codes, vectors and sequences as they are."""
    target = Path(place)
    if not target.exists():
        staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        model = Model.load(Path(sources[0]) / "model")
        shard = _micpq.Shard.create_like(staged, model._native, Path(sources[0]))
        for source in sources:
            shard.copy_from(Path(source), number, shards)
        shard.commit()
        shard.close()
        put_in_place(staged, target)
    documents = len(_micpq.Shard.open(target))
    return {"name": target.name, "documents": documents, "checksum": checksum(files_of(target))}


@contextlib.contextmanager
def rebalance(out: Path, shards: int, end_writers: Callable[[], None], deadline: float) -> Iterator[None]:
    """Builds so many shards beside the old ones and swaps the manifest; then runs the block and removes the old ones. It has the
    writers' locks of the old shards all the time, so that no change to them can be acknowledged and lost.

    :param end_writers: ends the writers of the caller's own actors.
    """
    if shards == 0:
        raise ConfigError("shards is 0; give at least 1")
    manifest, locks = _lock(out, end_writers, deadline)
    sources = manifest.directories(out)
    try:
        generation = 1 + max(int(directory.name.split("-")[1]) for directory in _present(out))
        # What killed calls left. Its generation is not used again: a task of theirs may still be running.
        for leftover in _present(out) - set(sources):
            shutil.rmtree(leftover, ignore_errors=True)
        names = [shard_name(generation, number, shards) for number in range(shards)]
        old = [str(source) for source in sources]
        tasks = [_move.remote(old, str(out / name), number, shards) for number, name in enumerate(names)]
        Manifest(manifest.model, get(tasks)).write(out)
        yield
        for source in sources:
            # In one step, so that nobody opens half a shard. Processes that have it mapped may go on reading.
            removed = source.with_name(f".{source.name}.removed")
            os.rename(source, removed)
        # Also what killed attempts of the tasks left.
        for leftover in _present(out) - set(Manifest.read(out).directories(out)):
            shutil.rmtree(leftover, ignore_errors=True)
    finally:
        _unlock(locks)


def _present(out: Path) -> set[Path]:
    """Directories of shards, and those that are being written or removed."""
    return {*out.glob("shard-*"), *out.glob(".shard-*"), *out.glob("..shard-*")}


def _lock(out: Path, end_writers: Callable[[], None], deadline: float) -> tuple[Manifest, list[_micpq.Shard]]:
    """Takes the writer's lock of every shard of the manifest. A change that is under way is waited for, and so is another move."""
    while True:
        end_writers()
        manifest, locks = Manifest.read(out), list[_micpq.Shard]()
        problem: Error = BusyError(f"the shards of {out} are being moved by another process; move them later")
        try:
            for directory in manifest.directories(out):
                shard = _micpq.Shard.open(directory)
                shard.begin()
                locks.append(shard)
        except BusyError as busy:
            problem = busy
        except Error as failed:
            # The directories of shards that were moved are gone.
            if Manifest.read(out).shards == manifest.shards:
                _unlock(locks)
                raise
            problem = failed
        else:
            if Manifest.read(out).shards == manifest.shards:
                return manifest, locks
        _unlock(locks)
        if time.monotonic() > deadline:
            raise problem
        time.sleep(0.1)


def _unlock(locks: list[_micpq.Shard]) -> None:
    for lock in locks:
        # The directory of a removed shard is gone.
        with contextlib.suppress(Error):
            lock.close()
