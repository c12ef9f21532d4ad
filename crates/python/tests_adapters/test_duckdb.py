"""Documents and hits, read by DuckDB as they are."""

import duckdb


def test_documents_and_hits_are_tables(news_index, tmp_path):
    documents = news_index.to_arrow(codes=True)
    hits = news_index.search("crude oil", k=20).to_arrow()
    assert duckdb.sql("SELECT count(*), count(DISTINCT id) FROM documents").fetchall() == [(len(news_index), len(news_index))]
    joined = duckdb.sql("SELECT h.id, h.score FROM hits h JOIN documents d USING (id) ORDER BY h.score DESC").fetchall()
    found = news_index.search("crude oil", k=20)
    assert sorted(str(id) for id, _ in joined) == sorted(str(id) for id in found.ids)
    codes = duckdb.sql("SELECT octet_length(code) AS bytes, count(*) FROM documents GROUP BY 1").fetchall()
    assert codes == [(news_index.model.bits // 8, len(news_index))]
    path = tmp_path / "news.parquet"
    news_index.export(path, "parquet", codes=True)
    same = duckdb.sql(f"SELECT count(*) FROM '{path}' p JOIN documents d ON p.id = d.id AND p.code = d.code").fetchall()
    assert same == [(len(news_index),)]
