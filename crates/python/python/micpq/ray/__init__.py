"""Past one machine: building, searching and changing an index in shards, on Ray.

Every shard is an ordinary index, and a folder of shards is searched by the plain program too: ``micpq search out/``.

>>> import micpq.ray  # doctest: +SKIP
>>> micpq.ray.build("s3://corpus/news/", "/shared/news", shards=16)  # doctest: +SKIP
>>> searcher = micpq.ray.Searcher("/shared/news", replicas=2)  # doctest: +SKIP
>>> searcher.search("oil prices", k=10)  # doctest: +SKIP
"""

from __future__ import annotations

from ._build import Built, build
from ._manifest import Manifest
from ._searcher import Searcher, ShardsMissing
from ._serve import serve
from ._snapshot import restore, snapshot
from ._train import train

__all__ = ["Built", "Manifest", "Searcher", "ShardsMissing", "build", "restore", "serve", "snapshot", "train"]
