"""micpq as an algorithm of ann-benchmarks (https://github.com/erikbern/ann-benchmarks): copy this folder to
`ann_benchmarks/algorithms/micpq`.

Codes are learned from the vectors and scanned exactly; the best `candidates` of them are then ranked by the vectors
themselves, as every quantizer of that benchmark does.
"""

from __future__ import annotations

import os

import numpy as np

import micpq

try:
    from ..base.module import BaseANN
except ImportError:  # outside of ann-benchmarks

    class BaseANN:
        """What the harness calls, with its defaults."""

        def done(self) -> None:
            pass

        def get_memory_usage(self) -> float:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024

        def batch_query(self, X, n):
            self.res = [self.query(q, n) for q in X]

        def get_batch_results(self):
            return self.res


class MICPQ(BaseANN):
    """`metric` is angular or euclidean; `bits` the length of a code, `epochs` of training."""

    def __init__(self, metric: str, parameters: dict):
        if metric not in ("angular", "euclidean"):
            raise NotImplementedError(f"micpq compares by angular and euclidean, not by {metric}")
        self._metric = metric
        self._bits = parameters["bits"]
        self._epochs = parameters.get("epochs", 20)
        self._sample = parameters.get("sample", 100_000)
        self._candidates = 100

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        X = np.ascontiguousarray(X, dtype=np.float32)
        if self._metric == "angular":
            X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
        return X

    def fit(self, X: np.ndarray) -> None:
        self._vectors = self._prepared(X)
        step = max(1, len(X) // self._sample)
        self._model = micpq.train(embeddings=self._vectors[::step], bits=self._bits, epochs=self._epochs)
        self._flat = micpq.Flat(self._model, self._model.encode(embeddings=self._vectors))

    def set_query_arguments(self, candidates: int) -> None:
        self._candidates = candidates

    def _ranked(self, query: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
        found = self._vectors[rows]
        # Vectors of unit length are ordered alike by both metrics.
        distances = ((found - query) ** 2).sum(axis=1)
        return rows[np.argsort(distances, kind="stable")[:n]]

    def query(self, v: np.ndarray, n: int) -> np.ndarray:
        query = self._prepared(v[None])
        _, rows = self._flat.search(query, max(n, self._candidates))
        return self._ranked(query[0], rows[0], n)

    def batch_query(self, X: np.ndarray, n: int) -> None:
        queries = self._prepared(X)
        _, rows = self._flat.search(queries, max(n, self._candidates))
        self.res = [self._ranked(q, r, n) for q, r in zip(queries, rows)]

    def __str__(self) -> str:
        return f"MICPQ(bits={self._bits}, candidates={self._candidates})"
