"""The scenario source that comes with the package, registered through the same hook as those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.plugins.parts import ScenarioSource
    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer

EXPLORE = "explore"


@hookimpl
def register_scenario_sources(register: Callable[[str, ScenarioSource], None]) -> None:
    """Register `explore`, which docs/scenarios.md describes."""
    register(EXPLORE, explore)


async def explore(sessions: Sessions, *, server: ToolServer, params: ServerParams, recipe: Recipe) -> list[McpScenario]:
    """Explore the server, importing `explored` at the first use."""
    from mcp_rl.scenarios.explored import explored_scenarios

    return await explored_scenarios(sessions, server=server, params=params, recipe=recipe)
