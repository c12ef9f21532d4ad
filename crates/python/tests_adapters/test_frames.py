"""``frame.micpq`` of pandas and polars."""

import importlib

import micpq
import pytest


@pytest.fixture(params=["pandas", "polars"])
def frames(request):
    package = pytest.importorskip(request.param)
    importlib.import_module("micpq.frames")
    return package


def test_a_table_is_built_added_and_searched_for(frames, documents, model, tmp_path):
    news = frames.DataFrame(documents)
    with news.micpq.build(tmp_path / "news.micpq", model=model) as index:
        assert len(index) == len(documents)
        more = frames.DataFrame([{"id": 9001, "text": "crude oil barrel", "year": 2001}])
        assert more.micpq.add_to(index) == 1 and len(index) == len(documents) + 1
        queries = ["crude oil barrel", "bank loan credit"]
        found = frames.DataFrame({"question": queries}).micpq.search(index, "question", k=3, filter="year:1988")
        expected = [hit for query in queries for hit in index.search(query, 3, filter="year:1988")]
        assert list(found["id"]) == [hit.id for hit in expected] and list(found["row"]) == [0, 0, 0, 1, 1, 1]
        assert list(found["score"]) == [hit.score for hit in expected] and set(found["year"]) == {1988}
        # A column of embeddings, and a row without hits.
        vectors = [vector.tolist() for vector in model.embeddings(queries)]
        by_vector = frames.DataFrame({"v": vectors}).micpq.search(index, "v", k=1)
        assert list(by_vector["id"]) == [index.search(query, 1).ids[0] for query in queries]
        none = frames.DataFrame({"question": queries}).micpq.search(index, "question", filter="year:1988 AND year:1987")
        assert len(none) == 0
        with pytest.raises(micpq.ConfigError, match="no column 'text'; it has question"):
            frames.DataFrame({"question": queries}).micpq.search(index)


def test_labels_of_pandas_rows_come_back(documents, news_index):
    pandas = pytest.importorskip("pandas")
    importlib.import_module("micpq.frames")
    asked = pandas.DataFrame({"text": ["crude oil", "bank loan"]}, index=["oil", "bank"])
    assert list(asked.micpq.search(news_index, k=2)["row"]) == ["oil", "oil", "bank", "bank"]
