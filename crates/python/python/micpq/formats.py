"""Foreign files: vectors and TREC runs."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _inputs, _micpq


def read_vectors(path: str | os.PathLike[str], dataset: str | None = None) -> npt.NDArray[np.float32]:
    """Reads the vectors of a ``.npy``, ``.fbin``, ``.u8bin``, ``.i8bin``, ``.fvecs``, ``.bvecs`` or ``.hdf5`` file.

    :param dataset: the dataset of an HDF5 file. Default: ``train``, as in ann-benchmarks.
    """
    return _micpq.read_vectors(_inputs.path(path), dataset)


def score(run: str | os.PathLike[str], qrels: str | os.PathLike[str]) -> dict[str, Any]:
    """Computes nDCG@10, Recall@100, MAP, P@10 and MRR of a TREC run against judgements of TREC or BEIR, as ``trec_eval`` does.
    ``each`` holds the measures of every query.

    >>> import micpq, pathlib
    >>> _ = pathlib.Path("a.run").write_text("q1 Q0 d1 1 2.0 mine\\nq1 Q0 d2 2 1.0 mine\\n")
    >>> _ = pathlib.Path("a.qrels").write_text("q1 0 d2 1\\n")
    >>> micpq.score("a.run", "a.qrels")["map"]
    0.5
    """
    measures: dict[str, Any] = json.loads(_micpq.score(_inputs.path(run, "run"), _inputs.path(qrels, "qrels")))
    return measures
