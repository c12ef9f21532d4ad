"""The DSPy retriever, as a module and as the retriever that DSPy is configured with."""

import micpq
import pytest

dspy = pytest.importorskip("dspy")


@pytest.fixture()
def retriever(news_index):
    from micpq.dspy import MicpqRetriever

    return MicpqRetriever(news_index, k=4, filter="year:1988")


def test_a_module_gives_passages_in_the_order_of_the_index(retriever):
    found = retriever("crude oil barrel")
    hits = retriever.index.search("crude oil barrel", 4, filter="year:1988")
    assert (found.passages, found.ids, found.scores) == ([h.text for h in hits], hits.ids, [h.score for h in hits])
    assert {attributes["year"] for attributes in found.attributes} == {1988} and len(found.document_labels) == 4
    assert len(retriever("crude oil barrel", k=2).passages) == 2
    years = {a["year"] for a in retriever(query="crude oil barrel", k=50, filter="year:1987").attributes}
    assert years == {1987}, "an option of the call goes before one of the retriever"
    with pytest.raises(micpq.FilterError):
        retriever("oil", filter="year:[")


def test_programs_and_the_configured_retriever_use_it(retriever):
    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.retrieve = retriever

        def forward(self, question):
            return dspy.Prediction(context=self.retrieve(question).passages)

    program = Program()
    assert program(question="crude oil barrel").context == retriever("crude oil barrel").passages
    with dspy.context(rm=retriever.rm):
        assert dspy.Retrieve(k=3)("crude oil barrel").passages == retriever("crude oil barrel", k=3).passages
    # What is saved of a program is the number of passages, as of DSPy's own retriever.
    assert retriever.dump_state() == {"k": 4}
    retriever.load_state({"k": 1})
    assert len(retriever("crude oil barrel").passages) == 1
