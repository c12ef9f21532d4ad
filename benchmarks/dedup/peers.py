"""Other ways to find duplicates, each in a process of its own: `peers.py NAME CORPUS VECTORS OUT THRESHOLD...`.

OUT gets a line of JSON per threshold: the seconds and the groups. The vectors are the same for all; encoding is not counted.
"""

import json
import re
import sys
import time
from collections import defaultdict

import numpy as np


def components(count: int, pairs) -> list[list[int]]:
    parent = list(range(count))

    def root(a: int) -> int:
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        return a

    for a, b in pairs:
        a, b = root(a), root(b)
        parent[max(a, b)] = min(a, b)
    groups = defaultdict(list)
    for i in range(count):
        groups[root(i)].append(i)
    return [group for group in groups.values() if len(group) > 1]


def floats(texts, vectors, thresholds):
    """All pairs by cosine, in blocks."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    begun = time.time()
    found = []
    for start in range(0, len(unit), 1024):
        cosines = unit[start : start + 1024] @ unit.T
        rows, others = np.nonzero(cosines >= min(thresholds))
        keep = others < rows + start
        found.append((rows[keep] + start, others[keep], cosines[rows[keep], others[keep]]))
    a, b, cosine = (np.concatenate(part) for part in zip(*found))
    search = time.time() - begun
    for threshold in thresholds:
        begun = time.time()
        keep = cosine >= threshold
        groups = components(len(unit), zip(a[keep].tolist(), b[keep].tolist()))
        yield threshold, search + time.time() - begun, groups


def semhash(texts, vectors, thresholds):
    from semhash import SemHash

    class Given:
        """The vectors are computed already."""

        def encode(self, inputs, **_):
            raise NotImplementedError

    records = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
    for threshold in thresholds:
        begun = time.time()
        index = SemHash.from_embeddings(vectors, records, Given(), columns=["text"])
        result = index.self_deduplicate(threshold=threshold)
        pairs = [(int(d.record["id"]), int(d.duplicate_of["id"])) for d in result.filtered]
        yield threshold, time.time() - begun, components(len(texts), pairs)


def datasketch(texts, vectors, thresholds):
    """MinHash of word pairs with 128 permutations, and LSH; candidates are checked by their estimated similarity."""
    from datasketch import MinHash, MinHashLSH

    begun = time.time()
    hashes = []
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        one = MinHash(num_perm=128)
        one.update_batch([f"{a} {b}".encode() for a, b in zip(words, words[1:])] or [text.encode()])
        hashes.append(one)
    hashing = time.time() - begun
    for threshold in thresholds:
        begun = time.time()
        lsh = MinHashLSH(threshold=threshold, num_perm=128)
        pairs = []
        for i, one in enumerate(hashes):
            pairs += [(i, j) for j in lsh.query(one) if one.jaccard(hashes[j]) >= threshold]
            lsh.insert(i, one)
        yield threshold, hashing + time.time() - begun, components(len(texts), pairs)


def main() -> None:
    name, corpus, vectors, out, *thresholds = sys.argv[1:]
    texts = [json.loads(line)["text"] for line in open(corpus)]
    rows = np.load(vectors).astype(np.float32)
    with open(out, "w") as file:
        for threshold, seconds, groups in globals()[name](texts, rows, [float(t) for t in thresholds]):
            file.write(json.dumps({"threshold": threshold, "seconds": seconds, "groups": groups}) + "\n")


main()
