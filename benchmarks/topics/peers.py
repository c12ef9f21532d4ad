"""Other ways to find topics, each in a process of its own: `peers.py NAME FOLDER COUNT OUT`."""

import json
import resource
import sys
import time

import numpy as np


def terms_of(texts: list[str], labels: list[int], most: int = 10) -> list[list[str]]:
    """c-TF-IDF: the share of a term in a topic, times ln(1 + words per topic / occurrences)."""
    from sklearn.feature_extraction.text import CountVectorizer

    numbers = sorted(set(labels))
    joined = [" ".join(text for text, label in zip(texts, labels) if label == number) for number in numbers]
    vectorizer = CountVectorizer(stop_words="english", token_pattern=r"\b[^\W\d_]{3,}\b")
    counts = vectorizer.fit_transform(joined).toarray().astype(float)
    words = vectorizer.get_feature_names_out()
    weights = counts / counts.sum(axis=1, keepdims=True) * np.log(1 + counts.sum() / len(numbers) / counts.sum(axis=0))
    return [[str(words[i]) for i in np.argsort(-row)[:most]] for row in weights]


def kmeans(texts, vectors, count):
    from sklearn.cluster import MiniBatchKMeans

    labels = MiniBatchKMeans(count, random_state=1, n_init=3).fit_predict(vectors).tolist()
    return labels, terms_of(texts, labels)


def bertopic(texts, vectors, count):
    from bertopic import BERTopic
    from sklearn.feature_extraction.text import CountVectorizer
    from umap import UMAP

    # Its defaults, with a seed and without stop words in the names.
    umap = UMAP(n_neighbors=15, n_components=5, min_dist=0.0, metric="cosine", random_state=1)
    model = BERTopic(umap_model=umap, vectorizer_model=CountVectorizer(stop_words="english"))
    labels, _ = model.fit_transform(texts, embeddings=vectors)
    terms = [[term for term, _ in model.get_topic(n)] for n in sorted(set(labels)) if n >= 0]
    return [int(label) for label in labels], [[term for term in one if term] for one in terms]


def main() -> None:
    name, folder, count, out = sys.argv[1:]
    texts = [json.loads(line)["text"] for line in open(f"{folder}/corpus.jsonl")]
    vectors = np.load(f"{folder}/vectors.npy").astype(np.float32)
    if name == "bertopic":
        # The import compiles for minutes; it is not counted.
        import bertopic as _  # noqa: F401
        import umap as _  # noqa: F401, F811
    begun = time.time()
    labels, terms = globals()[name](texts, vectors, int(count))
    seconds = time.time() - begun
    with open(out, "w") as file:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        json.dump({"seconds": seconds, "memory": memory, "labels": labels, "terms": terms}, file)


main()
