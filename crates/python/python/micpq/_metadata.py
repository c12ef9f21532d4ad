"""Metadata of other packages' documents as attributes, and their filters.

An attribute is a boolean, a number, a string or several strings. Metadata may be any JSON: what is no attribute is stored as JSON
in one more attribute, so that every document comes back as it was.

A filter of another package compares values exactly, while a filter of micpq looks for words. So micpq narrows the search with a
filter that lets at least every match through, and :func:`matches` decides.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._index import Hit, Index
from ._inputs import Id
from .errors import ConfigError, FilterError

#: Names of the fields of a row: metadata may have an "id", a "text" and a "label" of its own.
FIELDS: dict[str, Any] = {"id_field": "_id", "text_field": "_text", "label_field": "_label"}
#: The attribute with the JSON of the rest.
REST = "_rest"
_RESERVED = frozenset([*FIELDS.values(), REST])
#: Hits of one page while hits are compared with a filter.
_PAGE = 1000


def row(id: Id, text: str | None, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A document as a row for :meth:`Index.add` with the options :data:`FIELDS`."""
    found: dict[str, Any] = {"_id": id, "_text": text or ""}
    rest: dict[str, Any] = {}
    for name, value in metadata.items():
        (found if _is_attribute(name, value) else rest)[name] = value
    if rest or text is None:
        try:
            found[REST] = json.dumps({"metadata": rest, "has_text": text is not None})
        except (TypeError, ValueError) as problem:
            raise ConfigError(f"document {id}: its metadata has no JSON form: {problem}") from None
    return found


def _is_attribute(name: str, value: Any) -> bool:
    if name in _RESERVED or not _NAME.fullmatch(name):
        return False
    if isinstance(value, list):
        return len(value) > 1 and all(isinstance(item, str) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (bool, str)) or isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def metadata(attributes: Mapping[str, Any], labels: Sequence[str] = ()) -> dict[str, Any]:
    """The metadata of a stored document. Labels of an index that was built elsewhere are among them."""
    found = {name: value for name, value in attributes.items() if name != REST}
    if labels:
        found.setdefault("labels", list(labels))
    if REST in attributes:
        found.update(json.loads(attributes[REST])["metadata"])
    return found


def text(stored: str | None, attributes: Mapping[str, Any]) -> str | None:
    """The text of a stored document, or None if it was stored without."""
    if stored == "" and REST in attributes and not json.loads(attributes[REST])["has_text"]:
        return None
    return stored


@dataclass(frozen=True)
class Condition:
    """A field compared with a value."""

    field: str
    #: One of ``==``, ``!=``, ``>``, ``>=``, ``<``, ``<=``, ``in``, ``not in``, ``contains``, ``exists``.
    operator: str
    value: Any


@dataclass(frozen=True)
class Group:
    """Several filters of which ``all``, ``any``, or ``not all`` must match."""

    kind: str
    parts: Sequence[Filter]


Filter = Condition | Group


def matches(filter: Filter, of: Mapping[str, Any]) -> bool:
    """Whether a filter matches metadata. Values of different types are not equal and have no order."""
    if isinstance(filter, Group):
        answers = (matches(part, of) for part in filter.parts)
        return any(answers) if filter.kind == "any" else all(answers) is (filter.kind == "all")
    value, wanted = of.get(filter.field), filter.value
    match filter.operator:
        case "==":
            return bool(value == wanted)
        case "!=":
            return bool(value != wanted)
        case "in":
            return value in wanted
        case "not in":
            return value not in wanted
        case "contains":
            return isinstance(value, (list, str)) and wanted in value
        case "exists":
            return (value is not None) is bool(wanted)
    try:
        compared: bool = _ORDER[filter.operator](value, wanted)
    except TypeError:
        return False
    return compared


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
OPERATORS = frozenset([*_ORDER, "==", "!=", "in", "not in", "contains", "exists"])
#: Names that need no quoting in a filter.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: tantivy drops longer words.
_MAX_WORD = 39


def narrowed(filter: Filter) -> str | None:
    """A filter of micpq that lets every match of ``filter`` through, or None if there is none."""
    if isinstance(filter, Group):
        parts = [narrowed(part) for part in filter.parts]
        given = [part for part in parts if part is not None]
        if filter.kind == "all" and given:
            return " AND ".join(f"({part})" for part in given)
        if filter.kind == "any" and parts and len(given) == len(parts):
            return " OR ".join(f"({part})" for part in given)
        return None
    if not _NAME.fullmatch(filter.field) or filter.field in _RESERVED:
        return None
    if filter.operator == "==":
        return _literal(filter.field, filter.value)
    if filter.operator == "in" and filter.value:
        return narrowed(Group("any", [Condition(filter.field, "==", value) for value in filter.value]))
    return None


def _literal(field: str, value: Any) -> str | None:
    """Documents whose field has the words of a string. Numbers are left to :func:`matches`: 1 and 1.0 are equal."""
    if not isinstance(value, str) or not value.isascii():
        return None
    # tantivy takes a time for a number.
    if re.match(r"\d{4}-\d\d-\d\d", value):
        return None
    words = re.findall(r"[A-Za-z0-9]+", value)
    if not words or max(map(len, words)) > _MAX_WORD:
        return None
    return f'{field}:"{" ".join(words)}"'


@dataclass(frozen=True)
class Exact:
    """A filter of another package."""

    #: A filter of micpq that lets every match through.
    narrowed: str | None
    matches: Callable[[Hit], bool]


def exact(filter: Filter) -> Exact:
    """A filter that :func:`matches` decides."""
    return Exact(narrowed(filter), lambda hit: matches(filter, metadata(hit.attributes, hit.labels)))


def search(index: Index, query: Any, k: int, filter: str | Exact | None, **options: Any) -> list[Hit]:
    """The first ``k`` hits that match a filter of micpq's language or of another package."""
    if not isinstance(filter, Exact):
        return list(index.search(query, k, filter=filter, **options))
    pages = _pages(index, query, min(max(4 * k, 50), _PAGE), filter, options)
    return list(itertools.islice(pages, k))


def every(index: Index, filter: str | Exact | None) -> list[Hit]:
    """Every document that matches a filter, in the order of their ids."""
    anywhere = np.ones(index.model.inputs, dtype=np.float32)
    found = _pages(index, anywhere, _PAGE, filter, {"rerank": False})
    return sorted(found, key=lambda hit: (isinstance(hit.id, str), hit.id))


def _pages(index: Index, query: Any, size: int, filter: str | Exact | None, options: Mapping[str, Any]) -> Iterator[Hit]:
    native = filter.narrowed if isinstance(filter, Exact) else filter
    after: str | None = None
    while True:
        try:
            hits = index.search(query, size, filter=native, after=after, **options)
        except FilterError:
            if not isinstance(filter, Exact) or native is None:
                raise
            # No document has one of the names; another part of the filter may match.
            native = None
            continue
        yield from (hit for hit in hits if not isinstance(filter, Exact) or filter.matches(hit))
        after = hits.next
        if after is None:
            return
