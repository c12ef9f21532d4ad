"""``frame.micpq`` of a pandas or polars table: build an index of its rows, add them to one, and find hits for every row.

>>> import pandas, micpq
>>> import micpq.frames
>>> index = pandas.DataFrame(NEWS).micpq.build(bits=16, encoder=ENCODER, epochs=3)
>>> questions = pandas.DataFrame({"question": ["crude oil barrel", "bank loan credit"]}, index=["a", "b"])
>>> found = questions.micpq.search(index, "question", k=2)
>>> list(found["row"]), list(found.columns)
(['a', 'a', 'b', 'b'], ['row', 'id', 'distance', 'score', 'text', 'labels', 'year'])
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from ._index import Added, Hits, Index, build
from .errors import ConfigError


class _Frame:
    """What every kind of table has."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def build(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Index:
        """Trains a model on the rows and indexes them, as :func:`micpq.build`. Columns besides id, text and label become attributes."""
        return build(self._frame, path, **options)

    def add_to(self, index: Index, **options: Any) -> Added:
        """Adds the rows to an index, or replaces those with the same ids, as :meth:`micpq.Index.add`."""
        return index.add(self._frame, **options)

    def _hits(self, index: Index, column: str, k: int | None, options: dict[str, Any]) -> list[Hits]:
        if column not in self._frame.columns:
            raise ConfigError(f"the table has no column {column!r}; it has {', '.join(map(str, self._frame.columns))}")
        queries = list(self._frame[column])
        if not queries:
            return []
        vectors = None if all(isinstance(query, str) for query in queries) else np.array([list(query) for query in queries], dtype=np.float32)
        return index.search_many(queries if vectors is None else vectors, k, **options)


def _columns(rows: Iterable[Any], found: list[Hits]) -> dict[str, list[Any]]:
    """The hits of all rows below each other, with the row of each."""
    numbers = [row for row, hits in zip(rows, found) for _ in hits]
    tables = [hits._columns() for hits in found if len(hits)]
    names = dict.fromkeys(name for table in tables for name in table)
    lengths = [len(table["id"]) for table in tables]
    joined = {name: [value for table, n in zip(tables, lengths) for value in table.get(name, [None] * n)] for name in names}
    return {"row": numbers, **joined}


def _register_pandas() -> None:
    import pandas

    @pandas.api.extensions.register_dataframe_accessor("micpq")
    class PandasFrame(_Frame):
        """``frame.micpq`` of pandas."""

        def search(self, index: Index, column: str = "text", k: int | None = None, **options: Any) -> Any:
            """Searches for every value of a column: a text, or an embedding. A row per hit; ``row`` is the label of the row that was
            searched for. ``options`` are those of :meth:`micpq.Index.search`."""
            return pandas.DataFrame(_columns(self._frame.index, self._hits(index, column, k, options)))


def _register_polars() -> None:
    import polars

    @polars.api.register_dataframe_namespace("micpq")
    class PolarsFrame(_Frame):
        """``frame.micpq`` of polars."""

        def search(self, index: Index, column: str = "text", k: int | None = None, **options: Any) -> Any:
            """Searches for every value of a column: a text, or an embedding. A row per hit; ``row`` is the number of the row that was
            searched for. ``options`` are those of :meth:`micpq.Index.search`."""
            found = self._hits(index, column, k, options)
            return polars.DataFrame(_columns(range(self._frame.height), found), strict=False)


for _name, _register in (("pandas", _register_pandas), ("polars", _register_polars)):
    if importlib.util.find_spec(_name) is not None:
        _register()
