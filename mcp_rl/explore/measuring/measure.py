"""Measure where a server keeps what its calls change.

The server is started over a copy-on-write view of the files. Its tools are called, reading ones first. Then, on new
processes, the same looks are made before and after the same changes: a look that differs shows a trace. After the layer
is thrown away, after a new process, the looks must be as they were at first. Gentle changes come first; where their
traces outlive a process and its layer, nothing that destroys is called.

A look counts only if two equal calls in a row, and at the beginning of two processes, give the same: times, random
answers and process numbers are no state. An overlay with new files is no state either, if no call shows it.
"""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from mcp_rl.errors import ServerFault
from mcp_rl.explore.actions import actions_behind
from mcp_rl.explore.bearing import Bearing, bearing
from mcp_rl.explore.fatal import fatal_calls, suspects_noted
from mcp_rl.explore.measuring.calls import TimedCalls
from mcp_rl.explore.measuring.filling import Filling
from mcp_rl.explore.measuring.processes import Processes
from mcp_rl.explore.measuring.seen import ComparedRun, Seen
from mcp_rl.explore.measuring.working import MOST_TELLING, REPEATS, WorkingCalls
from mcp_rl.toolserver.state import FatalCall, Kept, MeasuredState
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from mcp_rl.explore.measuring.processes import OpenPlace, Place
    from mcp_rl.scenario import OneServer, ToolCall
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tools.listing import Tool

log = logging.getLogger(__name__)

_GUESSABLE, _AGREEMENTS = 12, 4
"""Characters below which two processes may give the same random answer, and the number of further processes that must
agree then."""
_MOST_FATAL = 8
"""Tools whose calls end the server, after which it is given up."""


async def measure_state(
    params: OneServer,
    chosen: Callable[[Link], list[Tool]],
    open_place: OpenPlace,
    *,
    start: Sequence[str] = (),
) -> MeasuredState:
    """Return where a server keeps its state, and the calls that fill it if it begins empty.

    `chosen` returns those of a server's tools that may be called, `start` says where exploring begins. Where calls of
    a tool end the server, the others are measured. Raises ServerError where the server does not start, ServerFault
    where it ends without a call that does it.
    """
    fatal: list[FatalCall] = []

    def others(link: Link) -> list[Tool]:
        return [tool for tool in chosen(link) if tool.name not in {call.tool for call in fatal}]

    @asynccontextmanager
    async def opened() -> AsyncIterator[Link]:
        async with open_place() as place:
            yield place.link

    while True:
        with suspects_noted() as suspects:
            try:
                found = await _measured(params, start, others, open_place)
                return found.model_copy(update={"fatal": tuple(fatal)})
            except ServerFault as fault:
                log.info("While its state is measured: %s", fault)
                new = await fatal_calls(opened, suspects.in_order())
                if not new or len(fatal) >= _MOST_FATAL:
                    raise
                fatal += new


async def _measured(
    params: OneServer, start: Sequence[str], chosen: Callable[[Link], list[Tool]], open_place: OpenPlace
) -> MeasuredState:
    began = time.monotonic()
    async with open_place() as place:
        tools, start_seconds = chosen(place.link), time.monotonic() - began
        calls = TimedCalls(start_seconds)
        actions = await actions_behind(place.link, tools)
        working = WorkingCalls(params, start, actions.tools(tools), calls)
        await working.find(actions.link(place.link))
    processes = Processes(actions.opened(open_place), start_seconds)
    async with processes.exits:
        measuring = _Measuring(actions.tools(tools), working, calls, processes, ToolSchemas(tools).hash)
        return actions.measured(await measuring.outcome())


