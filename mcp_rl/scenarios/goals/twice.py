"""Reading calls made twice, at the beginnings of two episodes: only what both of them say is taken for true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.explore import tally
from mcp_rl.explore.answer import call_key, holds_secret
from mcp_rl.explore.fatal import suspected
from mcp_rl.explore.pace import slowest_call
from mcp_rl.explore.probe import CLOCK_TICK
from mcp_rl.rewards.dates import undated, untimed
from mcp_rl.scenarios.goals.task import refutes
from mcp_rl.scenarios.stage import Look
from mcp_rl.toolserver.state import calls_in_flight

if TYPE_CHECKING:
    from pydantic import JsonValue

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.world_model import Observation
    from mcp_rl.scenario import ServerParams, Verifier
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer

ReadingCall = tuple[str, Mapping[str, "JsonValue"]]
"""The server's own name of a tool, and arguments."""
_IN_FLIGHT = 8
_DEADLINE = 20.0
"""Seconds for one call."""


class Twice:
    """The texts of reading calls that gave the same text in two episodes."""

    def __init__(self, sessions: Sessions, params: ServerParams, server: ToolServer | None = None) -> None:
        """`server` tells how fast calls are answered. Where each episode's process is filled at another time, times of
        day do not count."""
        self._sessions, self._params = sessions, params
        self._without_times = server is not None and server.filled_anew
        self._at_once = calls_in_flight(slowest_call(server) if server is not None else 0.0, _IN_FLIGHT, _DEADLINE)
        self._texts: dict[str, str | None] = {}

    def __getitem__(self, call: ReadingCall) -> str | None:
        """Return the text of a call that was made; None for an error, and for one that did not stay the same."""
        return self._texts.get(_key(call))

    def settled(self, text: str) -> str:
        """Return what of a text counts: not how long the call took."""
        return undated(text) if self._without_times else untimed(text)

    def repeats(self, seen: Observation) -> bool:
        """Return whether both episodes said what was seen."""
        return self[seen.tool, seen.arguments] == self.settled(seen.text)

    def refute(self, verifier: Verifier) -> bool:
        """Return whether what is known of the state, where nothing was done, makes a verifier of states refuse."""
        for index, read in enumerate(verifier.reads):
            before = self[read.tool, read.arguments]
            if before is not None and refutes(verifier, index, Look(read.tool, dict(read.arguments), before, False)):
                return True
        return False

    def known(self, answers: Iterable[Answered]) -> None:
        """Take in calls that gave the same results in two episodes already."""
        self._texts |= {answer.key: self.settled(answer.text) for answer in answers}

    async def make(self, calls: Sequence[ReadingCall]) -> None:
        """Make these calls in two episodes, with a tick of the clock between; those made before are left out."""
        new = {key: call for call in calls if (key := _key(call)) not in self._texts}
        if not new:
            return
        first = await self._once(new)
        await anyio.sleep(CLOCK_TICK)
        second = await self._once({key: new[key] for key, text in first.items() if text is not None})
        for key in new:
            text = first.get(key)
            self._texts[key] = text if text is not None and text == second.get(key) else None

    async def _once(self, calls: Mapping[str, ReadingCall]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        left = iter(calls.items())
        async with self._sessions.lease(self._params) as lease:

            async def make_some() -> None:
                for key, call in left:
                    found[key] = await self._one(lease.session.connection, call)

            async with anyio.create_task_group() as tasks:
                for _ in range(min(len(calls), self._at_once)):
                    tasks.start_soon(make_some)
        return found

    async def _one(self, link: Link, call: ReadingCall) -> str | None:
        """Return what a call says; None if it fails, is an error or shows a secret."""
        try:
            tally.count(calls=1)
            with suspected(call[0], dict(call[1])):
                result = await link.call(call[0], dict(call[1]), deadline=_DEADLINE)
        except ServerFault:
            if not link.alive:
                raise
            return None
        return None if result.is_error or holds_secret(result.text) else self.settled(result.text)


def _key(call: ReadingCall) -> str:
    return call_key(call[0], dict(call[1]))
