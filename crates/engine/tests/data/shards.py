"""Writes `shards-1` and `hits-shards-1.jsonl`, with the package `micpq` and Ray: `python shards.py ../encoders/bert`. Run once per format."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

here = Path(__file__).resolve().parent
with tempfile.TemporaryDirectory() as folder:
    models = Path(folder) / "models"
    shutil.copytree(sys.argv[1], models / "tiny")
    os.environ["MICPQ_MODELS"] = str(models)
    import micpq.ray
    import ray

    subjects = ["crude oil rises", "banks lend less", "wheat harvest begins", "shares fall"]
    documents = [{"id": i, "text": f"{subjects[i % 4]} in town {i // 4}", "year": 1980 + i % 3} for i in range(60)]
    corpus = Path(folder) / "news.jsonl"
    corpus.write_text("".join(json.dumps(document) + "\n" for document in documents))
    model = micpq.train(documents, method="opq", bits=16, encoder="tiny", cache=str(Path(folder) / "cache"))
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    out = Path(folder) / "out"
    micpq.ray.build(corpus, out, model, shards=2, workers=1)
    shutil.rmtree(here / "shards-1", ignore_errors=True)
    # `build.json` has paths of this machine.
    shutil.copytree(out, here / "shards-1", ignore=shutil.ignore_patterns("build.json", "*.lock"))
    with micpq.ray.Searcher(out) as searcher, (here / "hits-shards-1.jsonl").open("w") as lines:
        for like in (5, 6):
            for hit in searcher.search(like=like, keywords="harvest", hybrid=0.5, k=5):
                lines.write(json.dumps([hit.id, hit.distance, hit.score, hit.text]) + "\n")
    ray.shutdown()
