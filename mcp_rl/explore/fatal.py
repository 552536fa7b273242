"""Calls that end their server, or leave it without an answer to anything.

While several calls are in flight, each of them may have done it. Those that were not answered are the suspects: they
are made again, one at a time on a fresh place, a few times each, since some servers end at the second call only.
"""

from __future__ import annotations

import json
import time
from collections import deque
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.explore.answer import call_key
from mcp_rl.system.boundary import first_error
from mcp_rl.system.notices import notice
from mcp_rl.system.threads import crowding
from mcp_rl.toolserver.state import FatalCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer

T = TypeVar("T")
Suspect = tuple[str, dict[str, Any]]
"""A tool's name and the arguments of a call that was not answered."""
_REPEATS = 6
_SECONDS = 4.0
"""Deadline of a call, and the seconds for repeating one."""
_PING_SECONDS, _PINGS = 2.0, 8
"""Deadline of a ping, and how many in a row go unanswered before a server is given up: one that does its work in the
thread that answers pings is slow for as long as a call takes."""
_AFTERWARDS = 0.2
"""Seconds in which a server ends that answers a call before it does."""
_OPENINGS = 3
"""Times that a place is opened to find a server that answers: a silent one is given up after ten seconds."""
_LATEST = 32
_MOST_OF_TOOL, _MOST_SUSPECTS = 2, 16
_UNEXPLAINED = 2
"""Times that a server may be lost by no call of its own: a machine may end a process."""


@dataclass
class Suspects:
    """The calls that may have ended a server."""

    unanswered: dict[str, Suspect] = field(default_factory=dict)
    """Calls that were sent, by their keys."""
    answered: deque[Suspect] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """The latest calls that were answered: a server may end a moment later."""

    def in_order(self) -> list[Suspect]:
        """Return those without an answer first, and of each kind the latest first."""
        return [*reversed(self.unanswered.values()), *reversed(self.answered)]


_current: ContextVar[Suspects | None] = ContextVar("suspects", default=None)


@contextmanager
def suspects_noted() -> Iterator[Suspects]:
    """Yield the record of the calls inside this context."""
    noted = Suspects()
    token = _current.set(noted)
    try:
        yield noted
    finally:
        _current.reset(token)


