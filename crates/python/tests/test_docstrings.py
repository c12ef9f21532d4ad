"""The examples in docstrings run and print what they show."""

import doctest
import importlib

import pytest

MODULES = ["micpq", "micpq._index", "micpq._model", "micpq.errors", "micpq.formats"]
OPTIONAL = {"micpq.sklearn": "sklearn", "micpq.langchain": "langchain_core", "micpq.llama_index": "llama_index.core"}


@pytest.mark.parametrize("name", [*MODULES, *OPTIONAL])
def test_examples_print_what_they_show(name, documents, encoder):
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        if example.examples:
            example.globs.update(NEWS=documents, ENCODER=encoder)
            runner.run(example, out=report.append)
    assert runner.tries > 0, "no examples found"
    assert runner.failures == 0, "".join(report)


def test_everything_public_has_a_docstring():
    import micpq

    for name in micpq.__all__:
        item = getattr(micpq, name)
        assert name == "__version__" or item.__doc__, name
    for kind in (micpq.Index, micpq.Model, micpq.Hits):
        for name, item in vars(kind).items():
            if not name.startswith("_") and callable(getattr(item, "__func__", item)):
                assert item.__doc__, f"{kind.__name__}.{name}"
