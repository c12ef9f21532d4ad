"""Converts arguments to the types of the native half. Every refusal names the argument and its value."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from . import _micpq
from .errors import ArgumentError, ConfigError, InputError

#: Documents: a path, strings and dictionaries, or a table.
Data = Union[str, "os.PathLike[str]", Iterable[Union[str, Mapping[str, Any]]], Any]

#: Id of a document.
Id = Union[str, int]

CORPUS_OPTIONS = frozenset(
    "format on_error id_field text_field label_field label_separator ignore_fields header columns delimiter quoting "
    "infer_types folder_labels extract max_extract_seconds max_row_bytes max_unpacked_bytes allow_empty_text unique_ids".split()
)


def options(given: Mapping[str, Any]) -> str:
    """Keyword arguments as JSON. None means the default and is left out."""
    plain = {}
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        elif isinstance(value, np.generic):
            value = value.item()
        elif isinstance(value, (tuple, set, frozenset)):
            value = list(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name} is {value}; it must be a finite number")
        plain[name] = value
    try:
        return json.dumps(plain)
    except (TypeError, ValueError) as problem:
        raise ArgumentError(f"an option has a value that is not plain (number, string, list or flag): {problem}") from None


def split_corpus(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of reading a corpus and the rest."""
    corpus = {name: value for name, value in given.items() if name in CORPUS_OPTIONS}
    return corpus, {name: value for name, value in given.items() if name not in CORPUS_OPTIONS}


def path(value: Any, what: str = "path") -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise ArgumentError(f"{what} must be a path (str or os.PathLike), not {type(value).__name__}")
    text = os.fspath(value)
    if isinstance(text, bytes) or "\0" in text or text == "":
        raise ArgumentError(f"{what} is {text!r}, which is not a path")
    return Path(text)


def is_path(data: Any) -> bool:
    return isinstance(data, (str, os.PathLike))


def _is_table(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__") and (hasattr(data, "columns") or hasattr(data, "schema"))


def documents(
    data: Any,
    corpus: Mapping[str, Any] | None = None,
    *,
    ids: Sequence[Id] | None = None,
    name: str = "documents",
) -> _micpq.Documents:
    """Documents of a path, rows or a table."""
    settings = options(corpus or {})
    if is_path(data):
        if ids is not None:
            raise ConfigError("ids go with a list of texts; a file has its own, and id_field names their field")
        return _micpq.Documents.from_path(path(data, name), settings)
    if isinstance(data, (bytes, bytearray)):
        raise ArgumentError(f"{name} must be texts (str), not bytes; decode them first")
    if isinstance(data, Mapping):
        raise ArgumentError(f"{name} is one {type(data).__name__}; pass a list of texts or of dictionaries")
    if _is_table(data):
        if ids is not None:
            raise ConfigError("ids go with a list of texts; a table has a column of ids, and id_field names it")
        try:
            return _micpq.Documents.from_arrow(data, name, settings)
        except ImportError:
            # pandas needs pyarrow for the Arrow interface.
            data = data.to_dict("records")
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):
        data = data.to_dict("records")
    elif hasattr(data, "tolist"):
        data = data.tolist()
    elif hasattr(data, "to_list"):
        data = data.to_list()
    elif hasattr(data, "to_pylist"):
        data = data.to_pylist()
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise ArgumentError(
            f"{name} is of type {type(data).__name__}; pass a path, texts, dictionaries or a table (pandas, polars, arrow)"
        )
    if ids is not None:
        data = list(data)
        ids = list(ids)
        if len(ids) != len(data):
            raise InputError(f"there are {len(ids)} ids for {len(data)} {name}; give one for each")
        data = [{**row, "id": i} if isinstance(row, Mapping) else {"id": i, "text": row} for i, row in zip(ids, data)]
    return _micpq.Documents.from_rows(data, name, settings)


def vectors(
    data: Any, name: str = "embeddings", width: int | None = None, rows: int | None = None
) -> npt.NDArray[np.float32]:
    """An array of float32 rows in C order. An array that is one already is not copied."""
    if hasattr(data, "detach") and hasattr(data, "cpu"):  # a PyTorch tensor
        data = data.detach().cpu().numpy()
    try:
        array = np.asarray(data)
    except ValueError as problem:
        raise InputError(f"{name} is ragged: {problem}") from None
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise InputError(f"{name} is an array of {array.dtype}; pass vectors of numbers, all of one length")
    if array.ndim != 2:
        raise InputError(f"{name} has shape {array.shape}; pass two dimensions, one row per document")
    if array.shape[1] == 0:
        raise InputError(f"{name} has shape {array.shape}: its vectors have no values")
    if width is not None and array.shape[1] != width:
        raise InputError(f"{name} has vectors of {array.shape[1]} values, the model takes {width}; use the encoder it was trained with")
    if rows is not None and array.shape[0] != rows:
        raise InputError(f"{name} has {array.shape[0]} rows for {rows} texts; give one for each")
    return np.ascontiguousarray(array, dtype=np.float32)


def vector(data: Any, name: str, width: int) -> npt.NDArray[np.float32]:
    try:
        array = np.asarray(data, dtype=np.float32)
    except (ValueError, TypeError) as problem:
        raise InputError(f"{name} is not a vector of numbers: {problem}") from None
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1 or array.shape[0] != width:
        raise InputError(f"{name} has shape {array.shape}; the model takes a vector of {width} values")
    return np.ascontiguousarray(array)


def codes(data: Any, width: int) -> npt.NDArray[np.uint8]:
    array = np.asarray(data)
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != width:
        raise InputError(f"codes must be uint8 of shape (n, {width}), not {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array)


def count_or_default(value: Any, name: str) -> int | None:
    """:func:`count`; None is the default."""
    return None if value is None else count(value, name)


def build_default(value: Any, name: str) -> Any:
    """The value of an option of a build; for None its default."""
    return _micpq.build_defaults()[name] if value is None else value


def count(value: Any, name: str) -> int:
    """A whole number from 0. True and False are refused."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"{name} must be a whole number, not {value!r}")
    if value < 0 or value >= 1 << 63:
        raise ConfigError(f"{name} is {value}; it must be a whole number, 0 or more")
    return int(value)
