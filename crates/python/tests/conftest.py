import os

import pytest
from bench import news, write_encoder


@pytest.fixture(scope="session", autouse=True)
def place(tmp_path_factory):
    """Everything a test writes lies under one temporary folder, the cache too."""
    folder = tmp_path_factory.mktemp("micpq")
    os.environ["MICPQ_MODELS"] = str(folder / "models")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    write_encoder(folder / "models" / "tiny")
    return folder


@pytest.fixture(scope="session")
def encoder(place):
    return str(place / "models" / "tiny")


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

    with micpq.build(documents, tmp_path / "news.micpq", model=model) as made:
        yield made


@pytest.fixture(scope="session")
def shared(documents, model, place):
    """An index that tests only read."""
    import micpq

    with micpq.build(documents, place / "shared.micpq", model=model) as made:
        yield made


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
