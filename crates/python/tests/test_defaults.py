"""Every option has one default, in Rust."""

import ast
from pathlib import Path

import micpq
from micpq import _micpq

#: Their names and defaults are those of the frameworks.
ADAPTERS = {"langchain.py", "llama_index.py", "haystack.py", "dspy.py"}


def test_no_function_repeats_a_default_of_the_engine():
    options = {"k", *_micpq.build_defaults()}
    seen = set()
    for path in Path(micpq.__file__).parent.rglob("*.py"):
        if path.name in ADAPTERS:
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            taken = function.args
            positional = [*taken.posonlyargs, *taken.args]
            pairs = [*zip(positional[len(positional) - len(taken.defaults) :], taken.defaults), *zip(taken.kwonlyargs, taken.kw_defaults)]
            for argument, default in pairs:
                if argument.arg in options and default is not None:
                    assert ast.unparse(default) == "None", f"{path.name}: {function.name}({argument.arg}={ast.unparse(default)})"
                    seen.add((path.name, function.name, argument.arg))
    assert {("_index.py", "search", "k"), ("_train.py", "train", "sample"), ("_build.py", "build", "store")} <= seen


def test_what_is_not_given_is_the_default(model, documents, tmp_path):
    codes, vectors = model.encode(documents), model.embeddings(documents)
    assert micpq.Flat(model, codes).search(vectors[:2])[1].shape == (2, 10)
    with micpq.Index.create(tmp_path / "empty.micpq", model) as index:
        info = index.info()
    defaults = _micpq.build_defaults()
    assert (info["store"], info["rerank_vectors"]) == (defaults["store"], defaults["rerank_vectors"])
    assert info["language"] == "en"