@contextmanager
def suspected(tool: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Enclose a call: it is a suspect unless it was never sent."""
    noted = _current.get()
    if noted is None:
        yield
        return
    key = call_key(tool, arguments)
    noted.unanswered[key] = tool, arguments
    try:
        yield
    except ServerFault as fault:
        if fault.delivered is False:
            noted.unanswered.pop(key, None)
        raise
    else:
        noted.unanswered.pop(key, None)
        noted.answered.append((tool, arguments))


async def still_answers(link: Link) -> bool:
    """Return whether a server answers a ping: at once, or when the call that blocks it is done."""
    for _ in range(round(_PINGS * crowding())):
        if not link.alive:
            return False
        if await link.ping(_PING_SECONDS):
            return True
    return False


async def fatal_calls(
    place: Callable[[], AbstractAsyncContextManager[Link]], suspects: Iterable[Suspect]
) -> list[FatalCall]:
    """Make these calls alone, and return one of each tool after which the server answers nothing any more.

    `place` opens a link to a server that nothing was called on, or, where that is shared, to the one that there is.
    """
    found: dict[str, FatalCall] = {}
    async with AsyncExitStack() as stack:
        link: Link | None = None
        for tool, arguments in _chosen(suspects):
            if tool in found:
                continue
            if link is None or not link.alive:
                link = await _answering(place, stack)
            if link is None:
                break
            if (fatal := await _tried(link, tool, arguments)) is not None:
                found[tool] = fatal
                link = None
    return list(found.values())


async def _answering(place: Callable[[], AbstractAsyncContextManager[Link]], stack: AsyncExitStack) -> Link | None:
    """Open a link to a server that answers; None if there is none.

    A shared server is still as the calls before left it, until its connection gives it up.
    """
    for _ in range(_OPENINGS):
        await stack.aclose()
        link = await stack.enter_async_context(place())
        if await still_answers(link):
            return link
    return None


async def explored_without_fatal(
    sessions: Sessions, server: ToolServer, params: ServerParams, explore: Callable[[ToolServer], Awaitable[T]]
) -> tuple[T, ToolServer]:
    """Return what `explore` returns, and the server that it was given: without the tools whose calls end it.

    Where the server is lost, the tool is found, the user is told, and all is explored again without it. Where no call
    made alone does it again, the tools that were being called are left out, once. Raises the ServerFault where that is
    not enough.
    """
    lost, last_resort = 0, True
    while True:
        with suspects_noted() as suspects:
            try:
                return await explore(server), server
            except (ServerFault, BaseExceptionGroup) as raised:
                fault = first_error(raised)
                if not isinstance(fault, ServerFault):
                    raise
        found = await fatal_calls(lambda: _fresh(sessions, params), suspects.in_order())
        if not found:
            lost += 1
            if lost <= _UNEXPLAINED:
                continue
            tools = sorted({tool for tool, _ in suspects.unanswered.values()})
            if not tools or not last_resort:
                raise fault
            last_resort = False
            notice(_blamed(server.name, tools))
            server = server.avoiding(tools)
            continue
        for call in found:
            notice(f"{call.sentence(server.name)} {_offered_still([call.tool])}")
        server = server.avoiding(call.tool for call in found)


def _blamed(server: str, tools: Sequence[str]) -> str:
    """Return a sentence about tools of which it is not known which one ends the server."""
    are, their = ("is", "its") if len(tools) == 1 else ("are", "their")
    return (
        f"{' and '.join(tools)} {are} left out: the server {server} was lost, {their} calls had no answer, and no call "
        f"made alone does it again. {_offered_still(tools)}"
    )


def _offered_still(tools: Sequence[str]) -> str:
    it = "it" if len(tools) == 1 else "them"
    excluded = json.dumps(tools)
    return f"A model in training is offered {it} all the same; tools.exclude='{excluded}' keeps {it} out there too."


@asynccontextmanager
async def _fresh(sessions: Sessions, params: ServerParams) -> AsyncIterator[Link]:
    """Open the place of an episode; no other episode gets it afterwards."""
    async with sessions.lease(params) as lease:
        lease.spoilt = True
        yield lease.session.connection


def _chosen(suspects: Iterable[Suspect]) -> Sequence[Suspect]:
    """Return the suspects to be tried, the first ones of each tool first."""
    by_tool: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        by_tool.setdefault(suspect[0], []).append(suspect)
    turns = [calls[at] for at in range(_MOST_OF_TOOL) for calls in by_tool.values() if at < len(calls)]
    return turns[:_MOST_SUSPECTS]


async def _tried(link: Link, tool: str, arguments: dict[str, Any]) -> FatalCall | None:
    """Make a call a few times, and return it if the server ends or answers nothing any more."""
    until = time.monotonic() + _SECONDS
    for _ in range(_REPEATS):
        began = time.monotonic()
        try:
            await link.call(tool, arguments, deadline=_SECONDS)
        except ServerFault:
            in_time = time.monotonic() - began < _SECONDS
            if not link.alive:  # after its deadline, a silent server may have been given up already
                return FatalCall(tool=tool, arguments=arguments, did="ended" if in_time else "stopped answering")
            if in_time:
                return FatalCall(tool=tool, arguments=arguments, did="gave no answer")
            if await still_answers(link):
                return None  # it is slow, and harms no other call
            return FatalCall(tool=tool, arguments=arguments, did="stopped answering")
        if time.monotonic() > until:
            break
    await anyio.sleep(_AFTERWARDS)
    ended = not link.alive
    if await still_answers(link):
        return None
    return FatalCall(tool=tool, arguments=arguments, did="ended" if ended else "stopped answering")
