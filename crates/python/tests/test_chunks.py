"""Long texts from Python: the warning, chunks, and their hits."""

import logging

import micpq
import pytest
from bench import write_encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    write_encoder(folder)
    return str(folder)


def long(i):
    return f"oil price number {i} " * 20 + "ship in the port"


def test_cut_texts_are_a_warning_once(encoder, caplog):
    with caplog.at_level(logging.WARNING):
        index = micpq.build([long(i) for i in range(30)], bits=16, epochs=2, encoder=encoder)
    said = [record.getMessage() for record in caplog.records if "longer than" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("30 of 30 texts") and "chunk" in said[0]
    assert "chunks" not in index.info()


@pytest.mark.parametrize("chunk", [True, 12, "12:3"])
def test_an_index_with_chunks_answers_documents(encoder, chunk, caplog):
    index = micpq.build([long(i) for i in range(30)], bits=16, epochs=2, encoder=encoder, chunk=chunk, language="en")
    assert not [record for record in caplog.records if "longer than" in record.getMessage()]
    assert len(index) == 30 and index.info()["chunks"] > 60
    for group in ["best", "sum"]:
        hits = index.search("ship port", k=100, group=group)
        assert sorted(hit.id for hit in hits) == list(range(30))
        number, of, start = hits[0].chunk
        whole = index.get(hits[0].id)["text"]
        assert whole == long(hits[0].id) and number < of
        assert whole.encode()[start:].decode().startswith(hits[0].text)
    index.add([{"id": 3, "text": "ship"}])
    assert len(index) == 30 and index.get(3)["text"] == "ship"
    with pytest.raises(micpq.errors.ConfigError, match="one code per document"):
        index.codes()


def test_bad_chunks_are_refused(encoder):
    for chunk, said in [(100000, "longer than the encoder takes"), ("x", "TOKENS:OVERLAP"), ([1], "chunk is")]:
        with pytest.raises(micpq.errors.ConfigError, match=said):
            micpq.build(["oil", "ship"] * 5, bits=16, encoder=encoder, chunk=chunk)
    with pytest.raises(micpq.errors.ConfigError, match="unknown language"):
        micpq.build(["oil", "ship"] * 5, bits=16, encoder=encoder, language="xx")
