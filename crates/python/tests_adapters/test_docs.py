"""Every block of the page on adapters runs, and so do the examples of the modules."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_every_block_of_the_page_runs(encoder, documents, tmp_path):
    import json

    import bench

    bench.write_encoder(tmp_path / "models" / "all-MiniLM-L6-v2")
    (tmp_path / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    code = "".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "adapters.md").read_text(), re.M | re.S))
    environment = {**os.environ, "MICPQ_MODELS": str(tmp_path / "models"), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True, capture_output=True)
    assert done.returncode == 0 and code.count("import") >= 3, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", ["micpq.langchain", "micpq.llama_index", "micpq.haystack", "micpq.dspy", "micpq.frames"])
def test_examples_print_what_they_show(name, documents, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner, report = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
    for example in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name):
        if example.examples:
            example.globs.update(NEWS=documents, ENCODER=encoder)
            runner.run(example, out=report.append)
    assert runner.tries > 0 and runner.failures == 0, "".join(report)
