"""Bad input gets one of the package's exceptions with a message that names it, and never ends the interpreter."""

import math
import subprocess
import sys

import micpq
import numpy as np
import pytest

NAN = float("nan")


def test_every_class_derives_from_error_and_its_python_counterpart():
    assert issubclass(micpq.ArgumentError, TypeError) and issubclass(micpq.ConfigError, ValueError)
    assert issubclass(micpq.InputError, ValueError) and issubclass(micpq.StorageError, OSError)
    for name in micpq.errors.__all__:
        assert issubclass(getattr(micpq, name), micpq.Error)


@pytest.mark.parametrize(
    ("data", "error", "word"),
    [
        (None, micpq.ArgumentError, "NoneType"),
        (5, micpq.ArgumentError, "int"),
        (b"text", micpq.ArgumentError, "bytes"),
        ({"text": "one"}, micpq.ArgumentError, "dict"),
        ([1, 2, 3], micpq.InputError, r"documents\[0\].*int"),
        (["a", None], micpq.InputError, r"documents\[1\].*NoneType"),
        (["a", b"b"], micpq.InputError, "bytes"),
        ([["a"], ["b"]], micpq.InputError, "list"),
        ([{"text": "a"}, {"txt": "b"}], micpq.InputError, "txt"),
        ([{"text": "a", "id": 1}, {"text": "b", "id": 1}], micpq.InputError, "id"),
        ([{"text": "a", "x": object()}, {"text": "b"}], micpq.InputError, "\"x\""),
        ([{"text": "a", 5: 1}], micpq.InputError, "names are strings"),
        (["a", "\ud800"], micpq.InputError, "Unicode"),
        (["a", ""], micpq.InputError, "text"),
        ([{"text": "a", "n": 1 << 70}], micpq.InputError, "64 bits"),
        ([], micpq.InputError, "documents"),
        (["one"], micpq.InputError, "at least"),
        ("nowhere.jsonl", micpq.StorageError, "nowhere.jsonl"),
        ("", micpq.ArgumentError, "path"),
        ("a\0b", micpq.ArgumentError, "path"),
    ],
)
def test_bad_documents_are_refused(encoder, data, error, word):
    with pytest.raises(error, match=word):
        micpq.build(data, bits=16, encoder=encoder, epochs=1)


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"bits": 24}, micpq.ConfigError, "24|multiple"),
        ({"bits": 0}, micpq.ConfigError, "bits"),
        ({"bits": "64"}, micpq.ArgumentError, "bits"),
        ({"bits": True}, micpq.ArgumentError, "bits"),
        ({"bits": -16}, micpq.ConfigError, "bits"),
        ({"epochs": 0}, micpq.ConfigError, "epochs"),
        ({"epochs": "many"}, micpq.ConfigError, "epochs"),
        ({"epoch": 3}, micpq.ConfigError, "epoch.*known"),
        ({"learning_rate": NAN}, micpq.ConfigError, "learning_rate"),
        ({"encoder": "absent"}, micpq.ConfigError, "absent"),
        ({"pooling": "median"}, micpq.ConfigError, "median"),
        ({"views": "often"}, micpq.ConfigError, "full:R"),
        ({"max_tokens": 900}, micpq.ConfigError, "tokens"),
        ({"seed": object()}, micpq.ArgumentError, "plain"),
        ({"progress": 3}, micpq.ArgumentError, "progress"),
        ({"on_error": "shrug"}, micpq.ConfigError, "skip"),
        ({"text_field": 3}, micpq.ConfigError, "text_field"),
        ({"rerank_vectors": "all"}, micpq.ConfigError, "rerank_vectors"),
        ({"store": "some"}, micpq.ConfigError, "store"),
        ({"ids": ["a"]}, micpq.InputError, "1 ids for 4"),
        ({"model": "model"}, micpq.ArgumentError, "micpq.Model"),
        ({"cache": 5}, micpq.ConfigError, "cache"),
    ],
)
def test_bad_options_are_refused(encoder, options, error, word):
    with pytest.raises(error, match=word):
        micpq.build(["a", "b", "c", "d"], **{"bits": 16, "encoder": encoder, **options})


