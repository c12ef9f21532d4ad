"""The adapters for scikit-learn, LangChain and LlamaIndex, each against the real package."""

import asyncio

import micpq
import numpy as np
import pytest


def test_sklearn_transformer_gives_codes_codewords_and_projected_vectors(documents, encoder):
    pytest.importorskip("sklearn")
    from micpq.sklearn import MICPQ
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline

    texts, labels = [d["text"] for d in documents], [d["label"] for d in documents]
    coder = MICPQ(bits=16, encoder=encoder, epochs=4, options={"hidden": 32})
    assert coder.get_params()["bits"] == 16 and clone(coder).get_params() == coder.get_params()
    with pytest.raises(NotFittedError):
        coder.transform(texts)
    codes = coder.fit_transform(texts)
    assert codes.shape == (400, 2) and codes.dtype == np.uint8
    codewords = clone(coder).set_params(output="codewords").fit(texts)
    assert list(codewords.get_feature_names_out()) == [f"codewords{i}" for i in range(4)]
    assert (codewords.transform(texts) == np.stack([codes & 15, codes >> 4], axis=2).reshape(400, 4)).all()
    chain = make_pipeline(clone(coder).set_params(output="projected"), KNeighborsClassifier(5))
    assert chain.fit(texts, labels).score(texts, labels) > 0.7
    vectors = coder.model_.embeddings(texts)
    of_vectors = MICPQ(bits=16, epochs=2).fit(vectors)
    assert of_vectors.n_features_in_ == 32 and of_vectors.transform(vectors).shape == (400, 2)
    assert list(of_vectors.get_feature_names_out()) == ["codes0", "codes1"]
    with pytest.raises(micpq.ConfigError, match="output is 'bits'.*codewords"):
        MICPQ(output="bits").fit(texts)


def test_langchain_retriever_gives_the_hits_of_search(shared):
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableLambda
    from micpq.langchain import MicpqRetriever

    retriever = MicpqRetriever(index=shared, k=5, filter="year:1988", options={"rerank": False})
    assert isinstance(retriever, BaseRetriever)
    found = retriever.invoke("crude oil barrel")
    assert len(found) == 5 and all(isinstance(d, Document) and d.metadata["year"] == 1988 for d in found)
    expected = shared.search("crude oil barrel", 5, filter="year:1988", rerank=False)
    assert [d.metadata["id"] for d in found] == expected.ids
    assert [d.page_content for d in found] == [h.text for h in expected]
    assert asyncio.run(retriever.ainvoke("crude oil barrel")) == found
    chain = retriever | RunnableLambda(lambda documents: len(documents))
    assert chain.invoke("bank") == 5 and chain.batch(["bank", "oil"]) == [5, 5]


def test_llama_index_retriever_gives_the_hits_of_search(shared):
    pytest.importorskip("llama_index.core")
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle
    from micpq.llama_index import MicpqRetriever

    retriever = MicpqRetriever(shared, k=5, filter="year:1988", rerank=False)
    assert isinstance(retriever, BaseRetriever)
    nodes = retriever.retrieve("crude oil barrel")
    expected = shared.search("crude oil barrel", 5, filter="year:1988", rerank=False)
    assert all(isinstance(n, NodeWithScore) for n in nodes)
    assert [n.metadata["id"] for n in nodes] == expected.ids and nodes[0].get_content() == expected[0].text
    assert [n.score for n in nodes] == pytest.approx([h.score for h in expected])
    assert [n.node_id for n in asyncio.run(retriever.aretrieve("crude oil barrel"))] == [n.node_id for n in nodes]
    vector = shared.model.embeddings(["crude oil barrel"])[0]
    by_vector = retriever.retrieve(QueryBundle("anything", embedding=vector.tolist()))
    assert [n.node_id for n in by_vector] == [n.node_id for n in nodes]
