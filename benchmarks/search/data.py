"""Codes, codebooks and queries to search, made a stretch at a time, and the exact answer by brute force."""

import numpy as np

import corpus

WORDS = 16
DIM = 24
CLUSTERS = 1000
# Share of words that a clustered document takes from its cluster's own code; the others are drawn by nearness.
FAITHFUL = 0.6
# Documents made at a time.
STRETCH = 200_000
KINDS = ("model", "clustered", "noise")


def make(folder, kind, bits, documents, queries, seed):
    """Writes codes.npy [n, bits / 8], codebooks.npy [books * 16, dim] and queries.npy [queries, books * dim]."""
    rng = np.random.default_rng([seed, bits, documents, KINDS.index(kind)])
    source = {"model": Model, "clustered": Clustered, "noise": Noise}[kind](rng, bits)
    codes = np.lib.format.open_memmap(folder / "codes.npy", "w+", np.uint8, (documents, bits // 8))
    for begin in range(0, documents, STRETCH):
        words = source.words(rng, min(STRETCH, documents - begin))
        # The even book is the low nibble, as FAISS and micpq both have it.
        codes[begin : begin + len(words)] = words[:, 0::2] | words[:, 1::2] << 4
    codes.flush()
    np.save(folder / "codebooks.npy", source.codebooks.reshape(-1, source.codebooks.shape[2]))
    np.save(folder / "queries.npy", source.queries(rng, queries, codes))


def unpacked(codes):
    words = np.empty((len(codes), 2 * codes.shape[1]), np.uint8)
    words[:, 0::2], words[:, 1::2] = codes & 15, codes >> 4
    return words


class Noise:
    """Every code equally likely, every direction of a query too: nothing for an index to make use of."""

    def __init__(self, rng, bits):
        self.codebooks = rng.standard_normal((bits // 4, WORDS, DIM), dtype=np.float32)

    def words(self, rng, n):
        return rng.integers(0, WORDS, (n, len(self.codebooks)), dtype=np.uint8)

    def queries(self, rng, n, _):
        return rng.standard_normal((n, len(self.codebooks) * DIM), dtype=np.float32)


class Clustered:
    """Clusters of unequal size (the r-th has a share like 1 / (r + 10)). A word is its cluster's own, or one drawn with
    the softmax of its nearness to it; a query is a document with Gaussian noise."""

    def __init__(self, rng, bits):
        books = bits // 4
        self.codebooks = rng.standard_normal((books, WORDS, DIM), dtype=np.float32)
        share = 1 / (np.arange(CLUSTERS) + 10)
        self.share = np.cumsum(share / share.sum())
        self.centres = rng.integers(0, WORDS, (CLUSTERS, books))
        # [books, words, words]: chance of a word given the cluster's.
        chance = np.exp(-np.square(self.codebooks[:, :, None] - self.codebooks[:, None]).sum(-1) / DIM)
        chance /= chance.sum(-1, keepdims=True)
        chance = FAITHFUL * np.eye(WORDS) + (1 - FAITHFUL) * chance
        self.limits = np.cumsum(chance, -1)[:, :, :-1].astype(np.float32)

    def words(self, rng, n):
        own = self.centres[np.minimum(np.searchsorted(self.share, rng.random(n)), CLUSTERS - 1)]  # [n, books]
        out = np.empty((n, len(self.codebooks)), np.uint8)
        for book, limits in enumerate(self.limits):
            drawn = rng.random(n, dtype=np.float32)
            out[:, book] = (drawn[:, None] > limits[own[:, book]]).sum(-1, dtype=np.uint8)
        return out

    def queries(self, rng, n, codes):
        asked = unpacked(codes[np.sort(rng.integers(0, len(codes), n))])
        vectors = self.codebooks[np.arange(len(self.codebooks)), asked]  # [queries, books, dim]
        vectors = vectors + 0.5 * rng.standard_normal(vectors.shape, dtype=np.float32)
        return vectors.reshape(n, -1)


class Model:
    """Codes of a model of ours on real stories. Beyond the stories there are, a document lies somewhere between a story
    and one of its sixteen nearest, and is rounded to its words as any other. Queries are stories held out."""

    def __init__(self, rng, bits):
        self.codebooks, refined, self.near, held = corpus.projected(bits)
        self.stories, self.held = refined, held
        self.half = np.square(self.codebooks).sum(-1) / 2  # [books, words]

    def words(self, rng, n):
        first = rng.integers(0, len(self.stories), n)
        other = self.near[first, rng.integers(0, self.near.shape[1], n)]
        share = rng.random((n, 1), dtype=np.float32) * 0.5
        # Every story itself once in a while, as real collections repeat themselves.
        share[rng.random(n) < 0.02] = 0
        vectors = self.stories[first] * (1 - share) + self.stories[other] * share
        books, _, dim = self.codebooks.shape
        out = np.empty((n, books), np.uint8)
        for book in range(books):
            near = vectors[:, book * dim : (book + 1) * dim] @ self.codebooks[book].T - self.half[book]
            out[:, book] = near.argmax(-1)
        return out

    def queries(self, rng, n, _):
        return self.held[rng.permutation(len(self.held))[:n]]


class Exact:
    """Distances of every document in double precision, so that no order of additions is favoured."""

    # A distance in f32 is off by at most the books' roundings, 32 x 2^-24; nearer than this is a tie.
    TIE = 4e-6

    def __init__(self, folder):
        self.codes = np.load(folder / "codes.npy", mmap_mode="r")
        self.bytes = self.codes.shape[1]
        codebooks = np.load(folder / "codebooks.npy").astype(np.float64)
        self.codebooks = codebooks.reshape(self.bytes * 2, WORDS, -1)
        self.queries = np.load(folder / "queries.npy")

    def distances(self, query):
        slices = self.queries[query].astype(np.float64).reshape(self.bytes * 2, 1, -1)
        table = np.square(slices - self.codebooks).sum(-1)  # [books, words]
        # [bytes, 256]: both words of a byte at once.
        pairs = (table[1::2, :, None] + table[0::2, None, :]).reshape(self.bytes, 256)
        total = np.zeros(len(self.codes))
        for begin in range(0, len(self.codes), 1 << 20):
            codes = self.codes[begin : begin + (1 << 20)]
            for column, pair in enumerate(pairs):
                total[begin : begin + len(codes)] += pair[codes[:, column]]
        return total

    def judge(self, answers, k):
        """For every contestant the share of its rows that belong to the k nearest (any of equals does), mean and least
        over the queries, and the largest relative error of its distances, rank by rank, to the exact ones."""
        names = list(answers)
        recall = {name: [] for name in names}
        error = {name: 0.0 for name in names}
        for query in range(len(answers[names[0]]["rows"])):
            distances = self.distances(query)
            best = np.sort(np.partition(distances, k - 1)[:k])
            for name in names:
                rows = np.array(answers[name]["rows"][query])
                rows = np.unique(rows[rows >= 0])
                recall[name].append(float((distances[rows] <= best[-1] * (1 + self.TIE)).sum() / k))
                found = np.array(answers[name]["distances"][query])
                off = np.abs(found - best) / np.maximum(best, 1e-12) if len(found) == k else np.array([np.inf])
                error[name] = max(error[name], float(off.max()))
        return {
            name: {"recall": float(np.mean(recall[name])), "least": min(recall[name]), "error": error[name]}
            for name in names
        }
