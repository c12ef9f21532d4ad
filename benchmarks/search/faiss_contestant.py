"""FAISS's side of `make bench-search`, with the requests of crates/bench/src/bin/contestant.rs.

`python faiss_contestant.py fastscan|pq`
"""

import json
import sys
import time
from pathlib import Path

import faiss
import numpy as np


def build(kind, folder):
    codes = np.load(folder / "codes.npy")
    codebooks = np.load(folder / "codebooks.npy")
    books = 2 * codes.shape[1]
    pq = faiss.IndexPQ(books * codebooks.shape[1], books, 4)
    faiss.copy_array_to_vector(codebooks.ravel(), pq.pq.centroids)
    faiss.copy_array_to_vector(codes.ravel(), pq.codes)
    pq.ntotal = len(codes)
    pq.is_trained = True
    return faiss.IndexPQFastScan(pq, 32) if kind == "fastscan" else pq


def search(index, queries, batch, k):
    """Seconds a query took. The C++ call is timed alone, with its arrays allocated before."""
    distances = np.empty((batch, k), np.float32)
    rows = np.empty((batch, k), np.int64)
    out = faiss.swig_ptr(distances), faiss.swig_ptr(rows)
    total = 0.0
    for begin in range(0, len(queries), batch):
        some = queries[begin : begin + batch]
        pointer = faiss.swig_ptr(some)
        start = time.perf_counter()
        index.search_c(len(some), pointer, k, *out)
        total += time.perf_counter() - start
    return total / len(queries)


def main():
    kind = sys.argv[1]
    index = queries = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "load":
            index = None
            start = time.perf_counter()
            folder = Path(request["dir"])
            queries = np.load(folder / "queries.npy")
            index = build(kind, folder)
            version = f"faiss {faiss.__version__} ({faiss.get_compile_options().strip()})"
            answer = {"documents": index.ntotal, "seconds": time.perf_counter() - start, "version": version}
        elif request["do"] == "search":
            faiss.omp_set_num_threads(request["threads"])
            answer = {"seconds": search(index, queries[: request["queries"]], request["batch"], request["k"])}
        elif request["do"] == "answers":
            distances, rows = index.search(queries[: request["queries"]], request["k"])
            answer = {"rows": rows.tolist(), "distances": distances.tolist()}
        else:
            raise ValueError(f"{request}: do is one of load, search, answers")
        print(json.dumps(answer), flush=True)


main()
