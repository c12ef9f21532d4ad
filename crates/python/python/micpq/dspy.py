"""A retriever for DSPy.

>>> import dspy, micpq
>>> from micpq.dspy import MicpqRetriever
>>> retrieve = MicpqRetriever(micpq.build(NEWS, bits=16, encoder=ENCODER, epochs=3), k=2)
>>> found = retrieve("crude oil barrel")
>>> len(found.passages), len(found.ids)
(2, 2)
>>> dspy.configure(rm=retrieve.rm)
>>> dspy.Retrieve(k=1)("crude oil barrel").passages == found.passages[:1]
True
"""

from __future__ import annotations

from typing import Any

import dspy
from dspy.dsp.utils import dotdict

from ._index import Hits, Index


class MicpqRetriever(dspy.Retrieve):
    """Retrieves passages of an index: a module of a program, or with :meth:`rm` the retriever that DSPy is configured with.

    :param options: options of every search, as of :meth:`micpq.Index.search`: ``filter``, ``hybrid``, ``rerank``, ...
    """

    def __init__(self, index: Index, k: int = 3, *, callbacks: list[Any] | None = None, **options: Any) -> None:
        super().__init__(k=k, callbacks=callbacks)
        self.index, self.options = index, options

    def _search(self, query: str, k: int | None, options: dict[str, Any]) -> Hits:
        return self.index.search(query, self.k if k is None else k, **{**self.options, **options})

    def forward(self, query: str, k: int | None = None, **options: Any) -> dspy.Prediction:
        """The ``passages`` nearest to a query, best first, with their ``ids``, ``scores``, ``document_labels`` and ``attributes``."""
        hits = self._search(query, k, options)
        return dspy.Prediction(
            passages=[hit.text or "" for hit in hits],
            ids=[hit.id for hit in hits],
            scores=[hit.score for hit in hits],
            # DSPy has a method called labels.
            document_labels=[hit.labels for hit in hits],
            attributes=[hit.attributes for hit in hits],
        )

    def rm(self, query: str, k: int | None = None, **options: Any) -> list[Any]:
        """The same for ``dspy.configure(rm=...)``: a list with the ``long_text``, ``id`` and ``score`` of each passage."""
        hits = self._search(query, k, options)
        return [dotdict({**hit.attributes, "long_text": hit.text or "", "id": hit.id, "score": hit.score}) for hit in hits]
