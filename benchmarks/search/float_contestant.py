"""ScaNN's and USearch's side of `make bench-search others`, with the requests of crates/bench/src/bin/contestant.rs.

`python float_contestant.py scann|usearch`

Both take vectors: each document is given as its decoded code, so that squared distances are those of the code.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np


def decoded(folder):
    codes = np.load(folder / "codes.npy")
    codebooks = np.load(folder / "codebooks.npy")
    books = 2 * codes.shape[1]
    codebooks = codebooks.reshape(books, 16, -1)
    out = np.empty((len(codes), books, codebooks.shape[2]), np.float32)
    for column in range(codes.shape[1]):
        out[:, 2 * column] = codebooks[2 * column][codes[:, column] & 15]
        out[:, 2 * column + 1] = codebooks[2 * column + 1][codes[:, column] >> 4]
    return out.reshape(len(codes), -1), codebooks.shape[2]


class Scann:
    """Its asymmetric hashing over the same blocks of values, without a tree: the whole set is scanned."""

    def __init__(self, folder, k):
        import scann

        vectors, dim = decoded(folder)
        builder = scann.scann_ops_pybind.builder(vectors, k, "squared_l2")
        self.index = builder.score_ah(dim, training_sample_size=100_000).build()
        self.version = f"scann {version('scann')}, score_ah({dim})"

    def search(self, queries, k, threads):
        if len(queries) == 1:
            rows, distances = self.index.search(queries[0], final_num_neighbors=k)
            return rows[None], distances[None]
        if threads > 1:
            return self.index.search_batched_parallel(queries, final_num_neighbors=k)
        return self.index.search_batched(queries, final_num_neighbors=k)


class Usearch:
    """Its graph over f16 vectors, with its own defaults."""

    def __init__(self, folder, k):
        from usearch.index import Index

        vectors, _ = decoded(folder)
        self.index = Index(ndim=vectors.shape[1], metric="l2sq", dtype="f16")
        self.index.add(np.arange(len(vectors)), vectors)
        self.version = f"usearch {version('usearch')}, f16 graph, connectivity {self.index.connectivity}"

    def search(self, queries, k, threads):
        found = self.index.search(queries, k, threads=threads)
        rows, distances = np.atleast_2d(found.keys), np.atleast_2d(found.distances)
        return rows.astype(np.int64), distances


def version(package):
    from importlib.metadata import version

    return version(package)


def main():
    kind = {"scann": Scann, "usearch": Usearch}[sys.argv[1]]
    index = queries = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "load":
            index = None
            start = time.perf_counter()
            folder = Path(request["dir"])
            queries = np.load(folder / "queries.npy")
            index = kind(folder, 100)
            documents = len(np.load(folder / "codes.npy", mmap_mode="r"))
            answer = {"documents": documents, "seconds": time.perf_counter() - start, "version": index.version}
        elif request["do"] == "search":
            asked, batch, total = queries[: request["queries"]], request["batch"], 0.0
            for begin in range(0, len(asked), batch):
                some = asked[begin : begin + batch]
                start = time.perf_counter()
                index.search(some, request["k"], request["threads"])
                total += time.perf_counter() - start
            answer = {"seconds": total / len(asked)}
        elif request["do"] == "answers":
            rows, distances = index.search(queries[: request["queries"]], request["k"], 1)
            answer = {"rows": np.asarray(rows).tolist(), "distances": np.asarray(distances).tolist()}
        else:
            raise ValueError(f"{request}: do is one of load, search, answers")
        print(json.dumps(answer), flush=True)


main()
