"""The scenario source that comes with the package, offered through the same hook as everyone's."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_rl.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from mcp_rl.plugins.parts import ScenarioSource
    from mcp_rl.plugins.server import ToolServer
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.scenarios.recipe import Recipe
    from mcp_rl.toolserver.pool import Sessions

EXPLORE = "explore"


@hookimpl
def register_scenario_sources(register: "Callable[[str, ScenarioSource], None]") -> None:
    """Exploring the server, which docs/scenarios.md describes."""
    register(EXPLORE, explore)


async def explore(
    sessions: "Sessions", *, server: "ToolServer", params: "ServerParams", recipe: "Recipe"
) -> "list[McpScenario]":
    """`mcp_rl.scenarios.explore.explore`, which is imported when it is used."""
    from mcp_rl.scenarios.explore import explore

    return await explore(sessions, server=server, params=params, recipe=recipe)
