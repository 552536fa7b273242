"""Answers that a server gives once: the equal calls of other episodes get them from memory.

The episodes of a group make mostly the same calls. Where a call takes some time, or each episode needs a process of its
own, a call that the server has answered twice alike is answered from memory from then on. What went before counts: for
a server that keeps a state, a call is the same only after the same changes since the beginning of the episode. An
episode whose next call is not known makes its earlier calls on the server first, and goes on there.

While tasks are made and proven every call is made, and its answer counts as one of the two (`NotingLink`): a solution
that was proven twice needs no call when it is played for the first time.

The server has the last word. After `ASKED_AGAIN` uses of an answer it is asked again, then after twice as many each
time; and a tool that answers an equal call differently (a clock, a page that changed) is never answered from memory any
more. A tool that has answered `TRUSTED` equal calls alike, and none differently, need not answer others twice.

Faults are not remembered, since they may pass, and neither are errors, except where each episode needs a process of its
own: there an error follows from what the episode did, as any answer does. The server is asked for it again far sooner.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.system.activity import Activity, during
from mcp_rl.system.allowance import not_counted
from mcp_rl.toolserver.cassette.library import BEGINNING, NO_JSON, canonical, following
from mcp_rl.toolserver.link import WrappedLink
from mcp_rl.toolserver.state import calls_in_flight

if TYPE_CHECKING:
    from collections.abc import Container

    from mcp_rl.config import ToolsConfig
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.state import MeasuredState
    from mcp_rl.toolserver.tools.results import ToolResult

WORTH = 0.005
"""Seconds that a call takes, with the start of a process where each episode has one, from which answers are kept: 160
calls of a step are then most of a second of a processor that could sample."""
ASKED_AGAIN = 32
"""Uses of an answer after which the server is asked again for the first time."""
ERROR_ASKED_AGAIN = 8
"""The same for an error, which may pass after all."""
_DOUBLED = 5
"""Number of times that these are doubled at most."""
TRUSTED = 20
"""Equal answers to equal calls of a tool after which its further calls are remembered from the first answer."""
_TWICE = 2
"""Equal answers after which one is remembered."""
_MOST = 5_000
"""Most answers that are kept."""
_LONGEST = 20_000
"""Most characters of an answer that is kept."""
_IN_FLIGHT = 64
"""Most calls that a shared server gets at once."""


def worth_remembering(measured: MeasuredState, tools: ToolsConfig) -> bool:
    """Return whether a server's answers are kept: they take some time, and its state is the episode's own."""
    if not tools.remember or measured.kept in ("unsure", "elsewhere") or measured.filled_anew:
        return False
    start = measured.start_seconds if measured.isolation == "per-rollout" else 0.0
    return start + measured.call_seconds >= WORTH


class CallInState(NamedTuple):
    """The identity of a call."""

    after: str | None
    """A digest of the episode's calls before it that may have changed something; None for a server without a state."""
    tool: str
    arguments: str
    """Their `canonical` text."""


@dataclass
class _Known:
    """The answer to one call, and how well it is known."""

    result: ToolResult | None = None
    given: int = 0
    """Number of times that the server gave this answer."""
    uses: int = 0
    """Number of times that the answer came from memory since the server was asked."""
    again: int = 0
    """Number of times that the server was asked again."""
    asking: int = 0
    """Calls of this kind that the server has not answered yet."""
    confirming: int = 0
    """Those of them whose answer is to confirm an earlier one."""
    passing: bool = False
    """True if the newest answer was none to remember, so that nobody waits for another."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when one of them ends."""


