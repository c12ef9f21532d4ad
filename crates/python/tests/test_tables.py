"""pandas, polars and arrow, in and out; Parquet and Arrow files."""

import datetime

import micpq
import numpy as np
import pytest

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
import pyarrow.feather  # noqa: E402
import pyarrow.parquet  # noqa: E402


def tables(documents):
    table = pyarrow.Table.from_pylist(documents)
    return {
        "pandas": pandas.DataFrame(documents),
        "polars": polars.DataFrame(documents),
        "arrow": table,
        "reader": table.to_reader(max_chunksize=50),
        "batch": table.to_batches()[0],
    }


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "reader", "batch"])
def test_tables_are_corpora(documents, model, kind):
    index = micpq.build(tables(documents)[kind], model=model)
    assert len(index) == 400
    assert index.get(5)["attributes"] == {"year": documents[5]["year"]}
    assert index.get(5)["labels"] == [documents[5]["label"]]


@pytest.mark.parametrize("of", [pandas.Series, polars.Series, np.array, pyarrow.array, tuple, iter])
def test_columns_of_texts_are_corpora(documents, model, of):
    texts = [d["text"] for d in documents]
    index = micpq.build(of(texts), model=model)
    assert len(index) == 400 and index.get(3)["text"] == texts[3]


def test_field_options_choose_columns(documents, model):
    table = pyarrow.table({"key": ["a", "b"], "head": ["oil", "bank"], "body": ["crude", "loan"], "raw": [b"\xff", b"\xfe"]})
    with pytest.raises(micpq.InputError, match="raw"):
        micpq.build(table, model=model, id_field="key", text_field=["head", "body"])
    index = micpq.build(table, model=model, id_field="key", text_field=["head", "body"], ignore_fields="raw")
    assert index.get("b")["text"] == "bank loan"
    with pytest.raises(micpq.FormatError, match="nothing|no text|columns"):
        micpq.build(pyarrow.table({"nothing": [1]}), model=model)


def test_attributes_keep_their_types(model):
    when = datetime.datetime(1987, 2, 3, tzinfo=datetime.timezone.utc)
    rows = [
        {"text": "oil", "n": 3, "x": 2.5, "yes": True, "name": "a", "many": ["p", "q"], "when": when, "inner": {"deep": 1}},
        {"text": "bank", "n": None, "x": np.float32(1.5), "yes": np.bool_(False), "name": "b", "many": [], "when": when.date()},
    ]
    index = micpq.build(rows, model=model)
    first = index.get(0)["attributes"]
    assert (first["n"], first["x"], first["yes"], first["name"], first["many"]) == (3, 2.5, True, "a", ["p", "q"])
    assert first["inner.deep"] == 1 and first["when"].startswith("1987-02-03")
    assert index.get(1)["attributes"]["x"] == 1.5


def test_hits_convert_to_tables(shared):
    hits = shared.search("oil", k=5)
    frame = hits.to_pandas()
    assert list(frame.columns) == ["id", "distance", "score", "text", "labels", "year"] and len(frame) == 5
    assert hits.to_arrow().num_rows == 5 and pyarrow.table(hits).num_rows == 5
    assert hits.to_polars().height == 5 and polars.from_arrow(pyarrow.table(hits)).height == 5
    empty = shared.search("oil", k=5, filter="year:1700")
    assert len(empty) == 0 and empty.to_arrow().num_rows == 0 and list(empty.to_pandas().columns)[:2] == ["id", "distance"]


def test_an_index_converts_to_tables(shared, documents):
    table = shared.to_arrow(codes=True)
    assert table.num_rows == 400
    assert table.column_names == ["id", "text", "labels", "year", "code"]
    assert table["id"].to_pylist() == [d["id"] for d in documents]
    assert table["labels"].to_pylist()[3] == [documents[3]["label"]]
    ids, codes = shared.codes()
    assert ids == table["id"].to_pylist()
    assert [bytes(code) for code in codes] == table["code"].to_pylist()
    assert (codes == shared.model.encode([d["text"] for d in documents])).all()
    assert len(shared.to_pandas()) == 400 and shared.to_polars().height == 400


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_exported_files_are_read_by_arrow_and_by_micpq(shared, model, tmp_path, format):
    path = tmp_path / f"out.{format}"
    assert shared.export(path, format) == 400
    read = {"parquet": pyarrow.parquet.read_table, "arrow": pyarrow.feather.read_table}.get(format)
    if read:
        assert read(path).equals(shared.to_arrow())
    rebuilt = micpq.build(path, model=model)
    assert rebuilt.to_arrow().equals(shared.to_arrow())


def test_feather_files_of_pyarrow_are_read(documents, model, tmp_path):
    for compression in ("lz4", "zstd", "uncompressed"):
        path = tmp_path / f"{compression}.feather"
        pyarrow.feather.write_feather(pyarrow.Table.from_pylist(documents), path, compression=compression)
        assert len(micpq.build(path, model=model)) == 400
    with pyarrow.OSFile(str(tmp_path / "s.arrows"), "wb") as sink:
        table = pyarrow.Table.from_pylist(documents)
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    assert len(micpq.build(tmp_path / "s.arrows", model=model)) == 400
