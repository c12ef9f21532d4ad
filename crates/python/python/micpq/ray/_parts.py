"""Parts: the encoded documents of one chunk of the corpus, sorted by shard, between encoding and indexing.

A part is one Arrow file with one record batch per shard, so that a shard reads only its own rows. Its name follows from the
file and the chunk. It is written beside its place and renamed: a task that runs twice writes the same part twice.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _micpq
from ._files import write_whole

#: Rows of one file. The insertion sequence of a document is its file's number times this, plus its row.
MAX_ROWS = 1 << 32

SCHEMA = pa.schema([("sequences", pa.large_binary()), ("documents", pa.large_binary()), ("embeddings", pa.large_binary())])


def part_name(file: int, chunk: int) -> str:
    """The fixed name of a part."""
    return f"{file:06}-{chunk:08}.arrow"


def write_part(
    path: Path,
    shards: int,
    documents: _micpq.Documents,
    embeddings: npt.NDArray[np.float32],
    sequences: npt.NDArray[np.uint64],
    dead: list[str],
) -> None:
    """Writes the rows of each shard as one record batch, and the bad rows into the metadata."""
    owners = np.array(documents.routes(shards), dtype=np.int64)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, SCHEMA.with_metadata({"dead": json.dumps(dead)})) as writer:
        for shard in range(shards):
            rows = np.flatnonzero(owners == shard)
            columns = [sequences[rows].tobytes(), documents.to_bytes(rows.tolist()), embeddings[rows].tobytes()]
            writer.write_batch(pa.record_batch([pa.array([c], pa.large_binary()) for c in columns], schema=SCHEMA))
    write_whole(path, sink.getvalue())


def read_part(path: Path, shard: int, width: int) -> tuple[_micpq.Documents, npt.NDArray[np.float32], list[int]]:
    """The rows of one shard: documents, embeddings ``[rows, width]``, insertion sequences."""
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(shard)
        sequences, documents, embeddings = (batch.column(i)[0].as_py() for i in range(3))
    rows = np.frombuffer(embeddings, dtype=np.float32).reshape(-1, width)
    return _micpq.Documents.from_bytes(documents), rows, np.frombuffer(sequences, dtype=np.uint64).tolist()


def dead_letters(path: Path) -> list[str]:
    """The bad rows of a part's chunk: place and problem."""
    with pa.memory_map(str(path)) as source:
        metadata: dict[bytes, bytes] = pa.ipc.open_file(source).schema.metadata
    dead: list[str] = json.loads(metadata[b"dead"])
    return dead


def read_chunks(filesystem: Any, file: tuple[int, str], options: str, rows: int) -> Iterator[tuple[int, bytes, list[int], list[str]]]:
    """The chunks of one file: number, documents as bytes, insertion sequences, bad rows."""
    from ._files import local_copy

    number, path = file
    with local_copy(filesystem, path) as local:
        chunks = _micpq.Chunks.open(local, options, number * MAX_ROWS, rows)
        chunk = 0
        while (found := chunks.next()) is not None:
            documents, sequences, dead = found
            # The error names the local file; the user knows the other one.
            yield chunk, documents, sequences, [reason.replace(str(local), path) for reason in dead]
            chunk += 1
