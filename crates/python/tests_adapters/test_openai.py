"""The server's endpoint for embeddings, asked by OpenAI's own client."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import openai
import pytest

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("MICPQ_BINARY", ROOT / "target" / "release" / "micpq"))


@pytest.fixture()
def client(news_index):
    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}; build it with cargo build --release --workspace")
    command = [BINARY, "serve", f"news={news_index.path}", "--listen", "127.0.0.1:0", "--json", "--set", "log=warn"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = json.loads(server.stdout.readline())["address"]
        yield openai.OpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0)
    finally:
        server.terminate()
        assert server.wait(30) == 0


def vectors(answer):
    return np.array([item.embedding for item in answer.data], dtype=np.float32)


def test_texts_token_ids_and_both_encodings_give_the_embeddings_of_the_model(client, news_index, encoder):
    texts = ["crude oil barrel", "bank loan"]
    expected = news_index.model.embeddings(texts)
    assert "news" in [model.id for model in client.models.list()]
    # The client asks for base64 by itself, and turns it into numbers.
    answer = client.embeddings.create(model="news", input=texts)
    assert vectors(answer) == pytest.approx(expected, abs=1e-6)
    assert [item.index for item in answer.data] == [0, 1] and answer.usage.total_tokens > 0
    floats = client.embeddings.create(model="news", input=texts, encoding_format="float")
    assert (vectors(floats) == vectors(answer)).all()
    single = client.embeddings.create(model="news", input=texts[0])
    assert vectors(single)[0] == pytest.approx(expected[0], abs=1e-6)
    # Token ids of the encoder's vocabulary, with those that mark the ends of a text.
    words = (Path(encoder) / "vocab.txt").read_text().split("\n")
    ids = [[words.index(word) for word in ["[CLS]", *text.split(), "[SEP]"]] for text in texts]
    tokens = client.embeddings.create(model="news", input=ids)
    assert vectors(tokens) == pytest.approx(expected, abs=1e-6)


def test_refusals_are_the_errors_of_the_client(client):
    for wrong, kind in (
        ({"model": "nobody", "input": "x"}, openai.NotFoundError),
        ({"model": "news", "input": []}, openai.BadRequestError),
        ({"model": "news", "input": [[10**9]]}, openai.APIStatusError),
    ):
        with pytest.raises(kind) as refused:
            client.embeddings.create(**wrong)
        assert refused.value.status_code < 500
