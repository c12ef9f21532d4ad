"""Methods of the user, and the paper's evaluation, which takes them as rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Union

import numpy as np
import numpy.typing as npt

from . import _inputs, _micpq
from ._progress import Progress, reporter
from .errors import ArgumentError

_F32 = npt.NDArray[np.float32]
#: A matrix ``[width, outputs]``, or layers ``[(weight, bias), ...]`` with ReLU between them.
Projection = Union[npt.ArrayLike, Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]]


class Method(Protocol):
    """A class that trains: created with bits and seed, then fitted once."""

    def __init__(self, bits: int, seed: int) -> None: ...

    def fit(self, embeddings: _F32) -> tuple[Projection, npt.ArrayLike]:
        """Returns a projection and codebooks ``[codebooks, codewords, values]`` for embeddings ``[documents, width]``."""
        ...


def register_method(method: type[Method], name: str | None = None) -> None:
    """Makes a class a method like the built-in ones, under ``name`` or its attribute ``name``, for the life of the process.

    ``micpq.train``, ``micpq.build`` and the rows of a plan then take it by name. Codes are compared by squared distance.

    >>> import micpq, numpy as np
    >>> class Signs:
    ...     name = "signs"
    ...     def __init__(self, bits, seed):
    ...         self.bits, self.rng = bits, np.random.default_rng(seed)
    ...     def fit(self, embeddings):
    ...         projection = self.rng.standard_normal((embeddings.shape[1], self.bits))
    ...         return projection, np.tile([[[-1.0], [1.0]]], (self.bits, 1, 1))
    >>> micpq.register_method(Signs)
    >>> index = micpq.build(NEWS, encoder=ENCODER, method="signs", bits=32)
    >>> index.search("crude oil barrel", k=1)[0].labels
    ['oil']
    """
    name = name if name is not None else getattr(method, "name", None)
    if not isinstance(name, str):
        raise ArgumentError("a method needs a name; give name=... or set the attribute 'name' of the class")
    if not callable(method) or not callable(getattr(method, "fit", None)):
        raise ArgumentError(f"method {name} needs a class with fit(embeddings); see micpq.register_method")

    def fit(embeddings: _F32, bits: int, seed: int) -> tuple[list[tuple[_F32, _F32]], _F32]:
        projection, codebooks = method(bits, seed).fit(embeddings)
        return _layers(projection, name), _array(codebooks, 3, f"codebooks of method {name}")

    _micpq.register_method(name, fit)


def _array(values: Any, axes: int, what: str) -> _F32:
    array: _F32 = np.ascontiguousarray(values, dtype=np.float32)
    if array.ndim != axes:
        raise ArgumentError(f"{what} have {array.ndim} axes; {axes} expected")
    return array


def _layers(projection: Any, name: str) -> list[tuple[_F32, _F32]]:
    """Weights ``[outputs, inputs]`` and biases."""
    layers = projection if isinstance(projection, (list, tuple)) and isinstance(projection[0], (list, tuple)) else None
    if layers is None or len(layers[0]) != 2 or np.ndim(layers[0][0]) != 2:
        weight = _array(projection, 2, f"the projection of method {name}: its values")
        layers = [(weight, np.zeros(weight.shape[1]))]
    weights = [_array(np.asarray(weight).T, 2, f"weights of method {name}") for weight, _ in layers]
    biases = [_array(bias, 1, f"biases of method {name}") for _, bias in layers]
    return list(zip(weights, biases))


def paper(
    plan: str | os.PathLike[str],
    output: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    progress: Progress = False,
) -> dict[str, Any]:
    """Runs the paper's evaluation like ``micpq paper`` and writes ``report.html``, ``.md``, ``.csv`` and ``.tex`` to ``output``.

    ``plan`` is ``"quick"``, ``"full"``, ``"further"`` or a file. Its rows may name methods of :func:`register_method`. Returns
    the finished cells with their figures, and the missing ones with the reason. Finished cells are not run again.
    """
    text = _micpq.paper(
        str(plan),
        _inputs.path(data),
        _inputs.path(output),
        None if cache is None else _inputs.path(cache),
        jobs,
        list(only),
        list(skip),
        reporter(progress),
    )
    results: dict[str, Any] = json.loads(text)
    return results
