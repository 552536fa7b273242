"""Calls that work: those that change something, and those that may show it."""

from __future__ import annotations

import random
import re
import time
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.answer import call_key, says_nothing, shows_empty_list, shows_empty_overview
from mcp_rl.explore.bearing import Bearing, bearing
from mcp_rl.explore.fitting import WORLD_SEED, WorldSampler, observe_arguments, observe_setup, observe_start
from mcp_rl.explore.measuring.seen import Seen
from mcp_rl.explore.parts import Part, fits
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.explore.words import words_of
from mcp_rl.explore.world import TABLES, World, fill_statements, sql_parameter
from mcp_rl.scenario import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_rl.explore.measuring.calls import TimedCalls
    from mcp_rl.explore.sample import Draw
    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tools.listing import Tool

_SECONDS, _ALL_SECONDS, _LATEST = 5.0, 25.0, 60.0
"""Time for finding calls of one tool that work and of all tools, and the time after which a tool gets no call."""
_TRIES, _LEAST_TRIES, _WANTED = 12, 2, 2
"""Most calls of one tool while arguments are sought, those that it gets until `_LATEST` even where others took all the
time, and the number of results that end the search."""
_PASSES = 2
"""Times that calls are sought again of tools that did not work yet."""
_MOST_LOOKS = 14
_LOOKS_EACH = 2
REPEATS = 3
"""Equal answers in a row that make a look."""
_MOST_CHANGES = 24
_LEAST_LOOKS, _LEAST_CHANGES, MOST_TELLING = 5, 8, 6
_STATEMENTS = 3
_COMPUTES = re.compile(
    r"(?:validate|verify|check|test|calculate|compute|convert|evaluate|format|parse|compare|echo|help)\b"
)
"""Words at the beginning of the name of a tool that judges or computes what it is given."""
_EMPTY = re.compile(r"(?i)\b(?:no|none|nothing|empty|0|not found|does not exist|unknown|no such)\b")
_SHORT = 120
"""Characters of an answer that may say in words that there is nothing."""
_TRACE_SECONDS = 20.0
"""Seconds for the calls that compare processes; on a slow server fewer calls are compared, the most telling ones first.
"""


