"""Calls to a live server within a budget, each made once."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.explore import tally
from mcp_rl.explore.answer import call_key, holds_secret, says_nothing
from mcp_rl.explore.fatal import suspected
from mcp_rl.rewards.dates import untimed
from mcp_rl.system.threads import crowding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.toolserver.link import Link

Call = tuple[str, dict[str, Any]]
"""A tool's name and the arguments."""
_DEADLINE = 4.0
_IN_FLIGHT = 8
_QUICK, _SLOW = 0.25, 0.5
"""Shares of its deadline that a call may take for more calls to be made at once, and for not fewer."""
_FAULTS = 2
"""Calls without an answer after which a tool is not called any more."""


@dataclass(frozen=True)
class Answered:
    """A call with its result."""

    tool: str
    arguments: dict[str, Any]
    text: str
    structured: Any = None
    is_error: bool = False

    @property
    def key(self) -> str:
        return call_key(self.tool, self.arguments)

    @property
    def tells(self) -> bool:
        """True if the result holds something that may be told."""
        return not self.is_error and not says_nothing(self.text, self.arguments) and not holds_secret(self.text)


@dataclass
class CallBudget:
    """Calls and seconds that are left."""

    calls: int
    until: float
    """By the monotonic clock."""
    first: int = 0
    """Calls that have longer than the others, so that a slow server is asked for something at all."""
    first_until: float = 0.0
    began: float = 0.0
    spent: bool = False
    """True once a call was left out for it."""

    @classmethod
    def of(cls, calls: int, seconds: float, *, first: int = 0, first_seconds: float = 0.0) -> CallBudget:
        """Return a budget that begins now; the `first` calls may take `first_seconds`. On a busy machine seconds are
        longer, so that it does not decide how much is known of a server."""
        now, patience = time.monotonic(), crowding()
        return cls(calls, now + seconds * patience, first, now + first_seconds * patience, now)

    def take(self) -> bool:
        """Take one call, or return False where none is left."""
        until = max(self.until, self.first_until) if self.first > 0 else self.until
        if self.calls < 1 or time.monotonic() > until:
            self.spent = True
            return False
        self.calls -= 1
        self.first -= 1
        return True

    @property
    def seconds(self) -> float:
        """The seconds since it began."""
        return time.monotonic() - self.began


class WorldCaller:
    """Makes calls on one link and keeps their answers."""

    def __init__(self, link: Link, budget: CallBudget, deadline: float = _DEADLINE, most: int = _IN_FLIGHT) -> None:
        """`deadline` is that of a call, in seconds; at most `most` calls are in flight at once."""
        self._link, self._budget, self._deadline = link, budget, deadline
        self._most, self._limiter = most, anyio.CapacityLimiter(1)
        self._faults: Counter[str] = Counter()
        self.answers: dict[str, Answered] = {}
        """The answers by the keys of the calls, in the order of the calls."""

    async def all(self, calls: Iterable[Call]) -> list[Answered | None]:
        """Make the calls that were not made yet, and return the answers of all; None where there is none."""
        wanted: Sequence[Call] = list(calls)
        new = {call_key(*call): call for call in wanted if call_key(*call) not in self.answers}
        found: dict[str, Answered] = {}

        async def one(key: str, tool: str, arguments: dict[str, Any]) -> None:
            async with self._limiter:
                if self._faults[tool] < _FAULTS and self._budget.take():
                    answer = await self._call(tool, arguments)
                    if answer is not None:
                        found[key] = answer

        async with anyio.create_task_group() as tasks:
            for key, (tool, arguments) in new.items():
                tasks.start_soon(one, key, tool, arguments)
        self.answers |= {key: found[key] for key in new if key in found}
        return [self.answers.get(call_key(*call)) for call in wanted]

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Answered | None:
        tally.count(calls=1)
        began = time.monotonic()
        try:
            with suspected(tool, arguments):
                result = await self._link.call(tool, arguments, deadline=self._deadline)
        except ServerFault:
            if not self._link.alive:
                raise
            self._faults[tool] += 1
            return None
        self._keep_pace(time.monotonic() - began)
        return Answered(tool, arguments, untimed(result.text), result.structured, result.is_error)

    def _keep_pace(self, seconds: float) -> None:
        """Have more calls in flight after a quick answer, and fewer after one that nearly came too late: many servers
        answer one call at a time."""
        now = self._limiter.total_tokens
        if seconds < _QUICK * self._deadline:
            self._limiter.total_tokens = min(self._most, 2 * now)
        elif seconds > _SLOW * self._deadline:
            self._limiter.total_tokens = max(1, now // 2)
