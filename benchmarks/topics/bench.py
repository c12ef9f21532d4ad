"""Topics found by micpq, by scikit-learn's MiniBatchKMeans and by BERTopic, on labelled corpora.

    make bench-topics                              samples of AGNews, Reuters and 20 Newsgroups
    make bench-topics ARGS="--corpora agnews --documents 5000 --without bertopic"

NMI and ARI compare topics with labels. NPMI is the coherence of the ten terms of a topic: normalised pointwise mutual information of
their pairs over the documents, in the mean. The terms of MiniBatchKMeans are found by c-TF-IDF, as BERTopic does it. All read the
same embeddings; encoding is not counted. Memory is the peak of the process.
"""

import argparse
import csv
import gzip
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MICPQ = ROOT / "target" / "release" / "micpq"


def agnews(data: Path):
    return [(row[1], row[0]) for row in csv.reader(gzip.open(data / "agnews" / "train.csv.gz", "rt"))]


def reuters(data: Path):
    """The documents of R52: exactly one of 52 topics."""
    splits = csv.DictReader(open(data / "reuters21578" / "modapte_splits.tsv"), delimiter="\t")
    topic = {int(row["id"]): row["r52"] for row in splits if row["r52"]}
    rows = [json.loads(line) for line in gzip.open(data / "reuters21578" / "docs.jsonl.gz", "rt")]
    return [(f"{row['title']}. {row['body']}", topic[row["id"]]) for row in rows if row["id"] in topic]


def newsgroups(data: Path):
    """Messages without their headers, which name the group."""
    rows = [json.loads(line) for line in gzip.open(data / "20ng" / "train.jsonl.gz", "rt")]
    rows += [json.loads(line) for line in gzip.open(data / "20ng" / "test.jsonl.gz", "rt")]
    bodies = [(row["text"].partition("\n\n")[2], str(row["label"])) for row in rows]
    return [(re.sub(r"\s+", " ", text).strip(), label) for text, label in bodies]


CORPORA = {"agnews": ("AGNews", agnews), "reuters": ("Reuters-21578", reuters), "20ng": ("20 Newsgroups", newsgroups)}


def run(command: list) -> tuple[float, float, str]:
    """Seconds, peak memory in MB, and standard output."""
    begun = time.time()
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{command} failed")
    return time.time() - begun, usage.ru_maxrss / 1000, out


def npmi(topics: list[list[str]], texts: list[str]) -> float:
    """Mean over topics of the mean NPMI of the pairs of its terms; a pair that never occurs together counts -1."""
    words = sorted({term for terms in topics for term in terms})
    counts = CountVectorizer(vocabulary=words, binary=True, token_pattern=r"\w+").fit_transform(texts)
    single = np.asarray(counts.sum(axis=0)).ravel() / len(texts)
    both = (counts.T @ counts).toarray() / len(texts)
    place = {word: i for i, word in enumerate(words)}
    means = []
    for terms in topics:
        pairs = [(place[a], place[b]) for i, a in enumerate(terms) for b in terms[:i]]
        values = []
        for a, b in pairs:
            p = both[a, b]
            values.append(-1.0 if p == 0 else 1.0 if p == 1 else np.log(p / (single[a] * single[b])) / -np.log(p))
        if values:
            means.append(np.mean(values))
    return float(np.mean(means)) if means else float("nan")


def ours(folder: Path, count: int | None) -> tuple[dict, list[int], list[list[str]]]:
    number = ["--topics", count] if count else []
    out = folder / "assignments.jsonl"
    seconds, memory, report = run([MICPQ, "topics", folder / "i.micpq", "--json", "--quiet", "--assignments", out, *number])
    rows = sorted((json.loads(line) for line in out.read_text().splitlines()), key=lambda row: row["id"])
    terms = [[term["term"] for term in topic["terms"]] for topic in json.loads(report)["topics"]]
    return {"seconds": seconds, "memory": memory, "outliers": sum(r["outlier"] for r in rows)}, [r["topic"] for r in rows], terms


