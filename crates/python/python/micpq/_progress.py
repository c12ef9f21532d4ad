"""Progress of long calls: a bar, a line, or the user's function."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Union

from .errors import ArgumentError

#: ``True`` for a bar, or a function called with ``(kind, text, number)``.
Progress = Union[bool, Callable[[str, str, "int | None"], None]]

log = logging.getLogger("micpq")


class _Bar:
    """tqdm's bar if tqdm is installed, otherwise a line on standard error, rewritten in place on a terminal."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.name, self.done, self.detail = "", 0, ""
        self.started = self.printed = time.monotonic()
        self.bar: Any = None
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            tqdm = None
        self.tqdm = tqdm

    def __call__(self, kind: str, text: str, number: int | None) -> None:
        if kind == "stage":
            self.close()
            self.name, self.total, self.done, self.detail = text, number, 0, ""
            self.started = time.monotonic()
            if self.tqdm is not None:
                self.bar = self.tqdm(desc=text, total=number, leave=False)
        elif kind == "advance" and number:
            self.done += number
            if self.bar is not None:
                self.bar.update(number)
        elif kind == "detail":
            self.detail = text
            if self.bar is not None:
                self.bar.set_postfix_str(text)
        elif kind in ("note", "warning"):
            if self.bar is not None:
                self.bar.write(text, file=sys.stderr)
            else:
                print(text, file=sys.stderr)
        if self.bar is None and time.monotonic() - self.printed > (0.2 if sys.stderr.isatty() else 10):
            self.printed = time.monotonic()
            of = f"/{self.total}" if self.total else ""
            line = f"{self.name:<28} {self.done}{of} {self.printed - self.started:.0f} s {self.detail}"
            end = "\r" if sys.stderr.isatty() else "\n"
            print(line, end=end, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def reporter(progress: Any) -> Any:
    """The function that the native half calls with ``(kind, text, number)``."""
    if progress is None or progress is False:

        def quiet(kind: str, text: str, number: int | None) -> None:
            if kind == "note":
                log.info(text)
            elif kind == "warning":
                log.warning(text)

        return quiet
    if progress is True:
        return _Bar()
    if callable(progress):
        return progress
    raise ArgumentError(f"progress must be True, False or a function, not {progress!r}")
