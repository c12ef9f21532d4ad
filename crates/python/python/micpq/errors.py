"""The exceptions of micpq. All derive from :class:`Error`.

>>> import micpq
>>> try:
...     micpq.open("nowhere")
... except micpq.FormatError as problem:
...     print(problem)
nowhere: is not an index: it has no index.json; build an index, or give the path of one
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "DeviceError",
    "Error",
    "FilterError",
    "FormatError",
    "InputError",
    "StoppedError",
    "StorageError",
]


class Error(Exception):
    """Base of all errors of micpq."""


class ArgumentError(Error, TypeError):
    """An argument has the wrong type."""


class ConfigError(Error, ValueError):
    """An option is out of range, unknown, or contradicts another.

    >>> import micpq
    >>> try:
    ...     micpq.train(embeddings=[[1.0, 0.0], [0.0, 1.0]], epochs=0)
    ... except micpq.ConfigError as problem:
    ...     print(problem.option)
    epochs
    """

    #: Name of the option, if one option is wrong.
    option: str | None = None


class FilterError(ConfigError):
    """A filter cannot be parsed, or names an attribute that no document has."""


class DeviceError(Error):
    """The encoder cannot run on the requested device: no driver, no such GPU, or too little memory on it."""


class InputError(Error, ValueError):
    """A document, a query or a vector cannot be used. The message says which and why."""


class FormatError(Error):
    """A file or folder is damaged, foreign or of another version."""


class BusyError(Error):
    """Another writer has the index open."""


class StorageError(Error, OSError):
    """The operating system refused to read or write a file."""


class ClosedError(Error):
    """The index was closed."""


class StoppedError(Error):
    """The call was stopped by another thread or a cancelled task. Ctrl-C raises ``KeyboardInterrupt`` instead."""
