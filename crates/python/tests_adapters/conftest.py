"""A tiny encoder and generated news, as in the tests of the package."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    from bench import write_encoder

    folder = tmp_path_factory.mktemp("micpq-adapters")
    os.environ["MICPQ_MODELS"] = str(folder / "models")
    return str(write_encoder(folder / "models" / "tiny"))


@pytest.fixture(scope="session")
def documents():
    from bench import news

    return news()


@pytest.fixture(scope="session")
def model(encoder, documents):
    """A model of texts."""
    import micpq

    return micpq.train(documents, bits=16, encoder=encoder, epochs=2, hidden=32)


@pytest.fixture()
def empty(model, tmp_path):
    """An empty index of texts."""
    import micpq

    with micpq.Index.create(tmp_path / "empty.micpq", model) as index:
        yield index


@pytest.fixture()
def news_index(model, documents, tmp_path):
    import micpq

    with micpq.build(documents, tmp_path / "news.micpq", model=model) as index:
        yield index
