"""The ann-benchmarks wrapper, called as its harness calls it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")
HERE = Path(__file__).resolve().parents[3] / "benchmarks" / "ann"


def test_the_wrapper_follows_the_harness_protocol(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    from module import MICPQ

    draw = np.random.default_rng(0)
    centres = draw.normal(size=(30, 20)) * 3
    train = (centres[draw.integers(30, size=1200)] + draw.normal(size=(1200, 20))).astype(np.float32)
    test = (centres[draw.integers(30, size=40)] + draw.normal(size=(40, 20))).astype(np.float32)
    for metric in ("euclidean", "angular"):
        algorithm = MICPQ(metric, {"bits": 64, "epochs": 2})
        algorithm.fit(train)
        algorithm.set_query_arguments(400)
        assert str(algorithm) == "MICPQ(bits=64, candidates=400)"
        one = [algorithm.query(q, 10) for q in test]
        algorithm.batch_query(test, 10)
        assert all((a == b).all() for a, b in zip(one, algorithm.get_batch_results()))
        assert algorithm.get_memory_usage() > 1000
        x, q = algorithm._prepared(train), algorithm._prepared(test)
        true = np.argsort(((x[None] - q[:, None]) ** 2).sum(-1), axis=1)[:, :10]
        recall = np.mean([len(set(a.tolist()) & set(b.tolist())) / 10 for a, b in zip(one, true)])
        assert recall > 0.8, (metric, recall)
    with pytest.raises(NotImplementedError):
        MICPQ("jaccard", {"bits": 64})
    with h5py.File(tmp_path / "generated-20-euclidean.hdf5", "w") as file:
        file["train"], file["test"] = train, test
    done = subprocess.run(
        [sys.executable, HERE / "run.py", tmp_path / "generated-20-euclidean.hdf5", "--epochs", "2", "--candidates", "10,200"],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 2 and rows[0]["recall"] <= rows[1]["recall"] and rows[1]["code_bytes"] == 8
