"""The part of the server's OpenAPI description that Ray Serve answers, and the check of requests against it.

``openapi.json`` is made from the description of ``micpq serve`` by ``make ray-openapi``; a test compares them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

#: Operations that Ray Serve has.
OPERATIONS = frozenset(
    "query queryBatch queryVector upsertDocuments getDocument getDocuments deleteDocument deleteDocuments countDocuments getHealth".split()
)
_SCHEMAS = "#/components/schemas/"


def part_of(description: dict[str, Any]) -> dict[str, Any]:
    """The description of ``micpq serve`` with only the operations of Ray Serve and the schemas that they use. It has no keys."""
    paths: dict[str, Any] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if isinstance(operation, dict) and operation.get("operationId") in OPERATIONS:
                paths.setdefault(path, {})[method] = {name: value for name, value in operation.items() if name != "security"}
    found = {operation["operationId"] for methods in paths.values() for operation in methods.values()}
    assert found == OPERATIONS, f"the server lacks {OPERATIONS - found}"
    tags = {tag for methods in paths.values() for operation in methods.values() for tag in operation["tags"]}
    schemas = description["components"]["schemas"]
    used: set[str] = set()
    waiting: list[Any] = [paths]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            name = value.get("$ref", "").removeprefix(_SCHEMAS) if isinstance(value.get("$ref"), str) else ""
            if name and name not in used:
                used.add(name)
                waiting.append(schemas[name])
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return {
        "openapi": description["openapi"],
        "info": description["info"],
        "paths": paths,
        "components": {"schemas": {name: schemas[name] for name in schemas if name in used}},
        "tags": [tag for tag in description["tags"] if tag["name"] in tags],
    }


class Description:
    """The description that is served, and the bodies that it allows."""

    def __init__(self) -> None:
        self.text = Path(__file__).with_name("openapi.json").read_bytes()
        content = json.loads(self.text)
        self.schemas: dict[str, Any] = content["components"]["schemas"]
        self._components = content["components"]
        self._checks: dict[str, Draft202012Validator] = {}

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
    """Makes ``openapi.json`` from the description of a program."""
    answer = subprocess.run([program, "serve", "--openapi"], check=True, capture_output=True)
    target.write_text(json.dumps(part_of(json.loads(answer.stdout)), indent=1, ensure_ascii=False) + "\n")
