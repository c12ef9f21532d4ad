"""Document search with codes of 16 to 128 bits per document.

>>> import micpq
>>> index = micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3)
>>> for hit in index.search("crude oil barrel", k=2):
...     print(hit.labels)
['oil']
['oil']
"""

from __future__ import annotations

from ._index import Added, Hit, Hits, Index, build, open
from ._methods import Method, paper, register_method
from ._micpq import __version__, set_threads, threads
from ._model import Flat, Model, train
from .errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    ConfigError,
    DeviceError,
    Error,
    FilterError,
    FormatError,
    InputError,
    StoppedError,
    StorageError,
)
from .formats import read_vectors, score

__all__ = [
    "Added",
    "ArgumentError",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "DeviceError",
    "Error",
    "FilterError",
    "Flat",
    "FormatError",
    "Hit",
    "Hits",
    "Index",
    "InputError",
    "Method",
    "Model",
    "StoppedError",
    "StorageError",
    "__version__",
    "build",
    "open",
    "paper",
    "read_vectors",
    "register_method",
    "score",
    "set_threads",
    "threads",
    "train",
]
