"""The origin of scenarios: the user's file, else the source that the user names, else the file or the source of the
server's plugin, else exploring the server."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import McpRlError, ScenarioError
from mcp_rl.plugins.manager import Plugins, place
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, ServerParams, distinct
from mcp_rl.scenarios.builtin import EXPLORE
from mcp_rl.scenarios.files import read_scenario_file
from mcp_rl.scenarios.fit import check_fit, without_server
from mcp_rl.system.boundary import first_error
from mcp_rl.toolserver.connection.launch import expand

if TYPE_CHECKING:
    from mcp_rl.config import RunConfig
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer


def scenario_file(config: RunConfig, server: ToolServer) -> Path | None:
    """Return the file with a run's scenarios, or None where they are to be made."""
    if config.scenarios.file is not None or config.scenarios.source is not None or server.scenarios is None:
        return config.scenarios.file
    return Path(expand(str(server.scenarios)))


def source_name(asked: str | None, server: ToolServer) -> str:
    """Return the source that makes scenarios: the one that is asked for, else the server's, else exploring.

    Raises ScenarioError if that is exploring and there is no server.
    """
    name = asked or server.source or EXPLORE
    if name == EXPLORE and server.toolless:
        raise ScenarioError(
            f"Without a server (--server {server.name}) there is nothing to explore: give your tasks "
            "(--scenarios FILE) or a plugin's source of them (--source NAME)."
        )
    return name


async def run_scenarios(
    config: RunConfig, server: ToolServer, params: ServerParams, sessions: Sessions, plugins: Plugins
) -> list[McpScenario]:
    """Return all scenarios of a run as its settings say, each checked against the tools that the server lists.

    Raises ScenarioError for scenarios that cannot be used, PluginError for an unknown source, ServerFault where
    the server is lost.
    """
    if (file := scenario_file(config, server)) is not None:
        every = read_scenario_file(file, server, config.transport, config.scenarios)
        check_fit(every, server.name, (await sessions.get(params)).schemas)
        return every
    name = source_name(config.scenarios.source, server)
    recipe = Recipe.of(config.scenarios, config.seed, worded=bool(server.phrases))
    return await made_scenarios(name, plugins, sessions, server=server, params=params, recipe=recipe)


async def made_scenarios(
    name: str, plugins: Plugins, sessions: Sessions, *, server: ToolServer, params: ServerParams, recipe: Recipe
) -> list[McpScenario]:
    """Return the scenarios of the source of that name. Raises as `run_scenarios` does."""
    source, origin = plugins.scenario_sources.pick(name, plugins.problems), plugins.scenario_sources.origins[name]
    who = f"The scenario source {name!r}"
    try:
        made: Any = source(sessions, server=server, params=params, recipe=recipe)
        if inspect.isawaitable(made):
            made = await made
        made = list(made)
    except Exception as raised:
        error = first_error(raised)
        if isinstance(error, McpRlError):
            raise error from raised
        if origin == "built in":  # a bug of the package, which the boundary reports as such
            raise
        raise ScenarioError(f"{who} ({place(error, origin)}) failed: {type(error).__name__}: {error}.") from raised
    scenarios = _checked(made, who)
    if server.toolless:
        scenarios = list(map(without_server, scenarios))
    check_fit(scenarios, server.name, (await sessions.get(params)).schemas)
    return scenarios


def _checked(made: list[Any], who: str) -> list[McpScenario]:
    for scenario in made:
        if not isinstance(scenario, McpScenario):
            raise ScenarioError(f"{who} returned {scenario!r:.80}, which is not a scenario.")
    if not made:
        raise ScenarioError(f"{who} made no scenario.")
    return distinct(Path(who), enumerate(made, 1), unit="scenario")
