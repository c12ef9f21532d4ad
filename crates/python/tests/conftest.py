import os

import pytest
from bench import news, write_encoder


@pytest.fixture(scope="session", autouse=True)
def workspace(tmp_path_factory):
    """One temporary folder for everything the tests write, the cache included."""
    folder = tmp_path_factory.mktemp("micpq")
    os.environ["MICPQ_MODELS"] = str(folder / "models")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    write_encoder(folder / "models" / "tiny")
    return folder


@pytest.fixture(scope="session")
def encoder(workspace):
    return str(workspace / "models" / "tiny")


@pytest.fixture(scope="session")
def documents():
    return news()


@pytest.fixture(scope="session")
def model(encoder, documents):
    import micpq

    return micpq.train(documents, bits=16, encoder=encoder, epochs=4, hidden=32)


@pytest.fixture()
def index(documents, model, tmp_path):
    import micpq

    with micpq.build(documents, tmp_path / "news.micpq", model=model) as built:
        yield built


@pytest.fixture(scope="session")
def shared(documents, model, workspace):
    """An index that tests only read."""
    import micpq

    with micpq.build(documents, workspace / "shared.micpq", model=model) as built:
        yield built


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
