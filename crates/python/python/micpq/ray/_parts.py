"""Parts: the encoded documents of one piece of the corpus, sorted by shard, between encoding and indexing.

A part is one Arrow file with one record batch per shard, so that a shard reads only its own rows. Its name follows from the
file and its number in it. It is written beside its place and renamed: a task that runs twice writes the same part twice.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _micpq
from .._model import Model
from ..errors import FormatError, InputError
from ._files import write_whole

#: Rows of one file. A row without an id has as id its file's number times this, plus its row.
MAX_ROWS = 1 << 32

#: Insertion sequences of one file in an index with chunks: one per byte of text, because no text has more chunks than bytes.
MAX_BYTES = 1 << 40

#: What a dead letter begins with that stands for the rest of a file.
UNREADABLE = "the file cannot be read further: "

SCHEMA = pa.schema([(name, pa.large_binary()) for name in ("sequences", "documents", "embeddings", "chunks")])


@dataclass(frozen=True)
class Embedded:
    """Embeddings of documents: one row per document, or in an index with chunks one per chunk."""

    #: ``[chunks of all documents, width]``
    rows: npt.NDArray[np.float32]
    #: Start and end in bytes of each chunk of each document; None where every document is one.
    chunks: list[list[tuple[int, int]]] | None = None
    #: Texts that were longer than the encoder takes.
    cut: int = 0

    @classmethod
    def of(cls, model: Model, documents: _micpq.Documents, chunk: str | None) -> Embedded:
        """Splits and encodes documents."""
        return cls(*model._native.embed(documents, chunk))

    def select(self, positions: Sequence[int]) -> Embedded:
        """The documents at these positions."""
        if self.chunks is None:
            return Embedded(self.rows[list(positions)])
        ends = np.cumsum([len(chunks) for chunks in self.chunks])
        rows = [row for at in positions for row in range(ends[at] - len(self.chunks[at]), ends[at])]
        return Embedded(self.rows[rows], [self.chunks[at] for at in positions])


def part_name(file: int, part: int) -> str:
    """The fixed name of a part."""
    return f"{file:06}-{part:08}.arrow"


def write_part(
    path: Path, shards: int, documents: _micpq.Documents, embedded: Embedded, sequences: npt.NDArray[np.uint64], dead: list[str]
) -> None:
    """Writes the rows of each shard as one record batch; the bad rows and the number of cut texts into the metadata."""
    owners = np.array(documents.routes(shards), dtype=np.int64)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, SCHEMA.with_metadata({"dead": json.dumps(dead), "cut": str(embedded.cut)})) as writer:
        for shard in range(shards):
            rows = np.flatnonzero(owners == shard)
            own = embedded.select(rows.tolist())
            columns = [sequences[rows].tobytes(), documents.to_bytes(rows.tolist()), own.rows.tobytes(), json.dumps(own.chunks).encode()]
            writer.write_batch(pa.record_batch([pa.array([c], pa.large_binary()) for c in columns], schema=SCHEMA))
    write_whole(path, sink.getvalue())


def read_part(path: Path, shard: int, width: int) -> tuple[_micpq.Documents, Embedded, list[int]]:
    """The rows of one shard: documents, embeddings, insertion sequences."""
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(shard)
        sequences, documents, embeddings, chunks = (batch.column(i)[0].as_py() for i in range(4))
    rows = np.frombuffer(embeddings, dtype=np.float32).reshape(-1, width)
    ranges = json.loads(chunks)
    embedded = Embedded(rows, ranges and [[(start, end) for start, end in own] for own in ranges])
    return _micpq.Documents.from_bytes(documents), embedded, np.frombuffer(sequences, dtype=np.uint64).tolist()


def notes(path: Path) -> tuple[list[str], int]:
    """The bad rows of a part, as place and problem, and how many of its texts were cut."""
    with pa.memory_map(str(path)) as source:
        metadata: dict[bytes, bytes] = pa.ipc.open_file(source).schema.metadata
    dead: list[str] = json.loads(metadata[b"dead"])
    return dead, int(metadata[b"cut"])


def read_parts(
    filesystem: Any, file: tuple[int, str], options: str, documents: int, split: bool = False
) -> Iterator[tuple[int, bytes, list[int], list[str]]]:
    """The parts of one file, of so many documents each: number, documents as bytes, insertion sequences, bad rows."""
    from ._files import local_copy

    number, path = file
    with local_copy(filesystem, path) as local:
        first = number * (MAX_BYTES if split else MAX_ROWS)
        part, rows = 0, 0
        try:
            parts = _micpq.CorpusParts.open(local, options, number * MAX_ROWS, first, documents, split)
            while (found := parts.next()) is not None:
                packed, sequences, dead = found
                # The error names the local file; the user knows the other one.
                yield part, packed, sequences, [reason.replace(str(local), path) for reason in dead]
                part, rows = part + 1, rows + len(sequences)
        except (FormatError, InputError) as problem:
            # What the storage refuses may be there the next time; what the file says stays.
            reason = str(problem).replace(str(local), path)
            yield part, b"[]", [], [f"{UNREADABLE}{reason} ({rows} documents before were read)"]
