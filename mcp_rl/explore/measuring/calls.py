"""Calls with a deadline, and what they tell of a server's pace."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from statistics import fmean, median
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from mcp_rl.errors import ServerFault
from mcp_rl.explore.fatal import still_answers, suspected
from mcp_rl.explore.measuring.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.measuring.seen import Answers
    from mcp_rl.toolserver.link import Link

log = logging.getLogger(__name__)

_DEADLINE, _LONGEST_DEADLINE = 3.0, 12.0
"""Seconds for a call; a server that starts slowly gets as long as its start took, up to the longer time, which its
first call always gets."""


class TimedCalls:
    """Makes calls, and notes the tools that do not answer in time."""

    def __init__(self, start_seconds: float) -> None:
        """`start_seconds` is how long the server took to start."""
        self.silent: set[str] = set()
        """Tools that did not answer in time."""
        self._called: WeakSet[Link] = WeakSet()
        self._deadline = min(_LONGEST_DEADLINE, max(_DEADLINE, start_seconds))
        self._seconds: dict[str, list[float]] = defaultdict(list)
        """For each tool the seconds of its calls, without the first one of each process."""

    @property
    def mean_seconds(self) -> float:
        """Seconds that a call takes on average."""
        every = [seconds for calls in self._seconds.values() for seconds in calls]
        return fmean(every) if every else 0.0

    @property
    def typical_seconds(self) -> float:
        """Seconds that a call of the median tool takes: one tool that waits does not make a server slow."""
        return median(map(fmean, self._seconds.values())) if self._seconds else 0.0

    async def call(self, link: Link, tool: str, arguments: dict[str, Any]) -> Seen | None:
        """Make a call; return None where it was not answered in time. Raises ServerFault where the server is lost."""
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
            self.silent.add(tool)
            return None
        seconds = time.monotonic() - began
        if not first:
            self._seconds[tool].append(seconds)
        if seconds > deadline:  # a tool that reports progress may take longer
            self.silent.add(tool)
        return Seen(tool, arguments, result.text, result.is_error)

    async def again(self, link: Link, calls: Sequence[Seen]) -> Answers:
        """Make calls again, and return their answers; without those of silent tools."""
        seen = [await self.call(link, call.tool, call.arguments) for call in calls if call.tool not in self.silent]
        return {one.key: one.answer for one in seen if one is not None}
