"""Resources and prompts as tools that a model can call."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mcp_rl.config import ToolsConfig
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.toolserver.pool import Sessions, open_sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.toolserver.tool_server import ToolServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIBRARY = StdioServer(command=sys.executable, args=(str(Path(__file__).with_name("library_server.py")),))
STATE = StdioServer(command="{python}", args=("-S", str(Path(__file__).with_name("stateful_server.py"))))


def offering(params: StdioServer) -> ToolServer:
    server = ToolServer("library", "A library.", {"stdio": params})
    return server.configured(ToolsConfig(offer=("resources", "prompts")))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sessions() -> AsyncIterator[Sessions]:
    async with open_sessions(offering(LIBRARY), ToolsConfig()) as sessions:
        yield sessions


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(sessions: Sessions) -> Session:
    return await sessions.get(LIBRARY)


async def text_of(session: Session, tool: str, **arguments: object) -> str:
    result = await session.connection.call(tool, arguments)
    assert not result.is_error, result.text
    return result.text


async def test_the_model_gets_tools_beside_the_servers_own(session: Session) -> None:
    assert set(session.schemas.to_server) == {
        "read_resource", "list_resources", "server_read_resource", "list_prompts", "get_prompt"
    }  # fmt: skip
    assert session.read_only == session.tool_names
    assert session.schemas.validate("server_read_resource", {}) is not None
    assert await text_of(session, "read_resource", name="x") == "own x"


async def test_resources_are_listed_with_templates_and_read(session: Session) -> None:
    listed = await text_of(session, "list_resources")
    assert "library://rules - text/plain - rules" in listed and "library://books/{number}" in listed
    assert "Be quiet." in await text_of(session, "server_read_resource", uri="library://rules")
    assert "The book number 7." in await text_of(session, "server_read_resource", uri="library://books/7")
    stamp = await text_of(session, "server_read_resource", uri="library://stamp")
    assert "image/png" in stamp and "5 bytes" in stamp and "hello" not in stamp


@pytest.mark.parametrize("uri", ["library://nowhere", "no address", "library://books/0", ""])
async def test_what_cannot_be_read_is_an_error_that_the_model_reads(session: Session, uri: str) -> None:
    result = await session.connection.call("server_read_resource", {"uri": uri})
    assert result.is_error and result.text
    assert session.connection.alive


async def test_prompts_are_listed_and_filled_in(session: Session) -> None:
    assert await text_of(session, "list_prompts") == "review - Asks for a review. - takes title, tone (may be left out)"
    assert await text_of(session, "get_prompt", name="review", arguments={"title": "Dune"}) == (
        "user: Write a kind review of Dune."
    )
    assert (await session.connection.call("get_prompt", {"name": "poem"})).is_error


async def test_resources_become_tasks(sessions: Sessions) -> None:
    recipe = Recipe(12, 0, 2, unsolvable=0, without_tools=0)
    scenarios = await explored_scenarios(sessions, server=offering(LIBRARY), params=LIBRARY, recipe=recipe)
    used = {call.tool for scenario in scenarios for call in scenario.reference}
    assert "server_read_resource" in used


async def test_a_server_that_has_none_says_so_and_keeps_its_tools() -> None:
    async with open_sessions(offering(STATE), ToolsConfig()) as sessions:
        session = await sessions.get(STATE)
        assert session.connection.warnings == [
            "The server has no resources to offer as tools.",
            "The server has no prompts to offer as tools.",
        ]
        assert session.tool_names == {"look", "write", "reset"}
