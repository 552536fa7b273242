"""Scenarios from a live server, without any language model.

Arguments are drawn from the tools' schemas and the server is called. A call that succeeds, twice with the same result,
becomes a request whose answer is the recorded result. Where episodes are isolated, tools that change something are
explored too: each task starts in the state that an episode begins in, and reading calls record its final state.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from mcp_rl.config import explored_levels
from mcp_rl.errors import ScenarioError
from mcp_rl.explore import tried
from mcp_rl.explore.actions import actions_of
from mcp_rl.explore.common_complaint import common_complaint
from mcp_rl.explore.entities.parameters import parameters_of
from mcp_rl.explore.explorable import beyond_time, explorable, may_read, reads, shows_changes, unfit_tools
from mcp_rl.explore.fatal import explored_without_fatal
from mcp_rl.explore.fresh import FirstCalls, shows_itself
from mcp_rl.explore.pace import calls_within, episodes_within, slowest_call
from mcp_rl.explore.probe import Probe
from mcp_rl.scenarios.compose import Composer
from mcp_rl.scenarios.duplicates import most_alike
from mcp_rl.scenarios.grow import grow_chains
from mcp_rl.scenarios.refusals import add_unsolvable, add_without_tools
from mcp_rl.scenarios.stateful import Walks
from mcp_rl.system.notices import notice, noticed_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from mcp_rl.explore.actions import Actions
    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_COSTLY_TASKS, _COSTLY_SECONDS = 12, 30.0
"""Tasks that change something, where every trial of one needs a new process that nobody asked for: as many as there are
starts in these seconds, and at least so many."""
_CALL_SECONDS, _START_SECONDS, _LEAST_CALLS = 120.0, 45.0, 60
"""Seconds for single calls of a slow server that answers one at a time, and of one that each needs a new process; the
calls that are made in any case."""
_MOST_EXAMPLES = 2
"""Tools whose calls are told where no task can be made."""
_MOST_NAMES = 5
_NEARLY_ALL, _MOST = 0.9, 0.6
"""Least shares of the tools with the same complaint: to stop early where it names a setting, and to explain why no task
was made."""
_READING_SHARE = 0.4
"""Share of tasks that change nothing, on a server with a state."""


async def explored_scenarios(
    sessions: Sessions, *, server: ToolServer, params: ServerParams, recipe: Recipe
) -> list[McpScenario]:
    """Return up to `recipe.count` distinct scenarios, each with a reference solution that was just executed.

    The list is shorter where the server has no more to offer. The same seed gives the same list. Raises ScenarioError
    where no tool may be called or no call gives a lasting result, ServerFault where the server is lost without a call
    that does it again.
    """
    recipe = replace(recipe, levels=explored_levels(recipe.levels, worded=bool(server.phrases)))
    goals: list[McpScenario] = []
    spelled: list[McpScenario] = []
    said: list[str] = []
    actions = await actions_of(sessions, server, params)
    with tried.tried_tools() as record:
        left: Recipe | None = recipe
        if any(recipe.goals.values()):
            from mcp_rl.scenarios.goals.goals import goal_scenarios  # a world is built only where it is wanted

            async def of_goals(server: ToolServer) -> list[McpScenario]:
                said.clear()
                with noticed_by(said.append):
                    return await goal_scenarios(
                        actions.sessions(sessions), server=actions.server(server), params=params, recipe=recipe
                    )

            goals, server = await explored_without_fatal(sessions, server, params, of_goals)
            schemas = (await sessions.get(params)).schemas
            goals = [actions.as_served(goal, schemas.hash) for goal in goals]
            left = recipe.without_goals(len(goals))
        if left is not None:
            try:
                spelled, _ = await explored_without_fatal(
                    sessions,
                    server,
                    params,
                    lambda server: _spelled_out(sessions, server, params, left, record, actions),
                )
            except ScenarioError:  # one sentence is enough where nothing can be made
                if not goals:
                    raise
    for sentence in said:
        notice(sentence)
    session = await sessions.get(params)
    if late := beyond_time(session.offered, server):
        notice(
            f"{len(late)} of {len(session.offered)} tools of {server.name} were not explored, since its calls are slow "
            f"({slowest_call(server):.2g} s each), so they have no tasks: tools.include chooses others."
        )
    mixed = [*goals, *spelled]
    if goals and spelled:
        random.Random(f"{recipe.seed}:levels").shuffle(mixed)
    return mixed


async def _spelled_out(
    sessions: Sessions,
    server: ToolServer,
    params: ServerParams,
    recipe: Recipe,
    record: tried.TriedTools,
    actions: Actions,
) -> list[McpScenario]:
    """Return scenarios whose requests spell out tools and arguments, and those that no tool solves."""
    served, record.served = await sessions.get(params), actions.served
    names = [tool.name for tool in served.offered]
    sessions, server = actions.sessions(sessions), actions.server(server)
    if shows_itself(server):
        recipe = replace(recipe, max_steps=1)  # after another call, the same one answers something else
    dropped, tries = unfit_tools(server), 0
    for tool in dropped:
        tried.note_kept_out(
            tool,
            "took too long when it was measured, or answers the same call differently in each process (mcp-rl servers "
            "check measures again)",
        )
    while True:
        async with _calls_on(sessions, server, params) as (session, link):
            reading, changing = _sorted_out(session, server, record, names)
            probe = Probe(
                link, reading, server, recipe.seed, dropped, patient=tries > 0, most_calls=_most_calls(server)
            )
            probe.pool.observe_resources(await session.connection.resources())
            wanted = recipe.solvable if not changing else round(_READING_SHARE * recipe.solvable)
            await probe.single_calls(recipe.solvable)
            common = common_complaint(record, names, share=_NEARLY_ALL)
            if common is not None and common.setting:
                raise ScenarioError(common.sentence(server.name))
            if server.filled_anew:
                async with sessions.lease(params) as other:
                    await probe.compare(other.session.connection)
            chains = [] if probe.unfit else await grow_chains(probe, recipe.lengths(wanted))
            if not probe.unfit:
                await probe.find_clocks()
            errors = [] if probe.unfit else await probe.lasting_errors(2 * round(recipe.count * recipe.unsolvable))
        if not probe.unfit:
            break
        # It is chance when a clock is noticed, so start again without that tool: the seed then decides everything.
        dropped, tries = dropped | probe.unfit, tries + 1
    if probe.cut_short:
        notice(
            f"Server {server.name!r} is slow, so its spelled-out tasks are made of only {len(probe.outcomes)} calls."
        )
    composer = Composer(
        served.connection.tools, served.schemas, server=server, params=params, recipe=recipe, actions=actions
    )
    singles = probe.spread(len(probe.outcomes))
    await anyio.to_thread.run_sync(composer.compose, wanted, singles, chains)  # takes seconds
    if changing:
        walks = Walks(sessions, session, server, params, probe, changing, recipe.seed)
        missing = recipe.solvable - len(composer)
        costly = server.measured is not None and server.measured.isolation == "per-rollout"
        most = {steps: most_alike(count) for steps, count in recipe.lengths(recipe.solvable).items()}
        lengths = _costly_lengths(recipe, server, missing) if costly else recipe.lengths(missing)
        await walks.compose(composer, lengths, most)
        missing = recipe.solvable - len(composer)  # in case the walks found too few
        await anyio.to_thread.run_sync(composer.compose, missing, singles, chains)
        if not costly and (missing := recipe.solvable - len(composer)):
            await walks.compose(composer, recipe.lengths(missing), {})
    if not len(composer):
        raise ScenarioError(_why_nothing(server, names, record))
    add_unsolvable(composer, errors, served.connection.tools, round(recipe.count * recipe.unsolvable))
    add_without_tools(composer, round(recipe.count * recipe.without_tools))
    return [actions.as_served(one, served.schemas.hash) for one in composer.shuffled()]


def _most_calls(server: ToolServer) -> float:
    """Return the number of single calls for which there is time."""
    starts = episodes_within(server, _START_SECONDS) if shows_itself(server) else math.inf
    return max(_LEAST_CALLS, min(starts, calls_within(server, _CALL_SECONDS)))


@asynccontextmanager
async def _calls_on(
    sessions: Sessions, server: ToolServer, params: ServerParams
) -> AsyncIterator[tuple[Session, Link]]:
    """Yield a session, and a link for calls that are to be equal: on one episode where they leave it as it was."""
    if shows_itself(server):
        session = await sessions.get(params)
        yield session, FirstCalls(session.connection, sessions, params)
    else:
        async with sessions.lease(params) as lease:
            yield lease.session, lease.session.connection


def _costly_lengths(recipe: Recipe, server: ToolServer, missing: int) -> Counter[int]:
    """Return the numbers of tasks by their lengths, on a server that starts for each: fewer, and short."""
    seconds = server.measured.start_seconds if server.measured else 0.0
    most = min(missing, max(_COSTLY_TASKS, round(_COSTLY_SECONDS / max(seconds, 0.1))))
    if most <= _COSTLY_TASKS:
        return Counter({1: most})
    lengths = recipe.lengths(most)
    return Counter({1: lengths[1], 2: sum(lengths[steps] for steps in lengths if steps > 1)})


def _sorted_out(
    session: Session, server: ToolServer, record: tried.TriedTools, names: Sequence[str]
) -> tuple[list[Tool], list[Tool]]:
    """Return the tools that only read, and those that change an episode's own state; `names` are the server's own."""
    free = explorable(session.offered, server)
    for tool in session.offered:
        if not server.owner_of(tool.name)[0].start and any(o.required and o.is_address for o in parameters_of(tool)):
            tried.note_needs_start(tool.name)
    late = beyond_time(session.offered, server)
    for tool in session.offered:
        if tool not in free:
            why = tried.FATAL if tool.name in server.avoided else tried.LATE if tool in late else tried.CHANGES
            tried.note_kept_out(tool.name, why)
    if not free and server.avoided:
        raise ScenarioError(_why_nothing(server, names, record))
    if not free:
        raise ScenarioError(
            f"The server {server.name!r} has no tool that may be called freely (all are annotated or named as changing "
            "something): declare an isolation (--isolation), or write scenarios for it yourself."
        )
    if not server.stateful:
        return free, []
    changing = [tool for tool in free if not reads(tool, server) and shows_changes(tool, server)]
    reading = [tool for tool in free if reads(tool, server) or (tool not in changing and may_read(tool, server))]
    if not reading and not changing:
        return free, []
    for tool in free:
        if tool not in reading and tool not in changing:
            tried.note_kept_out(tool.name, "was not called, since it seems to change things and no tool shows what")
    return reading, changing


def _why_nothing(server: ToolServer, tools: Sequence[str], record: tried.TriedTools) -> str:
    """Say why a server gave no task, with an example, and what would help."""
    if common := common_complaint(record, tools, share=_MOST):
        return common.sentence(server.name)
    called = [tool for tool in tools if not record.of(tool).kept_out and record.of(tool).fates]
    changing = [tool for tool in tools if record.of(tool).kept_out == tried.CHANGES]
    kept_out = [tool for tool in tools if record.of(tool).kept_out and tool not in changing]
    why = [record.of(tool).why(tool) for tool in called[:_MOST_EXAMPLES]]
    if len(called) > _MOST_EXAMPLES:
        why.append(f"{_others(len(called) - _MOST_EXAMPLES)} gave nothing either")
    helps = dict.fromkeys(record.of(tool).helps for tool in [*called, *kept_out])
    why += [record.of(tool).why(tool) for tool in kept_out[:_MOST_EXAMPLES]]
    if len(kept_out) > _MOST_EXAMPLES:
        why.append(f"{_others(len(kept_out) - _MOST_EXAMPLES)} got no call either")
    if changing:
        were, they = ("was", "it") if len(changing) == 1 else ("were", "they")
        more = f" and {len(changing) - _MOST_NAMES} others" if len(changing) > _MOST_NAMES else ""
        why.append(f"{', '.join(changing[:_MOST_NAMES])}{more} {were} not called, because {they} may change things")
        if not server.stateful:
            helps["give each episode a state of its own (--isolation per-rollout)"] = None
    why = why or ["no call was possible"]
    return f"No task can be made for the server {server.name!r}: {'; '.join(why)}. {_sentence_of(helps)}."


def _others(count: int) -> str:
    return "1 other tool" if count == 1 else f"{count} other tools"


def _sentence_of(helps: Iterable[str]) -> str:
    """Return what helps, and writing scenarios, which always does."""
    parts = [*filter(None, helps), "write scenarios for it yourself"]
    text = ", or ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]
    return text[:1].upper() + text[1:]
