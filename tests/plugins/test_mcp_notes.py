"""The bundled notebook in JavaScript over its real transports. Needs Node.js and no installation."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.cli import main
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.scenario import SseServer
from mcp_rl.toolserver.connection.connection import Connection, connect
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from tests.plugins.serving import served

FOLDER = Path(__file__).parents[2] / "servers" / "node" / "mcp_notes"
TRANSPORTS = ["stdio", "sse", "streamable-http"]
READING = {"list_notes", "read_note", "search_notes", "count_words", "list_tags"}
CHANGING = {"create_note", "append_to_note", "replace_text", "rename_note", "tag_note", "untag_note", "delete_note"}


def node_is_old() -> str | None:
    """Return the reason to skip these tests, or an empty text."""
    node = shutil.which("node")
    if node is None:
        return "needs Node.js"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return None if int(version.removeprefix("v").split(".")[0]) >= 20 else f"needs Node.js 20, not {version}"


needs_node = pytest.mark.skipif(bool(node_is_old()), reason=node_is_old() or "")


@pytest.fixture
def notes() -> ToolServer:
    return load_plugins().server("mcp_notes")


@asynccontextmanager
async def notebook(server: ToolServer, transport: str = "stdio") -> AsyncIterator[Connection]:
    async with connect(server.params(transport), name=server.name) as connection:
        yield connection


async def said(connection: Connection, tool: str, **arguments: Any) -> Any:
    """Return the result of a call that must succeed."""
    result = await connection.call(tool, arguments)
    assert not result.is_error, result.text
    assert json.loads(result.text) == result.structured
    return result.structured


async def complaint(connection: Connection, tool: str, **arguments: Any) -> str:
    result = await connection.call(tool, arguments)
    assert result.is_error, result.text
    return result.text


@needs_node
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_tools_are_listed_over_every_transport(notes: ToolServer, transport: str) -> None:
    async with notebook(notes, transport) as connection:
        tools = {tool.name: tool for tool in connection.tools}
        assert set(tools) == READING | CHANGING | {"reset_notes"}
        for name, tool in tools.items():
            assert tool.description and tool.output_schema and tool.annotations
            assert tool.input_schema["additionalProperties"] is False
            assert tool.annotations["readOnlyHint"] is (name in READING)
            assert tool.annotations["openWorldHint"] is False
        assert len((await said(connection, "list_notes"))["notes"]) == 8
        assert [entry["uri"] for entry in await connection.resources()] == [f"note://n{n}" for n in range(1, 9)]


@needs_node
async def test_every_changing_tool_does_what_it_says(notes: ToolServer) -> None:
    async with notebook(notes) as connection:
        made = await said(connection, "create_note", title="Tea", text="Green tea.", tags=["home", "drinks"])
        assert made == {"id": "n9", "title": "Tea", "text": "Green tea.", "tags": ["drinks", "home"]}
        assert (await said(connection, "append_to_note", id="tea", text="Two cups."))["text"] == "Green tea.\nTwo cups."
        assert (await said(connection, "rename_note", id="n9", title="Drinks"))["title"] == "Drinks"
        assert (await said(connection, "tag_note", id="n9", tag="weekend"))["tags"] == ["drinks", "home", "weekend"]
        assert (await said(connection, "tag_note", id="n9", tag="weekend"))["tags"] == ["drinks", "home", "weekend"]
        assert (await said(connection, "untag_note", id="n9", tag="home"))["tags"] == ["drinks", "weekend"]
        black = "Black, with milk."
        assert (await said(connection, "replace_text", id="n9", text=black))["text"] == black
        assert await said(connection, "read_note", id="Drinks") == await said(connection, "read_note", id="n9")
        counted = await said(connection, "count_words", id="n9")
        assert (counted["words"], counted["characters"], counted["lines"]) == (3, 17, 1)
        assert [note["id"] for note in (await said(connection, "search_notes", query="with MILK"))["notes"]] == ["n9"]
        assert {"tag": "weekend", "notes": 1} in (await said(connection, "list_tags"))["tags"]
        assert await said(connection, "delete_note", id="n9") == {"id": "n9", "title": "Drinks"}
        assert (await said(connection, "create_note", title="Next", text="x"))["id"] == "n10"


@needs_node
async def test_a_reset_restores_the_first_or_the_given_notes(notes: ToolServer) -> None:
    async with notebook(notes) as connection:
        first = await said(connection, "list_notes")
        await said(connection, "delete_note", id="n1")
        await said(connection, "create_note", title="Tea", text="Green.")
        assert await said(connection, "reset_notes") == first
        assert await said(connection, "list_notes") == first
        given = [{"title": "One", "text": "a"}, {"title": "Two", "text": "b", "tags": ["x"]}]
        await said(connection, "reset_notes", notes=given)
        listed = (await said(connection, "list_notes"))["notes"]
        assert [(note["id"], note["title"]) for note in listed] == [("n1", "One"), ("n2", "Two")]
        twice = [{"title": "Same", "text": "a"}, {"title": "same", "text": "b"}]
        assert "taken by note n1" in await complaint(connection, "reset_notes", notes=twice)
        assert (await said(connection, "list_notes"))["notes"] == listed


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("read_note", {"id": "n99"}, r'There is no note "n99". Known notes: n1 \(Groceries\), .*'),
    ("create_note", {"title": "groceries", "text": "x"}, r'The title "groceries" is taken by note n1; choose .*'),
    ("create_note", {"title": "n7", "text": "x"}, r'The title "n7" looks like a note\'s id; choose another one\.'),
    ("create_note", {"title": "A\nB", "text": "x"}, r"The title must be one line without control characters\."),
    ("create_note", {"title": "A\u2028B", "text": "x"}, r"The title must be one line without control characters\."),
    (
        "create_note",
        {"title": "Long", "text": "x" * 4001},
        r"The text is too long: 4001 characters, at most 4000\.",
    ),
    ("create_note", {"title": "T", "text": " "}, r"The text is empty\."),
    ("create_note", {"title": "T", "text": "x", "tags": ["Ä"]}, r'"Ä" is no tag: .*'),
    ("create_note", {"title": "T", "text": "x", "colour": 1}, r'create_note has no argument "colour"; there is .*'),
    ("create_note", {"title": 7, "text": "x"}, r"title must be a string, not a number\."),
    ("create_note", {"title": "T"}, r"The argument text of create_note is missing\."),
    ("untag_note", {"id": "n1", "tag": "nope"}, r'Note n1 has no tag "nope"\. Its tags: .*'),
    ("list_notes", {"tag": "nope"}, r'No note has the tag "nope"\. Tags in use: .*'),
    ("search_notes", {"query": "  "}, r"The query is empty: .*"),
    ("no_such_tool", {}, r'There is no tool "no_such_tool"; there is list_notes, .*'),
]


@needs_node
async def test_what_cannot_be_done_is_said_and_changes_nothing(notes: ToolServer) -> None:
    async with notebook(notes) as connection:
        before = await said(connection, "list_notes")
        for tool, arguments, words in REFUSALS:
            assert re.fullmatch(words, await complaint(connection, tool, **arguments))
            assert await said(connection, "list_notes") == before


@needs_node
async def test_hostile_sizes_are_refused_and_the_server_lives_on(notes: ToolServer) -> None:
    async with notebook(notes) as connection:
        huge = "x" * 3_000_000
        assert "too long: 3000000 characters" in await complaint(connection, "create_note", title=huge, text="x")
        assert len(await complaint(connection, "read_note", id=huge)) < 1000
        many = [{"title": f"T{n}", "text": "x"} for n in range(201)]
        assert "at most 200" in await complaint(connection, "reset_notes", notes=many)
        assert len((await said(connection, "list_notes"))["notes"]) == 8


@needs_node
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_episodes_side_by_side_do_not_see_each_other(notes: ToolServer, transport: str) -> None:
    params = notes.params(transport)
    seen: list[list[str]] = []

    async with Sessions(server=notes) as sessions:

        async def episode(number: int) -> None:
            async with sessions.lease(params) as lease:
                assert "reset_notes" not in lease.session.schemas.to_openai
                connection = lease.session.connection
                await said(connection, "create_note", title=f"Episode {number}", text="x")
                await anyio.sleep(0.01)
                listed = (await said(connection, "list_notes"))["notes"]
                seen.append([note["title"] for note in listed if note["title"].startswith("Episode")])

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(episode, number)
    assert sorted(seen) == sorted([f"Episode {number}"] for number in range(12))


@needs_node
async def test_clients_of_one_sse_process_share_a_notebook(notes: ToolServer) -> None:
    async with (
        served(notes, "sse") as (_, url),
        connect(SseServer(url=url), name="one") as one,
        connect(SseServer(url=url), name="other") as other,
    ):
        await said(one, "create_note", title="Tea", text="Green.")
        assert (await said(other, "read_note", id="tea"))["text"] == "Green."


@needs_node
async def test_malformed_http_requests_are_refused(notes: ToolServer) -> None:
    async with served(notes, "streamable-http") as (client, url):
        assert (await client.post(url, content=b"{not json")).status_code == 400
        assert (await client.post(url, content=b" " * 5_000_000)).status_code == 413
        deep = "[" * 100_000 + "]" * 100_000
        for given, words in (
            (f'"id":{deep}', "id must be a string, not a list."),
            (r'"id":"a\ud800b"', "id is no text: it holds half a character."),
            ('"id":null', "id must be a string, not null."),
            ('"id":{}', "id must be a string, not an object."),
            ('"__proto__":{}', "read_note"),
        ):
            params = '{"name":"read_note","arguments":{' + given + "}}"
            body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
            result = (await client.post(url, content=body)).json()["result"]
            assert result["isError"] is True and words in result["content"][0]["text"]


def test_the_bundle_was_made_from_these_sources() -> None:
    names = [*(f"src/{path.name}" for path in sorted((FOLDER / "src").iterdir())), "bundle.js", "package-lock.json"]
    digest = hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in names)).hexdigest()
    with (FOLDER / "mcp_notes.mjs").open(encoding="utf-8") as file:
        assert digest in file.readline(), "the sources have changed: npm install && npm run bundle"


def test_without_node_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["generate", "--server", "mcp_notes", "--out", str(tmp_path / "x.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "node" in err and "Node.js" in err
    assert main(["servers"]) == 0
    assert "mcp_notes" in capsys.readouterr().out
