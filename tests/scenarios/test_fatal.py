"""A tool that ends its server, or leaves it without an answer, is found and left out; the rest is used."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest

from mcp_rl.config import Isolation, ToolsConfig
from mcp_rl.errors import ConfigError, ScenarioError, ServerFault
from mcp_rl.explore import fatal
from mcp_rl.explore.check.inspection import inspect
from mcp_rl.explore.fatal import fatal_calls, still_answers
from mcp_rl.explore.first_contact import recalled, understood
from mcp_rl.explore.known_server import known_server
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.system.notices import noticed_by
from mcp_rl.toolserver.connection import owner
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.state import FatalCall
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = Path(__file__).with_name("fatal_server.py")
in_sandbox = pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def short_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers nothing is given up after 4 seconds instead of 16."""
    monkeypatch.setattr(fatal, "_PING_SECONDS", 0.5)


def server_of(how: str, *place: str, isolation: Isolation | None = None) -> ToolServer:
    params = StdioServer(command=sys.executable, args=("-S", str(SCRIPT), how, *place))
    sandbox = "off" if isolation else "files"
    return ToolServer("fatal", "Ends.", {"stdio": params}, isolation=isolation, sandbox=sandbox)


@contextmanager
def notices() -> Iterator[list[str]]:
    said: list[str] = []
    with noticed_by(said.append):
        yield said


async def explored(server: ToolServer, count: int = 30) -> list[McpScenario]:
    params = server.params()
    async with Sessions(server=server) as sessions:
        recipe = Recipe(count, max_steps=2, unsolvable=0, without_tools=0)
        made = await explored_scenarios(sessions, server=server, params=params, recipe=recipe)
        assert await broken_scenarios(sessions, params, made) == []
    return made


def tools_of(scenarios: list[McpScenario]) -> set[str]:
    return {call.tool for scenario in scenarios for call in scenario.reference}


@pytest.mark.parametrize(
    ("how", "isolation", "did"),
    [
        ("exit", "shared", "ended"),
        ("fifth", "per-rollout", "ended"),
        ("after", "shared", "ended"),
        ("block", "shared", "stopped answering"),
    ],
)
def test_exploring_finds_the_tool_that_ends_a_server_and_goes_on_without_it(
    how: str, isolation: Isolation, did: str
) -> None:
    with notices() as said:
        made = anyio.run(explored, server_of(how, isolation=isolation))
    assert len(made) == 30
    assert tools_of(made) == {"double", "shout"}
    [sentence] = said
    assert sentence.startswith(f'The tool leave is left out: the server fatal {did} when leave {{"message": "')
    assert sentence.endswith("tools.exclude='[\"leave\"]' keeps it out there too.")


def test_a_tool_that_no_single_call_gives_away_is_left_out_too() -> None:
    with notices() as said:
        made = anyio.run(explored, server_of("twentieth", isolation="shared"))
    assert len(made) == 30
    assert tools_of(made) == {"double", "shout"}
    [sentence] = said
    assert sentence.startswith(
        "leave is left out: the server fatal was lost, its calls had no answer, and no call made alone"
    )
    assert sentence.endswith("tools.exclude='[\"leave\"]' keeps it out there too.")


def test_a_tool_that_blocks_its_server_for_a_while_is_slow_and_not_left_out() -> None:
    suspects = [("leave", {"message": "late"}), ("double", {"number": 2})]

    async def found() -> list[FatalCall]:
        server = server_of("while", isolation="per-rollout")
        async with Sessions(server=server) as sessions:
            return await fatal_calls(lambda: _connected(sessions, server), suspects)

    assert anyio.run(found) == []


def test_a_silent_server_that_is_given_up_meanwhile_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_PING_SECONDS", 2.0)
    server = server_of("block", isolation="shared")

    async def found() -> list[FatalCall]:
        async with Sessions(server=server) as sessions:
            async with _connected(sessions, server) as link:
                with pytest.raises(ServerFault):
                    await link.call("leave", {"message": "now"}, deadline=0.2)
            return await fatal_calls(lambda: _connected(sessions, server), [("leave", {"message": "now"})])

    [call] = anyio.run(found)
    assert call.did == "stopped answering"


@asynccontextmanager
async def _connected(sessions: Sessions, server: ToolServer) -> AsyncIterator[Link]:
    async with sessions.lease(server.params()) as lease:
        yield lease.session.connection


def test_a_tool_whose_answers_are_garbage_takes_nothing_from_the_others() -> None:
    made = anyio.run(explored, server_of("garbage", isolation="shared"))
    assert len(made) == 30
    assert tools_of(made) == {"double", "shout"}


def test_a_server_whose_only_tool_ends_it_gives_no_task_and_a_reason() -> None:
    tools = "[tool('leave', 'Leaves.', where='string')]"
    program = f"import os; from by_hand import serve, tool; serve('leaving', {tools}, lambda *_: os._exit(0))"
    launch = StdioServer(command=sys.executable, args=("-c", program), env={"PYTHONPATH": str(SCRIPT.parent)})
    server = ToolServer("leaving", "Leaves.", {"stdio": launch}, isolation="shared", sandbox="off")
    with pytest.raises(ScenarioError, match=r"No task can be made for the server 'leaving': leave ends the server\. "):
        anyio.run(explored, server)


@in_sandbox
@pytest.mark.parametrize(
    ("how", "did"),
    [("second", "ended"), ("block", "stopped answering")],
)
def test_measuring_finds_the_tool_and_what_it_finds_is_remembered(how: str, did: str, tmp_path: Path) -> None:
    server = server_of(how, str(tmp_path))
    with notices() as said:
        found = anyio.run(understood, server, None, ToolsConfig())
    assert found.measured is not None
    [call] = found.measured.fatal
    assert (call.tool, call.did) == ("leave", did)
    assert (found.measured.kept, found.measured.shown_by) == ("files", ("list_notes",))
    assert said == [call.sentence("fatal")]
    assert {tool.name for tool in anyio.run(inspect, found, found.params()).tools if tool.offered} == {
        "double", "shout", "add_note", "list_notes",
    }  # fmt: skip

    async def contact() -> ToolServer:
        async with known_server(server, None, ToolsConfig()) as known:
            assert "leave" not in [tool.name for tool in (await known.session()).offered]
            return known.server

    assert recalled(server, None, ToolsConfig()) == found
    assert anyio.run(contact) == found
    made = anyio.run(explored, found)
    assert tools_of(made) == {"double", "shout", "add_note", "list_notes"}
    assert not (tmp_path / "notes.json").exists()


@in_sandbox
def test_nothing_is_offered_of_a_server_whose_only_tool_ends_it(tmp_path: Path) -> None:
    server = server_of("exit", str(tmp_path))
    only = ToolsConfig(include=("leave",))
    found = anyio.run(understood, server, None, only)

    async def opened() -> None:
        async with Sessions(server=found, tools=only) as sessions:
            await sessions.get(found.params())

    with pytest.raises(ConfigError, match=r"No tool of the server fatal is left\. The tool leave is left out"):
        anyio.run(opened)


class _AnswersLate:
    """A link whose tenth ping is answered."""

    alive = True

    def __init__(self) -> None:
        self._pings = 0

    async def ping(self, seconds: float) -> bool:
        self._pings += 1
        return self._pings == 10


@pytest.mark.parametrize(("waiting", "answers"), [(0.0, False), (2.0, True)])
def test_a_busy_machine_gives_a_server_more_time_before_it_is_given_up(
    waiting: float, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (waiting * (os.cpu_count() or 1), 0.0, 0.0))
    assert anyio.run(still_answers, cast("Link", _AnswersLate())) is answers
