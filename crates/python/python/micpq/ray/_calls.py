"""Results of Ray tasks and actors. An error of micpq is raised as the other process raised it, without Ray's wrapping."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ray

from ..errors import Error


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Raises the error of micpq that caused an exception of Ray."""
    try:
        yield
    except ray.exceptions.RayError as problem:
        cause: BaseException | None = problem
        for _ in range(10):
            if cause is None:
                break
            if isinstance(cause, Error) and not isinstance(cause, ray.exceptions.RayError):
                raise cause from None
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise


def get(references: Any, timeout: float | None = None) -> Any:
    """``ray.get``, with the errors of micpq unwrapped."""
    with unwrapped():
        return ray.get(references, timeout=timeout)


def outcomes(references: list[Any]) -> list[Any]:
    """What each reference gives that has come: its result, or the error. All at once, because every call to Ray has its cost."""
    try:
        return list(get(references))
    except Exception:
        return [_outcome(reference) for reference in references]


def _outcome(reference: Any) -> Any:
    try:
        return get(reference)
    except Exception as problem:
        return problem
