"""The routes of embeddings and codes of texts, in the form of OpenAI's API."""

from __future__ import annotations

import base64
from typing import Any

import numpy.typing as npt

from ._http import MAX_TEXT_BYTES, Refusal
from ._routes import codewords, short
from ._searcher import Searcher

#: Ending of the name of a model that gives codes.
CODE = "/code"


class Embeddings:
    """The handlers. The model of a request is the index: its embeddings, or its codes."""

    def __init__(self, searcher: Searcher, name: str) -> None:
        self.searcher, self.name = searcher, name

    def models(self, *_: Any) -> dict[str, Any]:
        names = [self.name, self.name + CODE]
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "micpq", "created": 0} for name in names]}

    def embed(self, _: Any, __: Any, body: dict[str, Any]) -> dict[str, Any]:
        texts, tokens = _inputs(body["input"])
        of_codes = body["model"].endswith(CODE)
        index = body["model"].removesuffix(CODE)
        if index != self.name:
            raise Refusal(404, "unknown_index", f"no index is named {index[:80]}; this server has {self.name}")
        model = self.searcher.model
        length = model._native.shape[0] if of_codes else model.inputs
        if body.get("dimensions") not in (None, length):
            raise Refusal(422, "bad_query", f"{body['model']} has {length} dimensions, not {body['dimensions']}; leave dimensions out")
        vectors, count = self.searcher._merger.embed(texts, tokens, body.get("input_type") == "query")
        rows: npt.NDArray[Any] = model.encode(embeddings=vectors) if of_codes else vectors
        values: list[Any]
        if body.get("encoding_format") == "base64":
            values = [base64.b64encode(row.astype(row.dtype.newbyteorder("<")).tobytes()).decode() for row in rows]
        elif of_codes:
            values = [[float(codeword) for codeword in codewords(model, row.tobytes())] for row in rows]
        else:
            values = [[short(value) for value in row] for row in rows]
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(values)],
            "model": body["model"],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }


def _inputs(given: Any) -> tuple[list[str], list[list[int]] | None]:
    """Texts, or the token ids of texts."""
    one = isinstance(given, str) or not isinstance(given[0], (str, list))
    several = [given] if one else given
    if any(len(text) == 0 for text in several):
        raise Refusal(400, "bad_request", "input has an empty text; leave it out")
    if not isinstance(several[0], str):
        return [], [[int(token) for token in tokens] for tokens in several]
    for text in several:
        if len(text.encode()) > MAX_TEXT_BYTES:
            raise Refusal(413, "too_large", f"a text has {len(text.encode())} bytes, more than {MAX_TEXT_BYTES}; shorten it")
    return several, None
