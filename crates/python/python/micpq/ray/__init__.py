"""Past one machine: building, searching and changing an index in shards, on Ray.

Every shard is an ordinary index, and a folder of shards is searched by the plain program too: ``micpq search out/``.

>>> import micpq.ray  # doctest: +SKIP
>>> micpq.ray.build("s3://corpus/news/", "/shared/news", shards=16)  # doctest: +SKIP
>>> searcher = micpq.ray.Searcher("/shared/news", replicas=2)  # doctest: +SKIP
>>> searcher.search("oil prices", k=10)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._build import Built, build
from ._manifest import Manifest
from ._searcher import Searcher, ShardsMissing
from ._snapshot import restore, snapshot
from ._train import train
from ._verify import Verified, verify

if TYPE_CHECKING:
    from ._serve import serve

__all__ = [
    "Built", "Manifest", "Searcher", "ShardsMissing", "Verified", "build", "restore", "serve", "snapshot", "train", "verify",
]


def __getattr__(name: str) -> Any:
    """Ray Serve takes more than a second to import, and the workers of a cluster do without."""
    if name == "serve":
        from ._serve import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