@pytest.mark.parametrize(
    ("embeddings", "word"),
    [
        ([[1.0, 2.0], [1.0]], "ragged"),
        ([1.0, 2.0], "two dimensions"),
        (np.zeros((3, 2, 2)), "two dimensions"),
        (np.zeros((3, 0)), "no values"),
        (np.zeros((0, 5)), "0|at least"),
        ([["a", "b"]], "numbers"),
        (np.array([[object()]]), "object"),
        ([[1.0, NAN]] * 9, "row 0"),
        (np.vstack([np.eye(8), [[math.inf] * 8]]), "row 8"),
        (np.ones((9, 4)), "all equal"),
        (np.eye(2), "at least 3|2"),
        (np.zeros((4, 2), complex), "complex"),
    ],
)
def test_bad_vectors_are_refused(embeddings, word):
    with pytest.raises(micpq.InputError, match=word):
        micpq.train(embeddings=embeddings, bits=16, epochs=1)


def test_train_takes_texts_or_embeddings():
    with pytest.raises(micpq.ConfigError, match="one of the two"):
        micpq.train(["a"], embeddings=np.eye(3))
    with pytest.raises(micpq.ConfigError, match="texts, or embeddings"):
        micpq.train()
    with pytest.raises(micpq.InputError, match="shape|rows|values"):
        micpq.train(embeddings=np.random.rand(9, 4), views=[np.random.rand(8, 4), np.random.rand(9, 4)], bits=16, epochs=1)
    with pytest.raises(micpq.ConfigError, match="at least 2"):
        micpq.train(embeddings=np.random.rand(9, 4), views=[np.random.rand(9, 4)], bits=16, epochs=1)


@pytest.mark.parametrize(
    ("query", "options", "error", "word"),
    [
        (None, {}, micpq.ConfigError, "query"),
        ("oil", {"k": 0}, micpq.ConfigError, "at least one"),
        ("oil", {"k": -1}, micpq.ConfigError, "k is -1"),
        ("oil", {"k": 10_001}, micpq.ConfigError, "10000|10_000|at most"),
        ("oil", {"k": 1 << 70}, micpq.ConfigError, "k is"),
        ("oil", {"k": 2.5}, micpq.ArgumentError, "whole number"),
        ("oil", {"k": "10"}, micpq.ArgumentError, "whole number"),
        ("oil", {"filter": "year:["}, micpq.ConfigError, r"year:\["),
        ("oil", {"filter": 5}, micpq.ConfigError, "filter"),
        ("oil", {"radius": -1}, micpq.ConfigError, "radius"),
        ("oil", {"radius": NAN}, micpq.ConfigError, "radius"),
        ("oil", {"hybrid": 2}, micpq.ConfigError, "hybrid"),
        ("oil", {"rerank": 0}, micpq.ConfigError, "rerank"),
        ("oil", {"rerank": [1]}, micpq.ConfigError, "rerank"),
        ("oil", {"after": "x"}, micpq.ConfigError, "cursor"),
        ("oil", {"distance": "cosine"}, micpq.ConfigError, "cosine"),
        ([1.0, 2.0], {}, micpq.InputError, "32 values"),
        (np.full(32, NAN), {}, micpq.InputError, "finite"),
        (object(), {}, micpq.InputError, "vector"),
        (b"oil", {}, micpq.InputError, "vector"),
        ("oil", {"like": object}, micpq.Error, "ids|like|iterable"),
        (None, {"like": "nobody"}, micpq.Error, "nobody"),
        (None, {"like": {0: -1.0}}, micpq.ConfigError, "weight"),
    ],
)
def test_bad_searches_are_refused(shared, query, options, error, word):
    with pytest.raises(error, match=word):
        shared.search(query, **options)


def test_bad_batches_of_queries_are_refused(shared):
    for queries, error in [("oil", micpq.ArgumentError), (["a", np.zeros(32)], micpq.InputError), (7, micpq.ArgumentError)]:
        with pytest.raises(error):
            shared.search_many(queries)
    with pytest.raises(micpq.ConfigError, match="known"):
        shared.search_many(["oil"], limit=3)