class WorkingCalls:
    """Finds calls that work, and chooses from them."""

    def __init__(self, params: OneServer, start: Sequence[str], tools: Sequence[Tool], calls: TimedCalls) -> None:
        self._calls = calls
        self.random = random.Random("measure")
        self.world, self.pool = World(WORLD_SEED), ValuePool()
        observe_start(self.pool, params, start)
        self.samplers = {tool.name: WorldSampler(tool, self.pool, self.world) for tool in tools}
        of = {kind: [tool for tool in tools if bearing(tool) is kind] for kind in Bearing}
        self.readers = of[Bearing.READS] or of[Bearing.UNCLEAR]
        self.gentle = [*of[Bearing.CREATES], *of[Bearing.CHANGES], *of[Bearing.UNCLEAR]]
        self.harsh = of[Bearing.DESTROYS]
        self.worked: dict[str, list[Seen]] = {tool.name: [] for tool in tools}
        self.in_order: list[Seen] = []
        """The same calls as they were found: later ones may need what earlier ones made."""
        self.statements: dict[str, list[Seen]] = {}
        """Calls that change a database, of tools that take any SQL and so seem to read."""
        self._hollow: dict[str, Seen] = {}
        """A call of each tool that was answered, by a sentence that it failed or found nothing."""
        self._tried: set[str] = set()
        self.showed: set[str] = set()
        """Tools that showed something before any change."""
        self._until = 0.0
        """The time at which no more calls are sought of tools that had a few."""
        self._latest = 0.0
        """The time at which no more are sought of any."""

    async def find(self, link: Link) -> None:
        """Find calls that work, of all tools but those that seem to destroy."""
        self._start_the_clock()
        await self._find(link, self.readers)
        calls = [*self.in_order, *self._hollow.values()]
        self.showed = _that_show_something(calls)
        await self._try_statements(link)
        await self._find(link, self.gentle)
        for _ in range(_PASSES):  # what was made by now may be what other tools need
            missing = [tool for tool in (*self.readers, *self.gentle) if not self.worked[tool.name]]
            if not missing or time.monotonic() > self._until:
                break
            await self._learn_from(link, self.looks(self.changes(self.gentle)))
            await self._find(link, missing)
        for tool in self.readers:
            if not self.worked[tool.name] and tool.name in self._hollow:
                self.worked[tool.name].append(self._hollow[tool.name])
        moving = [tool for tool in self.readers if await self._moves(link, tool)]
        self.readers = [tool for tool in self.readers if tool not in moving]
        self.gentle += moving

    async def find_destroying(self, link: Link) -> None:
        """Find calls that work, of the tools that seem to destroy."""
        self._start_the_clock()
        await self._find(link, self.harsh)

    def _start_the_clock(self) -> None:
        now = time.monotonic()
        self._until, self._latest = now + _ALL_SECONDS, now + _LATEST

    async def _try_statements(self, link: Link) -> None:
        """Change a database by the tools that take any SQL, and note statements that show it."""
        for tool in self.readers:
            taken = sql_parameter(tool)
            if taken is None or taken[1] != "any":
                continue
            made = []
            for _, text in fill_statements(self.world)[:_STATEMENTS]:
                seen = await self._calls.call(link, tool.name, {taken[0]: text})
                made += [seen] if seen is not None and seen.worked else []
            if made:
                self.in_order += made
                self.statements[tool.name] = made
                names = [Seen(tool.name, {taken[0]: f"SELECT name FROM {table}"}) for table in TABLES]
                self.worked[tool.name][:0] = names[:_LOOKS_EACH]

    async def _moves(self, link: Link, tool: Tool) -> bool:
        """Return whether calls of a reading tool answer differently when made again at once: a clock, or a trace of
        themselves."""
        for seen in self.worked[tool.name]:
            once, twice = await self._calls.again(link, [seen]), await self._calls.again(link, [seen])
            if once != twice:
                return True
        return False

    async def _find(self, link: Link, tools: Iterable[Tool]) -> None:
        """Call each tool until enough calls worked, with arguments that earlier calls suggest."""
        for tool in tools:
            until = min(time.monotonic() + _SECONDS, self._until)
            for tries in range(_TRIES):
                late = time.monotonic() > (until if tries >= _LEAST_TRIES else self._latest)
                if late or len(self.worked[tool.name]) >= _WANTED:
                    break
                draw = self._new_draw(tool.name)
                if draw is None or tool.name in self._calls.silent:
                    break
                seen = await self._calls.call(link, tool.name, draw.arguments)
                self.pool.credit(draw.choices, seen is not None and seen.worked)
                if seen is None:
                    continue
                self.learn(seen)
                if seen.worked:
                    self.worked[tool.name].append(seen)
                    self.in_order.append(seen)
                elif not seen.is_error:
                    self._hollow.setdefault(tool.name, seen)
                if not tool.input_schema.get("properties"):
                    break

    def _new_draw(self, tool: str) -> Draw | None:
        """Return arguments that were not tried yet, or None."""
        for _ in range(_TRIES):
            draw = self.samplers[tool].draw(self.random)
            if draw is None or (key := call_key(tool, draw.arguments)) not in self._tried:
                self._tried.update([key] if draw else [])
                return draw
        return None

    async def _learn_from(self, link: Link, looks: Sequence[Seen]) -> None:
        for look in looks:
            seen = await self._calls.call(link, look.tool, look.arguments)
            if seen is not None and seen.worked:
                self.learn(seen)

    def learn(self, seen: Seen) -> None:
        """Take in what an answer shows: values for other calls, or what an error says of its arguments."""
        if not seen.worked:
            self.pool.observe_error(seen.tool, seen.arguments, seen.text)
            return
        self.pool.observe(seen.arguments, seen.text, tool=seen.tool)
        observe_arguments(self.pool, seen.arguments)
        observe_setup(self.pool, [ToolCall(tool=seen.tool, arguments=seen.arguments)], self.world)

    def changes(self, tools: Sequence[Tool]) -> list[Seen]:
        """Return calls of these tools that worked, and statements that change a database, as they were found."""
        calls = [self.worked[tool.name] for tool in tools if tool.name not in self._calls.silent]
        calls += self.statements.values()
        in_turn = [some[at] for at in range(_WANTED) for some in calls if at < len(some)]
        chosen = {seen.key for seen in in_turn[: self._affordable(_MOST_CHANGES, _LEAST_CHANGES)]}
        return [seen for seen in self.in_order if seen.key in chosen]

    def looks(self, changes: Sequence[Seen]) -> list[Seen]:
        """Return calls that may show what these changes did, those without arguments first."""
        made: dict[str, Seen] = {}
        for tool in self.readers:
            if tool.name in self._calls.silent:
                continue
            for seen in self.worked[tool.name][:_LOOKS_EACH]:
                made.setdefault(seen.key, seen)
            required = tool.input_schema.get("required") or []
            if not required:
                made.setdefault(call_key(tool.name, {}), Seen(tool.name, {}))
            elif len(required) == 1:
                for value in _values_for(required[0], tool, changes):
                    made.setdefault(call_key(tool.name, {required[0]: value}), Seen(tool.name, {required[0]: value}))
        changing = {change.key for change in changes}
        # If every look also changes something, the tools of unclear names serve as each other's readers.
        made = {key: look for key, look in made.items() if key not in changing} or made
        by_tool: dict[str, list[Seen]] = {}
        for look in sorted(made.values(), key=lambda look: bool(look.arguments)):
            by_tool.setdefault(look.tool, []).append(look)
        turns = [queue[at] for at in range(_MOST_LOOKS) for queue in by_tool.values() if at < len(queue)]
        return turns[: self._affordable(_MOST_LOOKS, _LEAST_LOOKS)]

    def _affordable(self, most: int, least: int) -> int:
        """Return how many of `most` calls can be compared in the time, given the seconds that a call of this server
        takes."""
        compared = 3 * (REPEATS + 1) * _MOST_LOOKS + (7 + MOST_TELLING + 1) * _MOST_CHANGES
        seconds = compared * self._calls.mean_seconds
        return max(least, min(most, round(most * _TRACE_SECONDS / max(seconds, 0.001))))