def theirs(name: str, folder: Path, count: int) -> tuple[dict, list[int], list[list[str]]]:
    out = folder / f"{name}.json"
    if not out.exists():
        run([sys.executable, HERE / "peers.py", name, folder, count, out])
    found = json.loads(out.read_text())
    outliers = sum(label < 0 for label in found["labels"])
    return {"seconds": found["seconds"], "memory": found["memory"], "outliers": outliers}, found["labels"], found["terms"]


def line(name: str, found: tuple, labels: list[str], texts: list[str]) -> dict:
    measures, topics, terms = found
    entry = {
        "contestant": name,
        "topics": len({t for t in topics if t >= 0}),
        "NMI": normalized_mutual_info_score(labels, topics),
        "ARI": adjusted_rand_score(labels, topics),
        "NPMI": npmi(terms, texts),
        **measures,
    }
    print(json.dumps(entry), file=sys.stderr)
    return entry


def table(lines: list[dict]) -> str:
    out = ["| | topics | NMI | ARI | NPMI | outliers | seconds | peak MB |", "|---|---|---|---|---|---|---|---|"]
    for l in lines:
        out.append(
            f"| {l['contestant']} | {l['topics']} | {l['NMI']:.3f} | {l['ARI']:.3f} | {l['NPMI']:.3f} | {l['outliers']} "
            f"| {l['seconds']:.1f} | {l['memory']:.0f} |"
        )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpora", default="agnews,reuters,20ng")
    parser.add_argument("--documents", type=int, default=5_000, help="most documents of a corpus")
    parser.add_argument("--method", default="opq", help="method of the codes")
    parser.add_argument("--without", default="", help="contestants to leave out: kmeans, bertopic")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("MICPQ_SHARED", ROOT.parent / "shared")) / "data")
    parser.add_argument("--work", type=Path, help="folder that keeps corpora, vectors, indexes and the peers' results between runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "topics.md")
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="micpq-topics-"))
    parts = []
    for corpus in args.corpora.split(","):
        title, read = CORPORA[corpus]
        folder = work / corpus
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for row in read(args.data) if len(row[0].split()) >= 5]
        random.Random(1).shuffle(rows)
        rows = rows[: args.documents]
        texts, labels = [text for text, _ in rows], [label for _, label in rows]
        source = folder / "corpus.jsonl"
        source.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
        vectors, index = folder / "vectors.npy", folder / "i.micpq"
        if not vectors.exists():
            run([MICPQ, "encode", source, "-o", vectors])
        if not index.exists():
            run([MICPQ, "import", vectors, "--documents", source, "--method", args.method, "-o", index])
        classes = len(set(labels))
        lines = [line("micpq, as many topics as labels", ours(folder, classes), labels, texts)]
        lines.append(line("micpq, number chosen", ours(folder, None), labels, texts))
        peers = [name for name in ("kmeans", "bertopic") if name not in args.without.split(",")]
        names = {"kmeans": "MiniBatchKMeans, as many as labels", "bertopic": "BERTopic, its own number"}
        lines += [line(names[name], theirs(name, folder, classes), labels, texts) for name in peers]
        parts.append({"corpus": title, "documents": len(texts), "labels": classes, "lines": lines})
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    sections = [f"## {p['corpus']}: {p['documents']} documents, {p['labels']} labels\n\n{table(p['lines'])}\n" for p in parts]
    args.out.write_text(f"""# Topics

`make bench-topics`, {time.strftime("%Y-%m-%d")}; {cpu}, {os.cpu_count()} cores; {run([MICPQ, "--version"])[2].strip()}.

All read the same embeddings of all-MiniLM-L6-v2; encoding is not counted. micpq clusters codes of 64 bits of these vectors (method {args.method}), the others the
vectors of 384 floats. The seconds of micpq are those of the whole command. Outliers are counted with the topic they are nearest to by
micpq, and as a topic of their own by BERTopic.

{chr(10).join(sections)}""")
    args.out.with_suffix(".json").write_text(json.dumps(parts, indent=1) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
