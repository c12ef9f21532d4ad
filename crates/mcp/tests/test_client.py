"""The tools as the official client of the protocol sees them, over standard input and output and over HTTP."""

import asyncio
import json
import subprocess
from contextlib import contextmanager

import pytest
from conftest import BINARY
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters

# The handshake of earlier versions of the protocol, and what the client and the server agree on.
MODES = ["legacy", "auto"]


def stdio(program):
    return StdioServerParameters(
        command=str(BINARY), args=["mcp", "news.micpq"], cwd=str(program.folder), env=program.environment
    )


@contextmanager
def http(program):
    command = [str(BINARY), "mcp", "news.micpq", "--listen", "127.0.0.1:0", "--json"]
    server = subprocess.Popen(
        command, cwd=program.folder, env=program.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0


async def converse(program, where, mode):
    """A session of an assistant. The client compares every answer with the schema that the tool promises."""
    async with Client(where, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "fetch", "similar", "topics", "indexes"}
        assert all(tool.annotations.read_only_hint and tool.output_schema for tool in tools.values())
        assert "news (400 documents)" in client.instructions

        listed = (await client.call_tool("indexes", {"index": "news"})).structured_content["indexes"][0]
        year = next(a for a in listed["attributes"] if a["name"] == "year")
        only = year["values"][0]["filter"]
        found = await client.call_tool("search", {"query": "crude oil", "k": 3, "filter": only})
        expected = program.json("search", "news.micpq", "crude oil", "-k", "3", "--filter", only)
        assert [hit["id"] for hit in found.structured_content["hits"]] == [hit["id"] for hit in expected]

        first = expected[0]
        document = (await client.call_tool("fetch", {"id": first["id"]})).structured_content
        assert document["text"] == first["text"] and document["attributes"]["year"] == first["attributes"]["year"]
        similar = (await client.call_tool("similar", {"id": first["id"], "k": 5})).structured_content
        assert len(similar["hits"]) == 5 and first["id"] not in [hit["id"] for hit in similar["hits"]]
        topics = (await client.call_tool("topics", {"topics": 4})).structured_content
        assert sum(topic["documents"] for topic in topics["topics"]) + topics["outliers"] == 400

        refused = await client.call_tool("search", {"query": "oil", "filter": "yeer:1988"})
        assert refused.is_error and "yeer" in refused.content[0].text
        with pytest.raises(MCPError, match="known: search, fetch"):
            await client.call_tool("delete", {})

        # Calls at the same time get their own answers.
        queries = ["crude oil", "interest rate", "wheat harvest", "port strike"] * 4
        answers = await asyncio.gather(*(client.call_tool("search", {"query": query, "k": 2}) for query in queries))
        for query, answer in zip(queries, answers, strict=True):
            expected = [hit["id"] for hit in program.json("search", "news.micpq", query, "-k", "2")]
            assert [hit["id"] for hit in answer.structured_content["hits"]] == expected, query


@pytest.mark.parametrize("mode", MODES)
def test_a_session_over_standard_input_and_output(program, mode):
    asyncio.run(converse(program, stdio(program), mode))


@pytest.mark.parametrize("mode", MODES)
def test_a_session_over_http(program, mode):
    with http(program) as url:
        asyncio.run(converse(program, url, mode))
