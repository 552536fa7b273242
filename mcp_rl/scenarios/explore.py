"""Scenarios from a live server, without any language model.

Arguments are drawn from the tools' schemas, the server is called, and what succeeds, and gives the same again, becomes
a request whose answer is the recorded result. Where episodes are kept apart, tools that change something are explored
too, each task from the state that an episode begins in, and reading calls tell what it is to end in.
"""

from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import McpScenario, ServerParams
from mcp_rl.scenarios.compose import Composer
from mcp_rl.scenarios.explorable import explorable, reads_only
from mcp_rl.scenarios.probe import Probe
from mcp_rl.scenarios.recipe import Recipe
from mcp_rl.scenarios.refusals import add_unsolvable, add_without_tools
from mcp_rl.scenarios.stateful import Walks
from mcp_rl.toolserver.connection import Tool
from mcp_rl.toolserver.pool import Session, Sessions

_READING_SHARE = 0.4
"""Of the tasks on a server with a state, those that change nothing."""


async def explore(sessions: Sessions, *, server: ToolServer, params: ServerParams, recipe: Recipe) -> list[McpScenario]:
    """Up to `recipe.count` distinct scenarios, each with a reference solution that was executed just now.

    Fewer are returned where the server has no more to offer. The same seed gives the same list. Raises ScenarioError
    where no tool may be called or no call gives a lasting result, ServerFault where the server is lost.
    """
    dropped: set[str] = set()
    while True:
        async with sessions.lease(params) as lease:
            session = lease.session
            reading, changing = _sorted_out(session, server)
            probe = Probe(session.connection, reading, server, recipe.seed, dropped)
            probe.pool.observe_resources(await session.connection.resources())
            wanted = recipe.solvable if not changing else round(_READING_SHARE * recipe.solvable)
            chains = await probe.run(recipe.solvable, recipe.lengths(wanted))
            errors = [] if probe.unfit else await probe.lasting_errors(2 * round(recipe.count * recipe.unsolvable))
            lost = not session.connection.alive
        if not probe.unfit:
            break
        if probe.fault and lost:
            raise probe.fault
        # Whether a clock is caught out early or late is chance. Starting again without that tool is not.
        dropped |= probe.unfit
    composer = Composer(session.connection.tools, session.schemas, server=server, params=params, recipe=recipe)
    singles = probe.spread(len(probe.outcomes))
    composer.compose(wanted, singles, chains)
    if changing:
        walks = Walks(sessions, session, server, params, probe, changing, recipe.seed)
        await walks.compose(composer, recipe.lengths(recipe.solvable - len(composer)))
        composer.compose(recipe.solvable - len(composer), singles, chains)  # where they came to less
    if not len(composer):
        raise ScenarioError(_why_nothing(server, dropped))
    add_unsolvable(composer, errors, session.connection.tools, round(recipe.count * recipe.unsolvable))
    add_without_tools(composer, round(recipe.count * recipe.without_tools))
    return list(composer.shuffled())


def _sorted_out(session: Session, server: ToolServer) -> tuple[list[Tool], list[Tool]]:
    """Tools that only read, and tools that change a state which every episode has for itself."""
    offered = [tool for tool in session.connection.tools if tool.name in session.schemas.to_openai]
    free = explorable(offered, server)
    if not free:
        raise ScenarioError(
            f"The server {server.name!r} offers no tool that may be called freely (all are annotated or named as "
            "changing something): declare how episodes are kept apart, or write scenarios for it yourself."
        )
    if not server.stateful:
        return free, []
    return [tool for tool in free if reads_only(tool)], [tool for tool in free if not reads_only(tool)]


def _why_nothing(server: ToolServer, dropped: set[str]) -> str:
    problem = f"Nothing can be asked of the server {server.name!r}: "
    if dropped:
        problem += f"{', '.join(sorted(dropped))} fail, take too long or answer the same call differently; "
    return problem + "no other call that was tried gave a result. Write scenarios for it yourself."
