"""The Inspector's command line lists every bundled server, and calls it over every transport and as configured."""

import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.inspector.conftest import ROOT, Inspector

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = "config.json"
PROGRAMS = {
    "mcp_calculator": [sys.executable, "servers/python/mcp_calculator/server.py"],
    "mcp_notes": ["node", "servers/node/mcp_notes/mcp_notes.mjs"],
}
CALLS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "mcp_calculator": (["add", "--tool-arg", "a=2", "b=40.5"], {"result": 42.5}),
    "mcp_notes": (["count_words", "--tool-arg", "id=n1"], {"id": "n1", "title": "Groceries", "words": 19}),
}
TOOLS = {
    "mcp_calculator": {"add", "subtract", "multiply", "divide", "power", "square_root", "evaluate"},
    "mcp_notes": {"list_notes", "read_note", "create_note", "delete_note", "reset_notes"},
}
Addresses = dict[tuple[str, str], str]


async def lists(inspector: Inspector, server: str, *target: str | Path) -> None:
    """Assert that the Inspector lists all tools of the server that `target` selects, with all that they declare."""
    tools = {tool["name"]: tool for tool in (await inspector.ask(*target, "--method", "tools/list"))["tools"]}
    assert set(tools) >= TOOLS[server]
    for tool in tools.values():
        assert tool["description"] and tool["inputSchema"]["type"] == "object" and tool["outputSchema"]
        assert isinstance(tool["annotations"]["readOnlyHint"], bool)


async def calls(inspector: Inspector, server: str, *target: str | Path) -> None:
    """Assert that the Inspector calls a tool of the server that `target` selects, which it lists first."""
    called, expected = CALLS[server]
    result = await inspector.ask(*target, "--method", "tools/call", "--tool-name", *called)
    assert not result.get("isError") and result["content"][0]["type"] == "text"
    assert expected.items() <= result["structuredContent"].items()


@pytest.mark.parametrize("server", PROGRAMS)
async def test_an_entry_of_the_configuration_is_listed_and_called(inspector: Inspector, server: str) -> None:
    await lists(inspector, server, "--config", CONFIG, "--server", server)
    await calls(inspector, server, "--config", CONFIG, "--server", server)


async def test_the_entry_everything_reaches_the_calculator_over_sse(inspector: Inspector) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", 8001))
        except OSError:
            pytest.skip("somebody uses port 8001")
    async with await anyio.open_process([*PROGRAMS["mcp_calculator"], "--transport", "sse"], cwd=ROOT) as process:
        try:
            with anyio.fail_after(60):
                while not await reachable(8001):
                    assert process.returncode is None
                    await anyio.sleep(0.05)
            await calls(inspector, "mcp_calculator", "--config", CONFIG, "--server", "everything")
        finally:
            process.terminate()


async def reachable(port: int) -> bool:
    try:
        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("server", PROGRAMS)
async def test_a_command_is_called(inspector: Inspector, server: str) -> None:
    await calls(inspector, server, *PROGRAMS[server])


@pytest.mark.parametrize("server", PROGRAMS)
@pytest.mark.parametrize("transport", ["sse", "streamable-http"])
async def test_a_url_is_called(inspector: Inspector, addresses: Addresses, server: str, transport: str) -> None:
    await calls(inspector, server, addresses[server, transport])


async def test_what_a_tool_refuses_is_an_error_in_words(inspector: Inspector, addresses: Addresses) -> None:
    call = ["--method", "tools/call", "--tool-name", "divide", "--tool-arg", "a=1", "b=0"]
    run = await inspector.run(addresses["mcp_calculator", "streamable-http"], *call)
    assert run.returncode == 5
    assert b"Division by zero." in run.stdout
