"""Runs the wrapper on an ann-benchmarks HDF5 file without the rest of ann-benchmarks: recall@k, queries a second, memory.

    python benchmarks/ann/run.py glove-100-angular.hdf5 --bits 64 --candidates 100,400
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from module import MICPQ  # noqa: E402

import micpq  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--metric", choices=["angular", "euclidean"], help="told by the file's name unless given")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--candidates", default="10,100,400")
    parser.add_argument("-k", type=int, default=10)
    arguments = parser.parse_args()
    metric = arguments.metric or ("angular" if "angular" in arguments.file.name else "euclidean")
    train, test = (micpq.read_vectors(arguments.file, part) for part in ("train", "test"))
    algorithm = MICPQ(metric, {"bits": arguments.bits, "epochs": arguments.epochs})
    begun = time.process_time()
    algorithm.fit(train)
    built = time.process_time() - begun
    nearest = exact(algorithm._vectors, algorithm._prepared(test), arguments.k)
    for candidates in map(int, arguments.candidates.split(",")):
        algorithm.set_query_arguments(candidates)
        begun = time.process_time()
        found = [algorithm.query(q, arguments.k) for q in test]
        seconds = time.process_time() - begun
        hits = sum(len(set(f.tolist()) & set(t.tolist())) for f, t in zip(found, nearest))
        print(
            json.dumps(
                {
                    "algorithm": str(algorithm), "k": arguments.k, "recall": hits / nearest.size,
                    "queries_per_cpu_second": len(test) / seconds, "build_cpu_seconds": built,
                    "code_bytes": algorithm._model.code_bytes, "resident_kb": algorithm.get_memory_usage(),
                }
            ),
            flush=True,
        )
    algorithm.done()


def exact(vectors: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """True neighbours, computed here: a file's own may be of more vectors than were taken."""
    squares = (vectors**2).sum(axis=1)
    found = []
    for part in np.array_split(queries, max(1, len(queries) // 64)):
        distances = squares[None] - 2 * part @ vectors.T
        found.append(np.argsort(distances, axis=1, kind="stable")[:, :k])
    return np.concatenate(found)


if __name__ == "__main__":
    main()
