"""A world model of a live server.

The calls are made twice, the second time from the beginning of another episode and after the clock has moved on: what
differs then is no fact. Calls and seconds are limited, and so are the things of a kind.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from mcp_rl.explore.actions import actions_of
from mcp_rl.explore.bearing import Bearing, bearing
from mcp_rl.explore.entities.assembly import Assembly
from mcp_rl.explore.entities.caller import Answered, CallBudget, WorldCaller
from mcp_rl.explore.entities.effects import EffectMeter
from mcp_rl.explore.entities.keeping import collect
from mcp_rl.explore.entities.remarks import remarks_on
from mcp_rl.explore.entities.survey import Survey
from mcp_rl.explore.explorable import explorable, reads, unfit_tools
from mcp_rl.explore.first_contact import understood
from mcp_rl.explore.fitting import WORLD_SEED, observe_setup, observe_start, tables_in
from mcp_rl.explore.pace import call_deadline, slowest_call
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.explore.world import World
from mcp_rl.scenario import ServerGroup
from mcp_rl.toolserver.pool import Sessions, open_sessions
from mcp_rl.toolserver.state import calls_in_flight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp_rl.config import ToolsConfig
    from mcp_rl.explore.entities.world_model import WorldModel
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_CALLS, _SECONDS = 600, 8.0
"""Most calls of the survey, and its seconds; the second time, all of them are made again."""
_IN_FLIGHT = 8
_SLOW_CALLS, _MOST_SECONDS = 100, 120.0
"""Calls for which a slow server gets more time, and most seconds that they may take."""
_CLOCK_TICK = 1.1
_MOST_POOLED = 60
"""Answers from which arguments for changing calls are drawn."""


@dataclass(frozen=True)
class BuiltWorld:
    """A world model, and what is to be said of it."""

    model: WorldModel
    remarks: tuple[str, ...] = ()
    """A sentence for each thing that is missing, with what would help."""
    places: tuple[str, ...] = ()
    """The addresses and paths where exploring began."""
    same: tuple[Answered, ...] = ()
    """Calls that gave the same result in two episodes; none where changes were tried after them."""


async def build_world(sessions: Sessions, *, server: ToolServer, params: ServerParams) -> BuiltWorld:
    """Return the world behind a server, as calls of its reading tools tell it.

    Raises ServerFault where the server is lost.
    """
    async with sessions.lease(params) as lease:
        session = lease.session
        pace = call_deadline(server), calls_in_flight(slowest_call(server), _IN_FLIGHT, call_deadline(server))
        seconds = min(_MOST_SECONDS, max(_SECONDS, _SLOW_CALLS * slowest_call(server)))
        # A server that starts slowly loses nothing.
        budget = CallBudget.of(_CALLS, seconds, first=_SLOW_CALLS, first_seconds=_MOST_SECONDS)
        tools = _reading(session, server)
        began = anyio.current_time()
        survey = Survey(WorldCaller(session.connection, budget, *pace), tools, *_known(server))
        await survey.run()
        spent = budget.seconds if budget.spent else 0.0
    first = [answer for answer in survey.answers if answer.tells]
    await anyio.sleep(max(0.0, began + _CLOCK_TICK - anyio.current_time()))
    async with _another_place(sessions, server, params) as session_again:
        again = await _repeated(session_again, first, 2 * seconds, pace)
    assembly = Assembly(server.name, survey, first, again)
    model = assembly.model()
    remarks = remarks_on(model, assembly.things, assembly.answers, survey, spent)
    built = BuiltWorld(model, tuple(remarks), tuple(survey.places))
    if server.stateful and (known := _without_singles(built.model)).entities:
        meter = EffectMeter(sessions, server, params, survey, known)
        effects = await meter.measured(_changing(session, server, tools), _pool(first))
        slots = dict.fromkeys((*built.model.slots, *meter.slots))
        changes = {"effects": tuple(effects), "slots": tuple(slots)}
        built = replace(built, model=built.model.model_copy(update=changes))
    else:
        same = tuple(one for one, two in zip(first, again, strict=True) if two is not None and two.text == one.text)
        built = replace(built, same=same)
    collect(built.model)
    return built


async def world_of(server: ToolServer, transport: str | None, tools: ToolsConfig) -> BuiltWorld:
    """Start a server, build the model of its world, and stop it.

    Its state is measured first, if nothing is known of it. Raises ServerError where it cannot be used.
    """
    server = await understood(server, transport, tools)
    params = server.params(transport)
    async with open_sessions(server, tools) as sessions:
        actions = await actions_of(sessions, server, params)
        built = await build_world(actions.sessions(sessions), server=actions.server(server), params=params)
        return replace(built, remarks=(*built.remarks, *actions.remarks))


def _reading(session: Session, server: ToolServer) -> list[Tool]:
    """Return the tools that read: as was measured, and those that seem to and were not seen to change anything."""
    unfit = unfit_tools(server)
    found = []
    for tool in explorable(session.offered, server):
        owner, name = server.owner_of(tool.name)
        seems = bearing(tool) is Bearing.READS and (owner.measured is None or name not in owner.measured.changing)
        if tool.name not in unfit and (reads(tool, server) or (seems and server.stateful)):
            found.append(tool)
    return found


@asynccontextmanager
async def _another_place(sessions: Sessions, server: ToolServer, params: ServerParams) -> AsyncIterator[Session]:
    """Yield a session at the beginning of another episode: in a new process where calls fill the server first.

    The ids and times of what they make may be others in each process.
    """
    filled = any(one.measured is not None and one.measured.setup for one in server.members or (server,))
    if filled and not sessions.replays:
        async with Sessions(server=server) as others, others.lease(params) as lease:
            yield sessions.shown(lease.session)
    else:
        async with sessions.lease(params) as lease:
            yield lease.session


def _changing(session: Session, server: ToolServer, reading: Sequence[Tool]) -> list[Tool]:
    """Return the tools that may be called and change something."""
    unfit = unfit_tools(server)
    names = {tool.name for tool in reading} | unfit
    return [tool for tool in explorable(session.offered, server) if tool.name not in names]


def _pool(answers: Sequence[Answered]) -> ValuePool:
    """Return the values that these answers show, for arguments."""
    pool = ValuePool()
    for answer in answers[:_MOST_POOLED]:
        pool.observe(answer.arguments, answer.text)
    return pool


def _known(server: ToolServer) -> tuple[list[str], list[str]]:
    """Return the addresses and paths where exploring begins, and the tables that were made in their databases."""
    pool = ValuePool()
    for one in server.members or (server,):
        for params in one.transports.values():
            if not isinstance(params, ServerGroup):
                observe_start(pool, params, one.start)
    places = [*pool["start"], *pool["path:folder"], *pool["path:file"]]
    for one in server.members or (server,):
        if one.measured is not None:
            observe_setup(pool, one.measured.setup, World(WORLD_SEED))
    return places, list(tables_in(pool))


async def _repeated(
    session: Session, answers: Sequence[Answered], seconds: float, pace: tuple[float, int]
) -> list[Answered | None]:
    """Make the same calls again; `pace` is the deadline of one, and how many are made at once."""
    budget = CallBudget.of(2 * len(answers), seconds, first=_SLOW_CALLS, first_seconds=2 * _MOST_SECONDS)
    caller = WorldCaller(session.connection, budget, *pace)
    return await caller.all((answer.tool, answer.arguments) for answer in answers)


def _without_singles(model: WorldModel) -> WorldModel:
    """Return a model without the kinds that have one thing alone, which no listing shows to change."""
    kinds = {name: kind for name, kind in model.kinds.items() if not kind.single}
    entities = tuple(one for one in model.entities if one.kind in kinds)
    return model.model_copy(update={"kinds": kinds, "entities": entities})
