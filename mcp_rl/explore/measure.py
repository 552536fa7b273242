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
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from mcp_rl.errors import ServerFault
from mcp_rl.explore.answer import call_key, says_nothing, shows_empty_list
from mcp_rl.explore.bearing import Bearing, bearing
from mcp_rl.explore.complaint import reports_failure
from mcp_rl.explore.fatal import fatal_calls, still_answers, suspected, suspects_noted
from mcp_rl.explore.fitting import WORLD_SEED, WorldSampler, observe_arguments, observe_setup, observe_start
from mcp_rl.explore.parts import Part, fits
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.explore.words import words_of
from mcp_rl.explore.world import TABLES, World, fill_statements, sql_meaning
from mcp_rl.rewards.dates import undated
from mcp_rl.rewards.new_ids import new_ids
from mcp_rl.scenario import ToolCall
from mcp_rl.toolserver.state import FatalCall, Kept, MeasuredState
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from mcp_rl.explore.sample import Draw
    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tools.listing import Tool

log = logging.getLogger(__name__)

_DEADLINE, _LONGEST_DEADLINE = 3.0, 12.0
"""Seconds for a call; a server that starts slowly gets as long as its start took, up to the longer time, which its
first call always gets."""
_SECONDS, _ALL_SECONDS = 5.0, 25.0
"""Time for finding calls of one tool that work, and of all tools."""
_TRIES, _WANTED = 12, 2
"""Most calls of one tool while arguments are sought, and the number of results that end the search."""
_PASSES = 2
"""Times that calls are sought again of tools that did not work yet."""
_MOST_LOOKS = 14
_LOOKS_EACH = 2
_REPEATS = 3
"""Equal answers in a row that make a look."""
_MOST_CHANGES = 24
_GUESSABLE, _AGREEMENTS = 12, 4
"""Characters below which two processes may give the same random answer, and the number of further processes that must
agree then."""
_STATEMENTS = 3
_EMPTY = re.compile(r"(?i)\b(?:no|none|nothing|empty|0|not found|does not exist|unknown|no such)\b")
_FOLDER = re.compile(r"(?i)\bis_?dir(?:ectory)?\"?\s*[:=]\s*true\b|\btype\"?\s*[:=]\s*\"?(?:directory|folder|dir)\b")
_SIZE = re.compile(r"(?i)(\bsize\"?\s*[:=]\s*)\d+")
_RECORD = re.compile(r"\{[^{}]*\}")
"""A folder in an answer, a size, and a record of a list in JSON."""
_SHORT = 120
"""Characters of an answer that may say in words that there is nothing."""
_FAILURES = 4
_TRACE_SECONDS = 20.0
"""Seconds for the calls that compare processes; on a slow server fewer calls are compared, the most telling ones first.
"""
_MOST_FATAL = 8
"""Tools whose calls end the server, after which it is given up."""
_LEAST_LOOKS, _LEAST_CHANGES, _MOST_TELLING = 5, 8, 6
_FILL_SECONDS = 15.0
"""Seconds for filling an empty server."""
_MOST_OF_TOOL, _MOST_IF_COSTLY, _MOST_SETUP = 12, 6, 60
"""Calls of one tool that fill an empty server, the same where each process needs them anew, and calls in all."""


class Place(Protocol):
    """A server's process over its own layer of files."""

    @property
    def link(self) -> Link: ...

    async def mark(self) -> None:
        """Make the files as they are what `throw_away` returns to."""
        ...

    async def throw_away(self) -> None:
        """Put every file back as it was; the process stays."""
        ...

    async def packed(self) -> bytes | None:
        """Return the files that were written, for `unpack`; None if they are too large to keep."""
        ...

    async def unpack(self, packed: bytes) -> None:
        """Write the files that `packed` returned."""
        ...


OpenPlace = Callable[[], AbstractAsyncContextManager[Place]]
"""Starts a new process over a fresh layer."""


