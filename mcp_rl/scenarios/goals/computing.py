"""Tasks for a server's computing tools: word problems for those that calculate, questions about calls of the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mcp_rl.explore.explorable import explorable, reads, unfit_tools
from mcp_rl.explore.fresh import shows_itself
from mcp_rl.explore.pace import calls_within
from mcp_rl.explore.probe import Probe
from mcp_rl.scenarios.goals.functions import Functions
from mcp_rl.scenarios.goals.reckoned import Reckoned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.explore.entities.world_model import WorldModel
    from mcp_rl.explore.outcome import Outcome
    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.scenario import Level, ServerParams
    from mcp_rl.scenarios.goals.task import GoalTask
    from mcp_rl.scenarios.goals.twice import Twice
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_LEVELS: tuple[Level, ...] = ("told", "worked-out")
_CALLS_FOR_ONE, _CALLS_OF_TOOL, _SECONDS = 3, 10, 30.0
"""Calls that are made for each question about one, at least as many for each tool, and the seconds for them on a slow
server."""


class ComputingTools:
    """Makes tasks of the levels "told" and "worked-out" for the tools that show none of a world's things."""

    def __init__(
        self,
        sessions: Sessions,
        server: ToolServer,
        params: ServerParams,
        world: WorldModel,
        twice: Twice,
        recipe: Recipe,
    ) -> None:
        self._sessions, self._server, self._params = sessions, server, params
        self._twice, self._recipe = twice, recipe
        self._things = tools_showing_things(world)
        self._reckoned: Reckoned | None = None
        self._functions: Functions | None = None
        self._said: set[str] = set()

    async def tasks(self, wanted: Mapping[Level, int]) -> list[GoalTask]:
        """Return up to so many further proven tasks: half of them about calls, where both kinds are to be had."""
        left = {level: max(0, wanted.get(level, 0)) for level in _LEVELS}
        if not any(left.values()):
            return []
        reckoned, functions = await self._makers(left)
        made: list[GoalTask] = []
        for maker, share in ((functions, 0.5), (reckoned, 1.0), (functions, 1.0)):
            asked = {level: round(share * count) for level, count in left.items()}
            new = [task for task in await maker.tasks(asked) if task.text not in self._said]
            self._said.update(task.text for task in new)
            made += new
            counts = Counter(task.level for task in new)
            left = {level: count - counts[level] for level, count in left.items()}
        return made

    async def _makers(self, wanted: Mapping[Level, int]) -> tuple[Reckoned, Functions]:
        """Return the two kinds of makers, made once; the first time calls are made for what is `wanted`."""
        if self._reckoned is None or self._functions is None:
            session = await self._sessions.get(self._params)
            readers = [tool for tool in explorable(session.offered, self._server) if reads(tool, self._server)]
            names, seed = [tool.name for tool in session.offered], self._recipe.seed
            tools = [tool for tool in readers if tool.name not in self._things and tool.input_schema.get("properties")]
            if shows_itself(self._server):
                tools = []  # what a call answers depends on those before it
            most = max(_CALLS_FOR_ONE * sum(wanted.values()), _CALLS_OF_TOOL * len(tools))
            outcomes = await self._worked(tools, most) if tools else []
            self._reckoned = Reckoned(readers, names, self._twice, seed, knowledge=self._recipe.knowledge)
            self._functions = Functions(tools, names, outcomes, self._twice, seed, knowledge=self._recipe.knowledge)
        return self._reckoned, self._functions

    async def _worked(self, tools: Sequence[Tool], count: int) -> list[Outcome]:
        """Return up to so many calls of these tools that worked."""
        async with self._sessions.lease(self._params) as lease:
            link, server = lease.session.connection, self._server
            most = calls_within(server, _SECONDS)
            probe = Probe(link, tools, server, self._recipe.seed, unfit_tools(server), patient=True, most_calls=most)
            await probe.single_calls(count)
        return [outcome for outcome in probe.outcomes if outcome.tool not in probe.unfit]


def tools_showing_things(world: WorldModel) -> set[str]:
    """Return the tools that show the things of a world, about which its own questions tell more than single calls."""
    seen = {
        index
        for entity in world.entities
        if not world.kinds[entity.kind].single
        for fact in entity.facts.values()
        for index in fact.shown_by
    }
    return {world.observations[index].tool for index in seen}