def test_a_closed_index_raises_closed_error(documents, model, tmp_path):
    index = micpq.build(documents, tmp_path / "i", model=model)
    index.close()
    index.close()
    for work in (
        lambda: index.search("oil"), lambda: len(index), lambda: index.add(["oil"]), lambda: index.delete(1),
        lambda: index.get(1), lambda: index.info(), lambda: index.compact(), lambda: index.verify(), lambda: index.reload(),
        lambda: index.search_many([]), lambda: index.to_arrow(), lambda: index.codes(), lambda: index.backup(tmp_path / "j"),
    ):
        with pytest.raises(micpq.ClosedError, match="closed"):
            work()
    assert "closed" in repr(index)


def test_vectors_and_codes_of_another_shape_are_refused(documents, model, index):
    other = micpq.train(embeddings=np.random.default_rng(0).normal(size=(50, 12)), bits=32, epochs=1)
    with pytest.raises(micpq.InputError, match="12"):
        model.nearest(model.encode(["oil"]), np.zeros((1, 12)))
    with pytest.raises(micpq.InputError, match=r"\(n, 4\)"):
        other.nearest(model.encode(["oil"]), np.zeros((1, 12)))
    with pytest.raises(micpq.InputError, match="32"):
        index.add(["oil"], embeddings=np.zeros((1, 12)))
    with pytest.raises(micpq.InputError, match="rows for 2|one for each|2 documents"):
        index.add(["oil", "bank"], embeddings=np.zeros((1, 32)), ids=["a", "b"])
    with pytest.raises(micpq.ConfigError, match="vectors"):
        other.encode(["text"])
    with pytest.raises(micpq.InputError, match="12"):
        micpq.build(documents, model=model, embeddings=np.zeros((400, 12)))
    assert len(index) == 400


def test_bad_paths_formats_and_ids_are_refused(index, documents, model, tmp_path):
    with pytest.raises(micpq.ConfigError, match="exists"):
        micpq.build(documents, index.path, model=model)
    with pytest.raises(micpq.FormatError, match="not an index"):
        micpq.open(tmp_path)
    with pytest.raises(micpq.FormatError, match="config.json"):
        micpq.Model.load(tmp_path)
    with pytest.raises(micpq.ArgumentError, match="path"):
        micpq.open(5)
    with pytest.raises(micpq.ArgumentError, match="Index comes from"):
        micpq.Index(5)
    with pytest.raises(micpq.ArgumentError, match="function"):
        micpq.open(index.path, encoder="name")
    with pytest.raises(micpq.ConfigError, match="unknown format"):
        index.export(tmp_path / "x", "xml")
    with pytest.raises(micpq.StorageError):
        index.export(tmp_path / "no" / "where.parquet", "parquet")
    with pytest.raises(micpq.FormatError, match="FAISS"):
        (tmp_path / "f").write_bytes(b"IxPq")
        micpq.Model.from_faiss(tmp_path / "f")
    with pytest.raises(micpq.ConfigError, match="ids or a filter"):
        index.delete()
    for id in (-1, 2.5, None, object()):
        with pytest.raises(micpq.ArgumentError, match="id"):
            index.get(id)


def test_another_process_writes_to_an_open_index(index):
    code = f"import micpq; i = micpq.open({index.path!r}); i.add(['oil'], ids=['n']); print(len(i))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "401", done.stderr


def test_bad_results_of_an_encoder_function_are_refused():
    for result, word in [([[1.0]], "1 rows|rows for"), ([["x"]] * 4, "numbers"), (None, "array|dimensions|object")]:
        with pytest.raises(micpq.InputError, match=word):
            micpq.build(["a", "b", "c", "d"], encoder=lambda texts: result, bits=16, epochs=1)
    with pytest.raises(ZeroDivisionError):
        micpq.build(["a", "b", "c", "d"], encoder=lambda texts: 1 / 0, bits=16)


def test_an_error_in_the_progress_function_reaches_the_caller(documents, encoder, tmp_path):
    def fail(*_):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        micpq.train(documents, method="micpq", bits=16, encoder=encoder, epochs=500, patience=500, cache=tmp_path, progress=fail)


def test_skipped_rows_are_left_out(encoder):
    rows = [{"text": "crude oil"}] * 3 + [{"text": ""}] + [{"text": "bank loan"}] * 3
    index = micpq.build(rows, bits=16, encoder=encoder, epochs=1, on_error="skip")
    assert len(index) == 6