@dataclass(frozen=True)
class Seen:
    """A call and its answer."""

    tool: str
    arguments: dict[str, Any]
    text: str = ""
    is_error: bool = False

    @property
    def key(self) -> str:
        return call_key(self.tool, self.arguments)

    @property
    def answer(self) -> tuple[bool, str]:
        """The answer without times, and without the sizes of folders, which a layer changes."""
        return self.is_error, _RECORD.sub(lambda record: _unsized(record[0]), _unsized(undated(self.text)))

    @property
    def worked(self) -> bool:
        """True unless the answer says that it failed."""
        return not self.is_error and not reports_failure(self.text, self.arguments)


def _unsized(text: str) -> str:
    """Return the text of one thing without its size, if it is a folder; where it tells of several sizes, as it is."""
    return _SIZE.sub(r"\1", text) if _FOLDER.search(text) and len(_SIZE.findall(text)) == 1 else text


Answers = dict[str, tuple[bool, str]]
"""Answers of calls by their keys; a call that was not answered is missing."""


@dataclass(frozen=True)
class _Run:
    """Looks, changes, the same changes again, and the same looks again, on one process."""

    before: Answers
    once: Answers
    twice: Answers
    after: Answers

    def traces(self, other: _Run) -> tuple[set[str], set[str]]:
        """Return the keys of the looks, and of the changes, that show what was changed, here and in another run that
        began alike."""
        looks = {key for key in self.before if _moved(key, self.before, self.after, other.before, other.after)}
        changes = {key for key in self.once if _moved(key, self.once, self.twice, other.once, other.twice)}
        return looks, changes

    def agrees(self, other: _Run, *fresh: _Run) -> bool:
        """Return whether all that is equal here and in runs on fresh processes is equal in another run too."""
        parts = zip(astuple(self), astuple(other), *map(astuple, fresh), strict=True)
        return all(
            theirs.get(key) == answer
            for ours, theirs, *new in parts
            for key, answer in ours.items()
            if all(one.get(key) == answer for one in new)
        )


def _moved(key: str, before: Answers, after: Answers, fresh: Answers, changed: Answers) -> bool:
    """Return whether an answer was the same at the beginning of two runs, and another one later in both."""
    first = before[key]
    return fresh.get(key) == first and all(key in late and late[key] != first for late in (after, changed))


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
        measuring = _Measuring(params, start, chosen(place.link), open_place, time.monotonic() - began)
        await measuring.find_calls(place.link)
    async with measuring.places:
        return await measuring.outcome()