class Memory:
    """The answers of one server, for all of its episodes that begin in the same state."""

    def __init__(self, call_seconds: float, deadline: float, *, errors: bool = False) -> None:
        """call_seconds: what a call takes, as measured. deadline: seconds that a call may take. errors: whether errors
        are remembered too."""
        self._errors = errors
        # Half the deadline, since the calls of a model may take longer than those that were measured.
        self.in_flight = anyio.CapacityLimiter(calls_in_flight(call_seconds, _IN_FLIGHT, deadline / 2))
        """Calls that a shared server gets at once: a slow one often makes them one after the other."""
        self._known: OrderedDict[CallInState, _Known] = OrderedDict()
        self._alike: Counter[str] = Counter()
        """Equal answers to equal calls, by tool."""
        self._confirming: Counter[str] = Counter()
        """Calls that are to give another one, by tool."""
        self._told: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set when a call of the tool ends."""
        self._varying: set[str] = set()
        """Tools that answered an equal call differently."""

    async def find(self, call: CallInState) -> ToolResult | None:
        """Return the answer to a call. None: the caller must ask the server, and then say what it got to `learn`.

        Waits while others ask for what will answer this call too.
        """
        while not (call.tool in self._varying or call.arguments == NO_JSON):
            known = self._known.setdefault(call, _Known())
            self._known.move_to_end(call)
            is_error = known.result is not None and known.result.is_error
            needed = 1 if self._alike[call.tool] >= TRUSTED and not is_error else _TWICE
            most = (ERROR_ASKED_AGAIN if is_error else ASKED_AGAIN) << min(known.again, _DOUBLED)
            if known.given >= needed and known.uses < most:
                known.uses += 1
                assert known.result is not None
                return replace(known.result, seconds=0.0)
            if not is_error and self._soon_trusted(call.tool, known):
                news = self._told[call.tool]
            elif known.given + known.asking < needed or not known.asking or known.passing:
                known.asking += 1
                known.confirming += known.given > 0
                self._confirming[call.tool] += known.given > 0
                known.again += known.uses > 0
                known.uses = 0
                return None
            else:
                news = known.answered
            with not_counted(), during(Activity.TOOLS, "the same call of another episode"):
                await news.wait()
        return None

    def _soon_trusted(self, tool: str, known: _Known) -> bool:
        """Return whether the only answer to a call will be enough once the calls under way have been answered alike."""
        alike = self._alike[tool]
        return known.given == 1 and not known.asking and alike < TRUSTED <= alike + self._confirming[tool]

    def learn(self, call: CallInState, result: ToolResult | None, *, awaited: bool) -> None:
        """Take note of what the server answered to a call; None: it failed. awaited: `find` had asked for it."""
        if call.tool in self._varying or call.arguments == NO_JSON:
            return
        known = self._known.setdefault(call, _Known())
        if awaited:
            known.asking -= 1
            confirmed = min(known.confirming, 1)
            known.confirming -= confirmed
            self._confirming[call.tool] -= confirmed
            known.answered.set()
            known.answered = asyncio.Event()
            self._told.pop(call.tool, asyncio.Event()).set()
        known.passing = (
            result is None
            or bool(result.asked)
            or (result.is_error and not self._errors)
            or _characters(result) > _LONGEST
        )
        if result is None or known.passing:
            known.result, known.given = None, 0
        elif known.result is None or alike(known.result, result):
            self._alike[call.tool] += known.given > 0 and not result.is_error
            known.result = result
            known.given += 1
        elif known.result.is_error or result.is_error:  # an error that passed, or came
            known.result, known.given = result, 1
        else:
            self.forget(call.tool)
        while len(self._known) > _MOST:
            oldest = next(iter(self._known))
            if self._known[oldest].asking:
                break
            del self._known[oldest]

    def forget(self, tool: str) -> None:
        """Never answer calls of this tool from memory again."""
        self._varying.add(tool)
        for call in [call for call in self._known if call.tool == tool]:
            self._known.pop(call).answered.set()
        self._told.pop(tool, asyncio.Event()).set()


def _characters(result: ToolResult) -> int:
    return len(result.text) + (0 if result.structured is None else len(canonical(result.structured)))


def alike(one: ToolResult | None, other: ToolResult) -> bool:
    """Return whether two answers say the same, whatever time they took."""
    return one is not None and replace(one, seconds=0.0) == replace(other, seconds=0.0)


class NotingLink(WrappedLink):
    """A link to a server that gets every call, and whose answers `memory` learns.

    stateful, harmless: as in `RememberingLink`. Calls at one time of which one may change something have no certain
    order: from then on nothing is learned.
    """

    def __init__(self, link: Link, memory: Memory, *, stateful: bool, harmless: Container[str] = ()) -> None:
        super().__init__(link)
        self._memory, self._harmless = memory, harmless
        self._after = BEGINNING if stateful else None
        self._under_way = self._changing = 0
        """Calls that the server has not answered, and those of them that may change something."""
        self._in_order = True

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        call = CallInState(self._after, tool_name, canonical(arguments))
        changes = self._after is not None and tool_name not in self._harmless
        if self._changing or (changes and self._under_way):
            self._in_order = False
        if changes:
            self._after = following(self._after or BEGINNING, tool_name, call.arguments)
        self._under_way += 1
        self._changing += changes
        try:
            result = await self._link.call(tool_name, arguments, deadline=deadline)
        except BaseException:
            self._in_order &= not changes
            raise
        finally:
            self._under_way -= 1
            self._changing -= changes
        if self._in_order:
            self._memory.learn(call, result, awaited=False)
        return result


class _Owed(NamedTuple):
    """A call that was answered from memory."""

    call: CallInState
    arguments: dict[str, Any]
    deadline: float | None
    told: ToolResult


class RememberingLink(WrappedLink):
    """An episode's link to a server whose answers are kept in `memory`.

    stateful: they depend on the calls before, except on those of `harmless` tools, which leave no trace.
    """

    def __init__(self, link: Link, memory: Memory, *, stateful: bool, harmless: Container[str] = ()) -> None:
        super().__init__(link)
        self._memory, self._harmless = memory, harmless
        self._after = BEGINNING if stateful else None
        self._owed: list[_Owed] = []
        """The calls that were answered from memory and that the server, if it keeps a state, has not seen."""
        self._live = False
        """True once a server with a state is used, which has then seen every call."""
        self._in_order = anyio.Lock(fast_acquire=True)

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        if self._after is None:
            call = CallInState(None, tool_name, canonical(arguments))
            async with self._in_order:
                found = await self._memory.find(call)
            return found if found is not None else await self._ask_in_turn(call, arguments, deadline)
        async with self._in_order:
            call = CallInState(self._after, tool_name, canonical(arguments))
            if tool_name not in self._harmless:
                self._after = following(self._after, tool_name, call.arguments)
            awaited = not self._live
            if awaited:
                found = await self._memory.find(call)
                if found is not None:
                    if tool_name not in self._harmless:
                        self._owed.append(_Owed(call, arguments, deadline, found))
                    return found
                if self._owed or tool_name not in self._harmless:
                    await self._catch_up(call)
            return await self._ask(call, arguments, deadline, awaited=awaited)

    async def resources(self) -> list[dict[str, Any]]:
        if self._after is not None:
            async with self._in_order:
                await self._catch_up()
        return await self._link.resources()

    async def _ask_in_turn(self, call: CallInState, arguments: dict[str, Any], deadline: float | None) -> ToolResult:
        me, in_flight = object(), self._memory.in_flight
        try:
            async with self._in_order:
                with not_counted(), during(Activity.TOOLS, "a turn at a slow server"):
                    await in_flight.acquire_on_behalf_of(me)
        except BaseException:
            self._memory.learn(call, None, awaited=True)
            raise
        try:
            return await self._ask(call, arguments, deadline, awaited=True)
        finally:
            in_flight.release_on_behalf_of(me)

    async def _ask(
        self, call: CallInState, arguments: dict[str, Any], deadline: float | None, *, awaited: bool
    ) -> ToolResult:
        result = None
        try:
            result = await self._link.call(call.tool, arguments, deadline=deadline)
        finally:
            self._memory.learn(call, result, awaited=awaited)
        return result

    async def _catch_up(self, wanted: CallInState | None = None) -> None:
        """Make the calls that were answered from memory. Raises ServerFault if one is answered differently now; then
        nobody waits for the call `wanted` any more."""
        self._live = True
        owed, self._owed = self._owed, []
        try:
            for one in owed:
                result = await self._link.call(one.call.tool, one.arguments, deadline=one.deadline)
                if not alike(one.told, result):
                    self._memory.forget(one.call.tool)
                    raise ServerFault(
                        f"The tool {one.call.tool} answered differently when the same call was made again; it is asked "
                        "each time from now on."
                    )
        except BaseException:
            if wanted is not None:
                self._memory.learn(wanted, None, awaited=True)
            raise