class _Measuring:
    """Compares processes after the same changes, to find out where these are kept."""

    def __init__(
        self, tools: Sequence[Tool], working: WorkingCalls, calls: TimedCalls, processes: Processes, listing: str
    ) -> None:
        """`working` has found its calls already; `listing` is the hash of the server's own tools."""
        self._tools = {tool.name: tool for tool in tools}
        self._working, self._calls, self._processes, self._listing = working, calls, processes, listing
        self._differing: set[str] = set()
        """Tools that answer differently in each process."""
        self._compared: set[str] = set()
        """Tools of unclear names whose calls were compared: of many tools, some are left out."""

    async def outcome(self) -> MeasuredState:
        """Return the finding."""
        found = await self._kept(self._working.gentle)
        if found.kept in ("nothing", "unsure") and self._working.harsh:
            async with self._processes.opened() as place:
                await self._calls.again(place.link, self._working.changes(self._working.gentle))
                await self._working.find_destroying(place.link)
            found = await self._kept([*self._working.gentle, *self._working.harsh])
        if found.began_empty and found.kept in ("files", "process"):
            setup, written = await Filling(self._working, self._calls, self._processes).setup(found)
            found = found.model_copy(update={"setup": setup, "written": written})
            if found.kept == "process" and setup and await self._reread_when_filled(setup):
                found = found.model_copy(update={"kept": "files"})
        return found

    async def _reread_when_filled(self, setup: Sequence[ToolCall]) -> bool:
        """Return whether a process that was filled rereads its files: some do so only where there is a file."""
        calls = [Seen(call.tool, call.arguments) for call in setup]
        changes = self._working.changes([*self._working.gentle, *self._working.harsh])
        looks = self._working.looks([*calls, *changes])
        async with self._processes.opened() as place:
            await self._calls.again(place.link, calls)
            await place.mark()
            run = await self._run(place.link, looks, changes)
            async with self._processes.opened() as another:
                await self._calls.again(another.link, calls)
                fresh = await self._run(another.link, looks, changes)
            return bool(run.traces(fresh)[0]) and await self._reread(place, looks, changes, (run, fresh), calls)

    def _found(self, kept: Kept, looks: Iterable[str] = (), changes: Iterable[str] = ()) -> MeasuredState:
        """Return the finding, with the looks and the changes that showed traces."""
        shown = {self._tool_of(key) for key in looks}
        changing = {self._tool_of(key) for key in changes}
        return MeasuredState(
            kept=kept,
            listing=self._listing,
            changing=tuple(sorted(changing)),
            reading=tuple(
                name
                for name, calls in self._working.worked.items()
                if calls
                and (name not in changing or name in self._working.statements)
                and (bearing(self._tools[name]) is Bearing.READS or name in self._compared)
            ),
            shown_by=tuple(sorted(shown)),
            unfit=tuple(sorted(self._calls.silent | self._differing)),
            slow=tuple(sorted(self._calls.silent)),
            began_empty=bool(shown) and not shown & self._working.showed,
            start_seconds=round(self._processes.start_seconds, 2),
            call_seconds=round(self._calls.typical_seconds, 4),
        )

    async def _kept(self, tools: Sequence[Tool]) -> MeasuredState:
        """Make the changes of these tools on new processes, and find out where they are kept."""
        changes = self._working.changes(tools)
        missing = [
            tool.name for tool in tools if not self._working.worked[tool.name] and tool.name not in self._calls.silent
        ]
        if not changes:
            return self._found("unsure" if missing else "nothing")
        async with AsyncExitStack() as stack:
            place = await stack.enter_async_context(self._processes.started())
            looks = self._working.looks(changes)
            compared = (*(tool.name for tool in self._working.readers), *(change.tool for change in changes))
            self._compared.update(name for name in compared if bearing(self._tools[name]) is Bearing.UNCLEAR)
            run = await self._run(place.link, looks, changes)
            async with self._processes.started() as another:
                fresh = await self._run(another.link, looks, changes)
            outlived = {key for key, answer in run.after.items() if run.before[key] != answer == fresh.before.get(key)}
            if outlived and await self._still(looks, outlived, fresh):
                return self._found("elsewhere", outlived, [change.key for change in changes])
            differing = {key for key, answer in run.before.items() if fresh.before.get(key, answer) != answer}
            self._differing |= {self._tool_of(key) for key in differing}
            shown, own = run.traces(fresh)
            short = any(len(run.once[key][1]) < _GUESSABLE for key in own)
            for _ in range(_AGREEMENTS if short else 1):  # a random answer may look like this
                if shown or not own:
                    break
                async with self._processes.opened() as another:
                    own &= run.traces(await self._run(another.link, looks, changes))[1]
            if not shown and not own:
                return self._found("unsure" if missing or not run.before else "nothing")
            reread = await self._reread(place, looks, changes, (run, fresh))
            if reread:
                self._processes.use_again(place, stack)
        causes = await self._causes(looks, changes, shown) if shown else own
        return self._found("files" if reread else "process", shown, causes)

    async def _run(self, link: Link, looks: Sequence[Seen], changes: Sequence[Seen]) -> ComparedRun:
        """Make the calls. Looks that do not give the same several times in a row are made, but do not count."""
        first, *others = [await self._calls.again(link, looks) for _ in range(REPEATS)]
        before = {key: answer for key, answer in first.items() if all(seen.get(key) == answer for seen in others)}
        once, twice = await self._calls.again(link, changes), await self._calls.again(link, changes)
        after = await self._calls.again(link, looks)
        return ComparedRun(before, once, twice, {key: answer for key, answer in after.items() if key in before})

    async def _still(self, looks: Sequence[Seen], keys: set[str], last: ComparedRun) -> bool:
        """Return whether a new process still shows what the last one saw at its end."""
        async with self._processes.opened() as place:
            seen = await self._calls.again(place.link, [look for look in looks if look.key in keys])
        return any(last.after.get(key) == answer for key, answer in seen.items())

    async def _reread(
        self,
        place: Place,
        looks: Sequence[Seen],
        changes: Sequence[Seen],
        runs: tuple[ComparedRun, ComparedRun],
        setup: Sequence[Seen] = (),
    ) -> bool:
        """Return whether a process whose layer is thrown away is as good as a new one.

        `runs` are that of the process and that of a fresh one, both after the calls of `setup`.
        """
        run, fresh = runs
        await self._calls.again(place.link, changes)  # a third time, in case the second one undid the first
        try:
            await place.throw_away()
            again = await self._run(place.link, looks, changes)
            if run.agrees(again, fresh):
                return True
            async with self._processes.started() as another:  # the first two may agree alone on what holds the time
                await self._calls.again(another.link, setup)
                return run.agrees(again, fresh, await self._run(another.link, looks, changes))
        except ServerFault:
            return False

    async def _causes(self, looks: Sequence[Seen], changes: Sequence[Seen], shown: set[str]) -> set[str]:
        """Return the keys of the changes after which one of the looks differs."""
        telling = [look for look in looks if look.key in shown][:MOST_TELLING]
        causes = set()
        async with self._processes.opened() as place:
            latest = await self._calls.again(place.link, telling)
            for change in changes:
                await self._calls.again(place.link, [change])
                seen = await self._calls.again(place.link, telling)
                causes.update([change.key] if seen != latest else [])
                latest = seen
        return causes

    def _tool_of(self, key: str) -> str:
        return next((name for name in self._tools if key.startswith(f"{name} ")), "")