class _Measuring:
    def __init__(
        self,
        params: OneServer,
        start: Sequence[str],
        tools: Sequence[Tool],
        open_place: OpenPlace,
        start_seconds: float,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._open_place = open_place
        self._listing = ToolSchemas(tools).hash
        self._random = random.Random("measure")
        self.world, self.pool = World(WORLD_SEED), ValuePool()
        observe_start(self.pool, params, start)
        self._samplers = {tool.name: WorldSampler(tool, self.pool, self.world) for tool in tools}
        of = {kind: [tool for tool in tools if bearing(tool) is kind] for kind in Bearing}
        self._readers = of[Bearing.READS] or of[Bearing.UNCLEAR]
        self._gentle = [*of[Bearing.CREATES], *of[Bearing.CHANGES], *of[Bearing.UNCLEAR]]
        self._harsh = of[Bearing.DESTROYS]
        self._worked: dict[str, list[Seen]] = {tool.name: [] for tool in tools}
        self._in_order: list[Seen] = []
        """The same calls as they were found: later ones may need what earlier ones made."""
        self._statements: dict[str, list[Seen]] = {}
        """Calls that change a database, of tools that take any SQL and so seem to read."""
        self._hollow: dict[str, Seen] = {}
        """A call of each tool that was answered, by a sentence that it failed or found nothing."""
        self._tried: set[str] = set()
        self._differing: set[str] = set()
        """Tools that answer differently in each process."""
        self._compared: set[str] = set()
        """Tools of unclear names whose calls were compared: of many tools, some are left out."""
        self._silent: set[str] = set()
        self._called: WeakSet[Link] = WeakSet()
        """Tools that did not answer in time."""
        self._showed: set[str] = set()
        """Tools that showed something before any change."""
        self._start_seconds = start_seconds
        self._deadline = min(_LONGEST_DEADLINE, max(_DEADLINE, start_seconds))
        self._seconds, self._calls = 0.0, 0
        self._until = 0.0
        """The time at which no more calls are sought."""
        self.places = AsyncExitStack()
        self._as_new: Place | None = None
        """A process that equals a new one once its layer is thrown away."""

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Place]:
        """Open a place in its initial state: a used one whose layer is thrown away if that suffices, as some servers
        take seconds to start."""
        if self._as_new is not None and self._as_new.link.alive:
            await self._as_new.throw_away()
            yield self._as_new
        else:
            async with self._started() as place:
                yield place

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[Place]:
        """Open a place, and note how long a start takes: the first one may have asked a launcher."""
        began = time.monotonic()
        async with self._open_place() as place:
            self._start_seconds = min(self._start_seconds, time.monotonic() - began)
            yield place

    async def find_calls(self, link: Link) -> None:
        """Find calls that work, of all tools but those that seem to destroy."""
        self._until = time.monotonic() + _ALL_SECONDS
        await self._find(link, self._readers)
        calls = [*self._in_order, *self._hollow.values()]
        self._showed = {seen.tool for seen in calls if not _says_empty(*seen.answer)}
        await self._try_statements(link)
        await self._find(link, self._gentle)
        for _ in range(_PASSES):  # what was made by now may be what other tools need
            missing = [tool for tool in (*self._readers, *self._gentle) if not self._worked[tool.name]]
            if not missing or time.monotonic() > self._until:
                break
            await self._learn_from(link, self._looks(self._changes(self._gentle)))
            await self._find(link, missing)
        for tool in self._readers:
            if not self._worked[tool.name] and tool.name in self._hollow:
                self._worked[tool.name].append(self._hollow[tool.name])
        moving = [tool for tool in self._readers if await self._moves(link, tool)]
        self._readers = [tool for tool in self._readers if tool not in moving]
        self._gentle += moving

    async def _try_statements(self, link: Link) -> None:
        """Change a database by the tools that take any SQL, and note statements that show it."""
        for tool in self._readers:
            taken = sql_parameter(tool)
            if taken is None or taken[1] != "any":
                continue
            made = []
            for _, text in fill_statements(self.world)[:_STATEMENTS]:
                seen = await self._call(link, tool.name, {taken[0]: text})
                made += [seen] if seen is not None and seen.worked else []
            if made:
                self._in_order += made
                self._statements[tool.name] = made
                names = [Seen(tool.name, {taken[0]: f"SELECT name FROM {table}"}) for table in TABLES]
                self._worked[tool.name][:0] = names[:_LOOKS_EACH]

    async def _moves(self, link: Link, tool: Tool) -> bool:
        """Return whether calls of a reading tool answer differently when made again at once: a clock, or a trace of
        themselves."""
        for seen in self._worked[tool.name]:
            once, twice = await self._again(link, [seen]), await self._again(link, [seen])
            if once != twice:
                return True
        return False

    async def outcome(self) -> MeasuredState:
        """Return the finding; `find_calls` comes first."""
        found = await self._kept(self._gentle)
        if found.kept in ("nothing", "unsure") and self._harsh:
            async with self._opened() as place:
                await self._again(place.link, self._changes(self._gentle))
                self._until = time.monotonic() + _ALL_SECONDS
                await self._find(place.link, self._harsh)
            found = await self._kept([*self._gentle, *self._harsh])
        if found.began_empty and found.kept in ("files", "process"):
            most = _MOST_OF_TOOL if found.kept == "files" else _MOST_IF_COSTLY
            setup, written = await self._setup(most, found)
            found = found.model_copy(update={"setup": setup, "written": written})
            if found.kept == "process" and setup and await self._reread_when_filled(setup):
                found = found.model_copy(update={"kept": "files"})
        return found

    async def _reread_when_filled(self, setup: Sequence[ToolCall]) -> bool:
        """Return whether a process that was filled rereads its files: some do so only where there is a file."""
        calls = [Seen(call.tool, call.arguments) for call in setup]
        changes = self._changes([*self._gentle, *self._harsh])
        looks = self._looks([*calls, *changes])
        async with self._opened() as place:
            await self._again(place.link, calls)
            await place.mark()
            run = await self._run(place.link, looks, changes)
            async with self._opened() as another:
                await self._again(another.link, calls)
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
                for name, calls in self._worked.items()
                if calls
                and (name not in changing or name in self._statements)
                and (bearing(self._tools[name]) is Bearing.READS or name in self._compared)
            ),
            shown_by=tuple(sorted(shown)),
            unfit=tuple(sorted(self._silent | self._differing)),
            began_empty=bool(shown) and not shown & self._showed,
            start_seconds=round(self._start_seconds, 2),
            call_seconds=round(self._seconds / max(1, self._calls), 4),
        )

    # Calls that work

    async def _find(self, link: Link, tools: Iterable[Tool]) -> None:
        """Call each tool until enough calls worked, with arguments that earlier calls suggest."""
        for tool in tools:
            until = min(time.monotonic() + _SECONDS, self._until)
            for _ in range(_TRIES):
                if len(self._worked[tool.name]) >= _WANTED or time.monotonic() > until:
                    break
                draw = self._new_draw(tool.name)
                if draw is None or tool.name in self._silent:
                    break
                seen = await self._call(link, tool.name, draw.arguments)
                self.pool.credit(draw.choices, seen is not None and seen.worked)
                if seen is None:
                    continue
                self._learn(seen)
                if seen.worked:
                    self._worked[tool.name].append(seen)
                    self._in_order.append(seen)
                elif not seen.is_error:
                    self._hollow.setdefault(tool.name, seen)
                if not tool.input_schema.get("properties"):
                    break

    def _new_draw(self, tool: str) -> Draw | None:
        """Return arguments that were not tried yet, or None."""
        for _ in range(_TRIES):
            draw = self._samplers[tool].draw(self._random)
            if draw is None or (key := call_key(tool, draw.arguments)) not in self._tried:
                self._tried.update([key] if draw else [])
                return draw
        return None

    async def _learn_from(self, link: Link, looks: Sequence[Seen]) -> None:
        for look in looks:
            seen = await self._call(link, look.tool, look.arguments)
            if seen is not None and seen.worked:
                self._learn(seen)

    def _learn(self, seen: Seen) -> None:
        if not seen.worked:
            self.pool.observe_error(seen.tool, seen.arguments, seen.text)
            return
        self.pool.observe(seen.arguments, seen.text, tool=seen.tool)
        observe_arguments(self.pool, seen.arguments)
        observe_setup(self.pool, [ToolCall(tool=seen.tool, arguments=seen.arguments)], self.world)

    async def _call(self, link: Link, tool: str, arguments: dict[str, Any]) -> Seen | None:
        first = link not in self._called
        self._called.add(link)
        deadline = _LONGEST_DEADLINE if first else self._deadline  # at first a server loads what it needs
        began = time.monotonic()
        try:
            with suspected(tool, arguments):
                result = await link.call(tool, arguments, deadline=deadline)
        except ServerFault as fault:
            if not await still_answers(link):
                raise
            log.info("While its state is measured: %s", fault)
            self._silent.add(tool)
            return None
        seconds = time.monotonic() - began
        if not first:
            self._seconds, self._calls = self._seconds + seconds, self._calls + 1
        if seconds > deadline:  # a tool that reports progress may take longer
            self._silent.add(tool)
        return Seen(tool, arguments, result.text, result.is_error)

    # Traces

    def _changes(self, tools: Sequence[Tool]) -> list[Seen]:
        calls = [self._worked[tool.name] for tool in tools if tool.name not in self._silent]
        calls += self._statements.values()
        in_turn = [some[at] for at in range(_WANTED) for some in calls if at < len(some)]
        chosen = {seen.key for seen in in_turn[: self._affordable(_MOST_CHANGES, _LEAST_CHANGES)]}
        return [seen for seen in self._in_order if seen.key in chosen]

    def _looks(self, changes: Sequence[Seen]) -> list[Seen]:
        """Return calls that may show what these changes did, those without arguments first."""
        made: dict[str, Seen] = {}
        for tool in self._readers:
            if tool.name in self._silent:
                continue
            for seen in self._worked[tool.name][:_LOOKS_EACH]:
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
        compared = 3 * (_REPEATS + 1) * _MOST_LOOKS + (7 + _MOST_TELLING + 1) * _MOST_CHANGES
        seconds = compared * self._seconds / max(1, self._calls)
        return max(least, min(most, round(most * _TRACE_SECONDS / max(seconds, 0.001))))

    async def _again(self, link: Link, calls: Sequence[Seen]) -> Answers:
        seen = [await self._call(link, call.tool, call.arguments) for call in calls if call.tool not in self._silent]
        return {one.key: one.answer for one in seen if one is not None}

    async def _kept(self, tools: Sequence[Tool]) -> MeasuredState:
        """Make the changes of these tools on new processes, and find out where they are kept."""
        changes = self._changes(tools)
        missing = [tool.name for tool in tools if not self._worked[tool.name] and tool.name not in self._silent]
        if not changes:
            return self._found("unsure" if missing else "nothing")
        async with AsyncExitStack() as stack:
            place = await stack.enter_async_context(self._started())
            looks = self._looks(changes)
            compared = (*(tool.name for tool in self._readers), *(change.tool for change in changes))
            self._compared.update(name for name in compared if bearing(self._tools[name]) is Bearing.UNCLEAR)
            run = await self._run(place.link, looks, changes)
            async with self._started() as another:
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
                async with self._opened() as another:
                    own &= run.traces(await self._run(another.link, looks, changes))[1]
            if not shown and not own:
                return self._found("unsure" if missing or not run.before else "nothing")
            reread = await self._reread(place, looks, changes, (run, fresh))
            if reread:
                self._as_new = place
                self.places.push_async_exit(stack.pop_all())
        causes = await self._causes(looks, changes, shown) if shown else own
        return self._found("files" if reread else "process", shown, causes)

    async def _run(self, link: Link, looks: Sequence[Seen], changes: Sequence[Seen]) -> _Run:
        """Make the calls. Looks that do not give the same several times in a row are made, but do not count."""
        first, *others = [await self._again(link, looks) for _ in range(_REPEATS)]
        before = {key: answer for key, answer in first.items() if all(seen.get(key) == answer for seen in others)}
        once, twice = await self._again(link, changes), await self._again(link, changes)
        after = await self._again(link, looks)
        return _Run(before, once, twice, {key: answer for key, answer in after.items() if key in before})

    async def _still(self, looks: Sequence[Seen], keys: set[str], last: _Run) -> bool:
        """Return whether a new process still shows what the last one saw at its end."""
        async with self._opened() as place:
            seen = await self._again(place.link, [look for look in looks if look.key in keys])
        return any(last.after.get(key) == answer for key, answer in seen.items())

    async def _reread(
        self,
        place: Place,
        looks: Sequence[Seen],
        changes: Sequence[Seen],
        runs: tuple[_Run, _Run],
        setup: Sequence[Seen] = (),
    ) -> bool:
        """Return whether a process whose layer is thrown away is as good as a new one.

        `runs` are that of the process and that of a fresh one, both after the calls of `setup`.
        """
        run, fresh = runs
        await self._again(place.link, changes)  # a third time, in case the second one undid the first
        try:
            await place.throw_away()
            again = await self._run(place.link, looks, changes)
            if run.agrees(again, fresh):
                return True
            async with self._started() as another:  # the first two may agree alone on what holds the time
                await self._again(another.link, setup)
                return run.agrees(again, fresh, await self._run(another.link, looks, changes))
        except ServerFault:
            return False

    async def _causes(self, looks: Sequence[Seen], changes: Sequence[Seen], shown: set[str]) -> set[str]:
        """Return the keys of the changes after which one of the looks differs."""
        telling = [look for look in looks if look.key in shown][:_MOST_TELLING]
        causes = set()
        async with self._opened() as place:
            latest = await self._again(place.link, telling)
            for change in changes:
                await self._again(place.link, [change])
                seen = await self._again(place.link, telling)
                causes.update([change.key] if seen != latest else [])
                latest = seen
        return causes

    def _tool_of(self, key: str) -> str:
        return next((name for name in self._tools if key.startswith(f"{name} ")), "")

    # A world for a server that begins empty

    async def _setup(self, most: int, found: MeasuredState) -> tuple[tuple[ToolCall, ...], bytes]:
        """Return the calls that fill the server, and the files that they wrote if a new process shows what these hold;
        else only calls that give the same on a second process, but for new ids."""
        async with self._opened() as place:
            calls = await self._fill(place.link, most, found.changing)
            looks = [look for look in self._looks(calls) if look.tool in found.shown_by]
            shown = await self._again(place.link, looks)
            written = await place.packed() if calls and found.kept == "files" else None
        if not calls:
            return (), b""
        if written is not None and shown:
            async with self._started() as place:
                await place.unpack(written)
                if await self._again(place.link, looks) == shown:
                    return tuple(ToolCall(tool=call.tool, arguments=call.arguments) for call in calls), written
        async with self._opened() as place:
            answers = await self._again(place.link, calls)
        lasting = [call for call in calls if _alike(answers.get(call.key), call.answer)]
        return tuple(ToolCall(tool=call.tool, arguments=call.arguments) for call in lasting), b""

    async def _fill(self, link: Link, most: int, changing: Sequence[str]) -> list[Seen]:
        """Call the tools that create, record by record, and return the calls that worked."""
        found = {seen.tool: at for at, seen in reversed(list(enumerate(self._in_order)))}
        makers = [tool for tool in self._gentle if self._makes(tool, changing)]
        makers.sort(key=lambda tool: found.get(tool.name, len(self._in_order)))
        made: list[Seen] = []
        takers = [(tool, taken) for tool in makers if (taken := sql_parameter(tool)) is not None]
        takers += [
            (tool, taken) for tool in self._readers if tool.name in self._statements and (taken := sql_parameter(tool))
        ]

        async def keep(tool: str, arguments: dict[str, Any]) -> bool:
            seen = await self._call(link, tool, arguments)
            silent = any(tool == one.name for one, _ in takers)
            worked = seen is not None and seen.worked and (silent or not says_nothing(seen.text, seen.arguments))
            if seen is not None:
                self._learn(seen)
                made.extend([seen] if worked else [])
            return worked

        until = time.monotonic() + _FILL_SECONDS
        for kind, text in fill_statements(self.world) if takers else ():
            for tool, (parameter, what) in takers:
                if what in (kind, "any") and await keep(tool.name, {parameter: text}):
                    break
        for tool in makers:
            if sql_parameter(tool) is None and len(made) < _MOST_SETUP and time.monotonic() < until:
                await self._fill_with(tool, keep, most)
        return made[:_MOST_SETUP]

    def _makes(self, tool: Tool, changing: Sequence[str]) -> bool:
        kind = bearing(tool)
        return (
            kind is Bearing.CREATES
            or (kind in (Bearing.UNCLEAR, Bearing.READS) and tool.name in changing)
            or bool(sql_parameter(tool))
        )

    async def _fill_with(self, tool: Tool, keep: Callable[[str, dict[str, Any]], Awaitable[bool]], most: int) -> None:
        sampler = self._samplers[tool.name]
        sampler.one_by_one()
        required = tool.input_schema.get("required") or []
        failures = worked = 0
        while worked < most and failures < _FAILURES and sampler.has_more:
            draw = sampler.draw(self._random)
            if draw is None:
                return
            good = await keep(tool.name, draw.arguments)
            least = {name: value for name, value in draw.arguments.items() if name in required}
            if not good and least != draw.arguments:  # what is refused may be an optional argument
                good = await keep(tool.name, least)
            failures, worked = (0, worked + 1) if good else (failures + 1, worked)


def _alike(one: tuple[bool, str] | None, other: tuple[bool, str]) -> bool:
    return one is not None and one[0] == other[0] and new_ids(one[1], other[1]) is not None


def sql_parameter(tool: Tool) -> tuple[str, str] | None:
    """Return the parameter of a tool that takes SQL, and what kind of statement; None if it takes none."""
    for name, schema in (tool.input_schema.get("properties") or {}).items():
        described = schema.get("description", "") if isinstance(schema, dict) else ""
        if kind := sql_meaning(tool.name, words_of(name), f"{described} {tool.description[:300]}"):
            return name, kind
    return None


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


def _says_empty(is_error: bool, text: str) -> bool:
    """Return whether an answer says that there is nothing: an error, an empty list, or a few words ("No notes")."""
    said = says_nothing(text) or shows_empty_list(text)
    return is_error or said or (len(text) < _SHORT and _EMPTY.search(text) is not None)
