"""The server's OpenAPI description, which Ray Serve answers to as well: its routes, and the check of requests against it.

``openapi.json`` is the description of ``micpq serve``, written by ``make ray-openapi``; a test compares them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

_SCHEMAS = "#/components/schemas/"


class Description:
    """The description that is served, and the bodies that it allows."""

    def __init__(self) -> None:
        self.text = Path(__file__).with_name("openapi.json").read_bytes()
        content = json.loads(self.text)
        self.schemas: dict[str, Any] = content["components"]["schemas"]
        self._components = content["components"]
        self._checks: dict[str, Draft202012Validator] = {}
        # The parts of each path, and the operation of each method.
        self._paths: list[tuple[list[str], dict[str, str]]] = [
            (path.split("/")[1:], {method.upper(): operation["operationId"] for method, operation in methods.items()})
            for path, methods in content["paths"].items()
        ]

    def find(self, parts: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The operations of a path by method, and its parameters; none if there is no such path. A part that is a name in the
        description goes before a parameter."""
        best: tuple[list[bool], dict[str, str], dict[str, str]] = ([], {}, {})
        for names, operations in self._paths:
            is_parameter = [name.startswith("{") for name in names]
            fits = len(names) == len(parts) and all(free or name == part for free, name, part in zip(is_parameter, names, parts))
            if fits and (not best[1] or is_parameter < best[0]):
                given = {name.strip("{}"): part for free, name, part in zip(is_parameter, names, parts) if free}
                best = (is_parameter, operations, given)
        return best[1], best[2]

    def fields(self, schema: str) -> set[str]:
        """Names of the fields of an object."""
        return set(self.schemas[schema]["properties"])

    def problem(self, schema: str, value: Any) -> str | None:
        """What is wrong with a body, or None."""
        if schema not in self._checks:
            self._checks[schema] = Draft202012Validator({"$ref": _SCHEMAS + schema, "components": self._components})
        wrong = best_match(self._checks[schema].iter_errors(value))
        if wrong is None:
            return None
        place = ".".join(str(step) for step in wrong.absolute_path)
        message: str = wrong.message if len(wrong.message) <= 300 else wrong.message[:300] + "..."
        return f"{place}: {message}" if place else message


def write(program: Path, target: Path) -> None:
    """Writes the description of a program to ``openapi.json``."""
    answer = subprocess.run([program, "serve", "--openapi"], check=True, capture_output=True)
    target.write_bytes(answer.stdout)
