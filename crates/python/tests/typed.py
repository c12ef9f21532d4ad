"""Calls of a user, for mypy only: this file is checked with the package and never run.

In strict mode an unneeded ignore is an error, so each ignore below proves that mypy refuses the line.
"""

import micpq
import numpy as np
import numpy.typing as npt

index: micpq.Index = micpq.build(["oil", "bank", "corn"], bits=64)
hits: micpq.Hits = index.search("oil", k=3, filter="year:1988")
names: list[str | int] = hits.ids
first: micpq.Hit = hits[0]
text: str | None = first.text
distances: npt.NDArray[np.float32] = hits.distances
model: micpq.Model = micpq.train(embeddings=np.zeros((9, 4)), bits=32)
codes: npt.NDArray[np.uint8] = model.encode(embeddings=np.zeros((2, 4)))
many: list[micpq.Hits] = index.search_many(["oil"], k=2)

first.length  # type: ignore[attr-defined]
index.search("oil", k="3")  # type: ignore[arg-type]
number: int = first.text  # type: ignore[assignment]