def _values_for(parameter: str, tool: Tool, changes: Sequence[Seen]) -> Iterator[Any]:
    """Yield values of the changes' arguments by which a reading tool may find what they made."""
    schema = (tool.input_schema.get("properties") or {}).get(parameter) or {}
    listed = isinstance(schema, dict) and schema.get("type") == "array"
    for change in changes:
        for name, value in _leaves(change.arguments):
            if fits(Part((name,), "", ""), parameter.removesuffix("s") if listed else parameter):
                yield [value] if listed else value


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str | int | float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield key, value


def _that_show_something(calls: Iterable[Seen]) -> set[str]:
    """Return the tools that show something. Where one that takes no arguments lists nothing, an overview that holds
    settings, zeros and empty lists shows nothing either, nor does a tool that judges or computes what it is given."""
    plain = {seen.tool for seen in calls if not seen.arguments and not seen.is_error}
    showing = [seen for seen in calls if not _says_empty(*seen.answer)]
    if not plain - {seen.tool for seen in showing}:
        return {seen.tool for seen in showing}
    return {
        seen.tool
        for seen in showing
        if not (shows_empty_overview(seen.text) if seen.tool in plain else _COMPUTES.match(words_of(seen.tool)))
    }


def _says_empty(is_error: bool, text: str) -> bool:
    """Return whether an answer says that there is nothing: an error, an empty list, or a few words ("No notes")."""
    said = says_nothing(text) or shows_empty_list(text)
    return is_error or said or (len(text) < _SHORT and _EMPTY.search(text) is not None)
