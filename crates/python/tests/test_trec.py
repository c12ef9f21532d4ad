"""Measures against those of pytrec_eval; BEIR folders in and out."""

import json
import os
import subprocess
from pathlib import Path

import micpq
import numpy as np
import pytest

pytrec_eval = pytest.importorskip("pytrec_eval")


def write(path, rows):
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    return path


def measured(run, qrels):
    measures = {"ndcg_cut.10", "recall.100", "map", "P.10", "recip_rank"}
    return pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)


NAMES = {"ndcg@10": "ndcg_cut_10", "recall@100": "recall_100", "map": "map", "p@10": "P_10", "mrr": "recip_rank"}


@pytest.mark.parametrize("seed", range(6))
def test_measures_equal_those_of_trec_eval(tmp_path, seed):
    draw = np.random.default_rng(seed)
    run, qrels = {}, {}
    for q in range(12):
        documents = draw.permutation(400)[: draw.integers(1, 300)]
        # Few distinct scores, so that ties matter.
        run[f"q{q}"] = {f"d{d}": float(draw.integers(0, 20)) / 8 for d in documents}
        judged = draw.permutation(400)[: draw.integers(1, 60)]
        qrels[f"q{q}"] = {f"d{d}": int(draw.integers(-1, 4)) for d in judged}
    qrels["unanswered"] = {"d1": 1}
    run["unjudged"] = {"d1": 1.0}
    run_path = write(tmp_path / "run", [(q, "Q0", d, 0, s, "t") for q, found in run.items() for d, s in found.items()])
    qrels_path = write(tmp_path / "qrels", [(q, 0, d, r) for q, judged in qrels.items() for d, r in judged.items()])
    ours, theirs = micpq.score(run_path, qrels_path), measured(run, qrels)
    assert (ours["queries"], ours["unanswered"], ours["unjudged"]) == (12, 1, 1)
    assert set(theirs) == set(ours["each"])
    for query, values in theirs.items():
        for name, other in NAMES.items():
            assert ours["each"][query][name] == pytest.approx(values[other], abs=1e-6), (query, name)
    for name, other in NAMES.items():
        assert ours[name] == pytest.approx(np.mean([v[other] for v in theirs.values()]), abs=1e-6)


@pytest.fixture(scope="module")
def binary():
    """The command line, if it was built."""
    root = Path(__file__).resolve().parents[3]
    path = Path(os.environ.get("MICPQ_BINARY", root / "target" / "release" / "micpq"))
    if not path.is_file():
        pytest.skip(f"no {path}; build it with cargo build --release --workspace")
    return path


def call(binary, *args):
    done = subprocess.run([binary, *map(str, args), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_an_exported_run_scores_as_pytrec_eval_says(binary, shared, documents, tmp_path):
    queries = [{"id": f"q{i}", "text": d["text"], "label": d["label"]} for i, d in enumerate(documents[:25])]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    beir, run = tmp_path / "beir", tmp_path / "a.run"
    exported = call(binary, "export", shared.path, "--to", "beir", "--queries", tmp_path / "queries.jsonl", "-o", beir)
    assert exported["documents"] == 400
    assert sorted(p.name for p in beir.iterdir()) == ["corpus.jsonl", "qrels", "queries.jsonl"]
    # A BEIR folder is a corpus, and its queries are queries.
    call(binary, "index", "create", tmp_path / "again", beir, "--model", Path(shared.path) / "model")
    call(binary, "export", tmp_path / "again", "--to", "trec", "--queries", beir, "-k", "100", "-o", run)
    ours = call(binary, "score", run, beir / "qrels" / "test.tsv")
    rows = [line.split() for line in run.read_text().splitlines()]
    assert len(rows) == 2500 and all(len(row) == 6 and row[1] == "Q0" for row in rows)
    found, qrels = {}, {}
    for query, _, document, _, score, _ in rows:
        found.setdefault(query, {})[document] = float(score)
    for line in (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, relevance = line.split("\t")
        qrels.setdefault(query, {})[document] = int(relevance)
    theirs = measured(found, qrels)
    for name, other in NAMES.items():
        assert ours[name] == pytest.approx(np.mean([v[other] for v in theirs.values()]), abs=1e-6)
    assert ours["ndcg@10"] > 0.5


def test_import_and_export_on_the_command_line(binary, shared, tmp_path):
    out = tmp_path / "i.faiss"
    assert call(binary, "export", shared.path, "--to", "faiss", "-o", out)["documents"] == 400
    assert call(binary, "import", out, "-o", tmp_path / "plain")["inputs"] == 32
    back = call(binary, "import", out, "--model", Path(shared.path) / "model", "-o", tmp_path / "back")
    assert back["fingerprint"] == shared.model.fingerprint
    with micpq.open(tmp_path / "back") as index:
        found = index.search("crude oil", k=10)
        assert found.ids == shared.search("crude oil", k=10, rerank=False).ids
    np.save(tmp_path / "v.npy", shared.model.embeddings(["crude oil", "bank loan", "wheat corn", "port strike"] * 20))
    imported = call(binary, "import", tmp_path / "v.npy", "--bits", "16", "--epochs", "2", "-o", tmp_path / "v.micpq")
    assert (imported["documents"], imported["bits"], imported["inputs"]) == (80, 16, 32)
