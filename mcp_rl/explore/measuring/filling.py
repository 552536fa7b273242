"""Calls that fill a server which begins empty, so that there is something to ask about."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.answer import says_nothing
from mcp_rl.explore.bearing import Bearing, bearing, bearing_of
from mcp_rl.explore.entities.nouns import singular
from mcp_rl.explore.measuring.seen import alike
from mcp_rl.explore.words import words_of
from mcp_rl.explore.world import fill_statements, sql_parameter
from mcp_rl.scenario import ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_rl.explore.measuring.calls import TimedCalls
    from mcp_rl.explore.measuring.processes import Processes
    from mcp_rl.explore.measuring.seen import Seen
    from mcp_rl.explore.measuring.working import WorkingCalls
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.state import MeasuredState
    from mcp_rl.toolserver.tools.listing import Tool

_FAILURES = 4
_FILL_SECONDS = 15.0
"""Seconds for filling an empty server."""
_MOST_OF_TOOL, _MOST_IF_COSTLY, _MOST_SETUP = 12, 6, 60
"""Calls of one tool that fill an empty server, the same where each process needs them anew, and calls in all."""


class Filling:
    """Fills a server record by record."""

    def __init__(self, working: WorkingCalls, calls: TimedCalls, processes: Processes) -> None:
        self._working, self._calls, self._processes = working, calls, processes

    async def setup(self, found: MeasuredState) -> tuple[tuple[ToolCall, ...], bytes]:
        """Return the calls that fill the server, and the files that they wrote if a new process shows what these hold;
        else only calls that give the same on a second process, but for new ids."""
        most = _MOST_OF_TOOL if found.kept == "files" else _MOST_IF_COSTLY
        async with self._processes.opened() as place:
            calls = await self._fill(place.link, most, found.changing)
            looks = [look for look in self._working.looks(calls) if look.tool in found.shown_by]
            shown = await self._calls.again(place.link, looks)
            written = await place.packed() if calls and found.kept == "files" else None
        if not calls:
            return (), b""
        if written is not None and shown:
            async with self._processes.started() as place:
                await place.unpack(written)
                if await self._calls.again(place.link, looks) == shown:
                    return tuple(ToolCall(tool=call.tool, arguments=call.arguments) for call in calls), written
        async with self._processes.opened() as place:
            answers = await self._calls.again(place.link, calls)
        lasting = [call for call in calls if alike(answers.get(call.key), call.answer)]
        return tuple(ToolCall(tool=call.tool, arguments=call.arguments) for call in lasting), b""

    async def _fill(self, link: Link, most: int, changing: Sequence[str]) -> list[Seen]:
        """Call the tools that create, record by record, and return the calls that worked."""
        found = {seen.tool: at for at, seen in reversed(list(enumerate(self._working.in_order)))}
        makers = [tool for tool in self._working.gentle if self._makes(tool, changing)]
        makers.sort(key=lambda tool: found.get(tool.name, len(self._working.in_order)))
        made: list[Seen] = []
        takers = [(tool, taken) for tool in makers if (taken := sql_parameter(tool)) is not None]
        takers += [
            (tool, taken)
            for tool in self._working.readers
            if tool.name in self._working.statements and (taken := sql_parameter(tool))
        ]

        async def keep(tool: str, arguments: dict[str, Any]) -> bool:
            seen = await self._calls.call(link, tool, arguments)
            silent = any(tool == one.name for one, _ in takers)
            worked = seen is not None and seen.worked and (silent or not says_nothing(seen.text, seen.arguments))
            if seen is not None:
                self._working.learn(seen)
                made.extend([seen] if worked else [])
            return worked

        until = time.monotonic() + _FILL_SECONDS
        for kind, text in fill_statements(self._working.world) if takers else ():
            for tool, (parameter, what) in takers:
                if what in (kind, "any") and await keep(tool.name, {parameter: text}):
                    break
        named: dict[str, int] = {}
        for tool in makers:
            if sql_parameter(tool) is None and len(made) < _MOST_SETUP and time.monotonic() < until:
                # A note and a template of one name are two things.
                needs_name = self._working.samplers[tool.name].names_things
                skip = named.setdefault(_noun(tool), len(named) * most) if needs_name else 0
                await self._fill_with(tool, keep, most, skip)
        return made[:_MOST_SETUP]

    def _makes(self, tool: Tool, changing: Sequence[str]) -> bool:
        kind = bearing(tool)
        return (
            kind is Bearing.CREATES
            or (kind in (Bearing.UNCLEAR, Bearing.READS) and tool.name in changing)
            or bool(sql_parameter(tool))
        )

    async def _fill_with(
        self, tool: Tool, keep: Callable[[str, dict[str, Any]], Awaitable[bool]], most: int, skip: int
    ) -> None:
        sampler = self._working.samplers[tool.name]
        sampler.one_by_one(skip)
        required = tool.input_schema.get("required") or []
        failures = worked = 0
        while worked < most and failures < _FAILURES and sampler.has_more:
            draw = sampler.draw(self._working.random)
            if draw is None:
                return
            good = await keep(tool.name, draw.arguments)
            least = {name: value for name, value in draw.arguments.items() if name in required}
            if not good and least != draw.arguments:  # what is refused may be an optional argument
                good = await keep(tool.name, least)
            failures, worked = (0, worked + 1) if good else (failures + 1, worked)


def _noun(tool: Tool) -> str:
    """Return what a tool makes, as its name says: "note" for `write_note` and `notes_add_tags`."""
    words = words_of(tool.name).split(" ")
    return singular(next((word for word in words if bearing_of(word) is Bearing.UNCLEAR), words[-1]))
