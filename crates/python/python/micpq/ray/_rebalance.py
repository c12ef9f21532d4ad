"""Moving documents into another number of shards, beside the old ones."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import ray

from .. import _micpq
from .._model import Model
from ..errors import ConfigError
from ._calls import get
from ._manifest import Manifest, checksum, files_of, generation_of, shard_name


@dataclass(frozen=True)
class Replaced:
    """The shards that a new manifest does not name any more."""

    directories: list[Path]

    def remove(self) -> None:
        """Removes them. Processes that have them mapped may go on reading."""
        for directory in self.directories:
            shutil.rmtree(directory, ignore_errors=True)


@ray.remote(max_retries=-1, num_cpus=1)
def _move(sources: list[str], place: str, number: int, shards: int) -> dict[str, object]:
    """Writes one new shard from its documents of all old ones, with their codes, vectors and sequences as they are."""
    target = Path(place)
    staged = target.with_name(f".{target.name}")
    if not target.exists():
        shutil.rmtree(staged, ignore_errors=True)
        model = Model.load(Path(sources[0]) / "model")
        shard = _micpq.Shard.create_like(staged, model._native, Path(sources[0]))
        for source in sources:
            shard.copy_from(Path(source), number, shards)
        shard.commit()
        shard.close()
        os.rename(staged, target)
    documents = len(_micpq.Shard.open(target))
    return {"name": target.name, "documents": documents, "checksum": checksum(files_of(target))}


def rebalance(out: Path, shards: int) -> Replaced:
    """Builds so many shards beside the old ones and swaps the manifest. Nobody may write the old shards meanwhile."""
    if shards == 0:
        raise ConfigError("shards is 0; give at least 1")
    manifest = Manifest.read(out)
    sources = [str(directory) for directory in manifest.directories(out)]
    names = [shard_name(generation_of(manifest) + 1, number, shards) for number in range(shards)]
    # A shard that a killed call left whole may lack what was written since; all are built again.
    for name in names:
        shutil.rmtree(out / name, ignore_errors=True)
    tasks = [_move.remote(sources, str(out / name), number, shards) for number, name in enumerate(names)]
    Manifest(manifest.model, get(tasks)).write(out)
    return Replaced([Path(source) for source in sources])
