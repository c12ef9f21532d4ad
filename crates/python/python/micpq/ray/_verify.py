"""Checking all shards of a folder, each on some machine of the cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass

import ray

from .. import _inputs, _micpq
from ._calls import get
from ._manifest import Manifest


@dataclass
class Verified:
    """What a check of the shards found."""

    #: One line per damage.
    problems: list[str]
    #: Shards whose files are not those of the build: they were changed since. That is no damage.
    changed: list[str]


@ray.remote(max_retries=3, num_cpus=0.5)
def _verify(out: str, number: int) -> tuple[list[str], bool]:
    return _micpq.verify_shard(_inputs.path(out, "out"), number)


def verify(out: str | os.PathLike[str]) -> Verified:
    """Checks every byte of all shards: their checksums, their model, and that each owns the ids of its documents. ``micpq index
    verify out/`` does the same on one machine."""
    folder = _inputs.path(out, "out").absolute()
    manifest = Manifest.read(folder)
    found = get([_verify.remote(str(folder), number) for number in range(len(manifest.shards))])
    changed = [shard["name"] for shard, (problems, as_built) in zip(manifest.shards, found) if not problems and not as_built]
    return Verified([problem for problems, _ in found for problem in problems], changed)
