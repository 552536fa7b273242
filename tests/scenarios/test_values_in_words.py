"""Tools that take hashes, names and ids of a server whose results are words get tasks, with nothing declared."""

import sys
from pathlib import Path

import anyio
import pytest

from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = Path(__file__).with_name("archive_server.py")


async def explored(seed: int) -> list[McpScenario]:
    params = StdioServer(command=sys.executable, args=("-S", str(SCRIPT)))
    server = ToolServer("archive", "Texts.", {"stdio": params}, isolation="shared", sandbox="off")
    async with Sessions(server=server) as sessions:
        recipe = Recipe(40, seed, max_steps=2, unsolvable=0, without_tools=0)
        made = await explored_scenarios(sessions, server=server, params=params, recipe=recipe)
        assert await broken_scenarios(sessions, params, made) == []
    return made


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_tool_gets_tasks(seed: int) -> None:
    made = anyio.run(explored, seed)
    used = {call.tool for scenario in made for call in scenario.reference}
    assert used >= {"archive_show", "archive_open", "archive_status"}
