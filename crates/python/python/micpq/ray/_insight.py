"""The routes that show attributes, codes and training of all shards together, in the forms of ``micpq serve``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._http import Refusal, as_text, query_string, whole_number
from ._routes import Routes
from ._searcher import Deliver, Searcher

T = TypeVar("T")

#: Values per attribute and documents of a codeword, if no number is given.
DEFAULT_VALUES = DEFAULT_DOCUMENTS = 20


class Insight:
    """The handlers. Each gets the parameters of the path, the query string and the checked body."""

    def __init__(self, searcher: Searcher, routes: Routes) -> None:
        self.searcher, self.routes = searcher, routes

    def _merged(self, work: Callable[[Deliver], T]) -> T:
        found, missing = self.searcher._merged(work)
        self.routes.note_missing(missing)
        return found

    def facets(self, _: Any, options: Any, __: Any) -> bytes:
        given = query_string(options, {"filter": as_text, "values": whole_number(1, 1000)})
        filter, values = given.get("filter"), given.get("values", DEFAULT_VALUES)
        facets = self._merged(lambda deliver: self.searcher._merger.facets(filter, values, deliver))
        return b'{"facets":%b}' % facets.encode()

    def codebooks(self, *_: Any) -> dict[str, Any]:
        usage, entropy = self._merged(self.searcher._merger.usage)
        return {"documents": sum(usage[0]) if usage else 0, "usage": usage, "entropy": entropy}

    def codeword(self, given: Mapping[str, str], options: Any, _: Any) -> bytes:
        read = whole_number(0, (1 << 63) - 1)
        codebook, codeword = (read(name, given[name]) for name in ("codebook", "codeword"))
        documents = query_string(options, {"documents": whole_number(1, 1000)}).get("documents", DEFAULT_DOCUMENTS)
        codebooks, codewords, _ = self.searcher.model._native.shape
        if codebook >= codebooks or codeword >= codewords:
            raise Refusal(404, "bad_query", f"this index has codebooks 0 to {codebooks - 1} with codewords 0 to {codewords - 1}")
        return self._merged(lambda deliver: self.searcher._merger.codeword(codebook, codeword, documents, deliver)).encode()

    def training(self, *_: Any) -> dict[str, Any]:
        config, metrics = self.searcher.model.config, json.loads(self.searcher.model._native.metrics)
        options = config.get("training")
        return {
            "method": config["method"],
            "options": options if isinstance(options, dict) else {},
            "metrics": metrics if isinstance(metrics, dict) else None,
        }
