"""Codes, codebooks and queries to search, and the exact answer by brute force."""

import numpy as np

WORDS = 16
DIM = 24
CLUSTERS = 1000
# Share of words that a clustered document takes from its cluster's own code; the others are drawn by nearness.
FAITHFUL = 0.6


def make(folder, kind, bits, documents, queries, seed):
    """Writes codes.npy [n, bits / 8], codebooks.npy [books * 16, 24] and queries.npy [queries, books * 24]."""
    rng = np.random.default_rng([seed, bits, documents, kind == "clustered"])
    books = bits // 4
    codebooks = rng.standard_normal((books, WORDS, DIM), dtype=np.float32)
    draw = {"clustered": clustered, "noise": noise}[kind]
    words, vectors = draw(rng, codebooks, documents, queries)
    # The even book is the low nibble, as FAISS and micpq both have it.
    np.save(folder / "codes.npy", words[:, 0::2] | words[:, 1::2] << 4)
    np.save(folder / "codebooks.npy", codebooks.reshape(-1, DIM))
    np.save(folder / "queries.npy", vectors.reshape(queries, -1))


def noise(rng, codebooks, documents, queries):
    """Every code equally likely, every direction of a query too: nothing for an index to make use of."""
    books = len(codebooks)
    words = rng.integers(0, WORDS, (documents, books), dtype=np.uint8)
    return words, rng.standard_normal((queries, books, DIM), dtype=np.float32)


def clustered(rng, codebooks, documents, queries):
    """Clusters of unequal size (the r-th has a share like 1 / (r + 10)). A word is its cluster's own, or one drawn with
    the softmax of its nearness to it; a query is a document of some cluster with Gaussian noise."""
    books = len(codebooks)
    share = 1 / (np.arange(CLUSTERS) + 10)
    sizes = rng.multinomial(documents, share / share.sum())
    centres = rng.integers(0, WORDS, (CLUSTERS, books))
    # [books, words, words]: log chance of a word given the cluster's.
    near = -np.square(codebooks[:, :, None] - codebooks[:, None]).sum(-1) / DIM
    chance = np.exp(near)
    chance /= chance.sum(-1, keepdims=True)
    chance = FAITHFUL * np.eye(WORDS) + (1 - FAITHFUL) * chance
    limits = np.cumsum(chance, -1)[:, :, :-1].astype(np.float32)
    words = np.empty((documents, books), np.uint8)
    begin = 0
    for centre, size in zip(centres, sizes):
        limit = limits[np.arange(books), centre]  # [books, 15]
        drawn = rng.random((size, books), dtype=np.float32)
        words[begin : begin + size] = (drawn[:, :, None] > limit).sum(-1, dtype=np.uint8)
        begin += size
    words = words[rng.permutation(documents)]
    asked = words[rng.integers(0, documents, queries)]
    vectors = codebooks[np.arange(books), asked]  # [queries, books, dim]
    return words, vectors + 0.5 * rng.standard_normal(vectors.shape, dtype=np.float32)


class Exact:
    """Distances of every document in double precision, so that no order of additions is favoured."""

    # A distance in f32 is off by at most the books' roundings, 32 x 2^-24; nearer than this is a tie.
    TIE = 4e-6

    def __init__(self, folder):
        self.codes = np.load(folder / "codes.npy")
        self.bytes = self.codes.shape[1]
        self.codebooks = np.load(folder / "codebooks.npy").astype(np.float64).reshape(self.bytes * 2, WORDS, DIM)
        self.queries = np.load(folder / "queries.npy")

    def distances(self, query):
        slices = self.queries[query].astype(np.float64).reshape(self.bytes * 2, 1, DIM)
        table = np.square(slices - self.codebooks).sum(-1)  # [books, words]
        # [bytes, 256]: both words of a byte at once.
        pairs = (table[1::2, :, None] + table[0::2, None, :]).reshape(self.bytes, 256)
        total = np.zeros(len(self.codes))
        for column, pair in enumerate(pairs):
            total += pair[self.codes[:, column]]
        return total

    def judge(self, answers, k):
        """For every contestant the share of its rows that belong to the k nearest (any of equals does), and the largest
        relative error of its distances, rank by rank, to the exact ones."""
        names = list(answers)
        recall = {name: [] for name in names}
        error = {name: 0.0 for name in names}
        for query in range(len(answers[names[0]]["rows"])):
            distances = self.distances(query)
            best = np.sort(np.partition(distances, k - 1)[:k])
            for name in names:
                rows = np.array(answers[name]["rows"][query])
                rows = np.unique(rows[rows >= 0])
                recall[name].append((distances[rows] <= best[-1] * (1 + self.TIE)).sum() / k)
                found = np.array(answers[name]["distances"][query])
                off = np.abs(found - best) / best if len(found) == k else np.array([np.inf])
                error[name] = max(error[name], float(off.max()))
        return {name: {"recall": float(np.mean(recall[name])), "error": error[name]} for name in names}
