"""Episodes as a run would play them: does one leave anything to the next, and do two at once see each other?"""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_rl.config import Isolation, ToolsConfig
from mcp_rl.errors import McpRlError
from mcp_rl.explore.check import catalogue
from mcp_rl.explore.check.caller import CALL_SECONDS, CallReply
from mcp_rl.explore.check.findings import Finding, Level
from mcp_rl.explore.check.inspection import deadlines_of
from mcp_rl.explore.check.trials import Trials, shown
from mcp_rl.rewards.dates import undated
from mcp_rl.system.visible import quoted, shortened
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.isolation import names
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.sandbox.choice import sandbox_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tool_server import ToolServer

_MOST = 12
"""Number of calls that change the state."""
_OWN_FOLDER = re.compile(r"mcp-rl-[0-9a-f]{16}")
"""The temporary folder of one process, to which the next process has no right."""
_MEANS = {
    "shared": "All rollouts share the server, and each sees what the others did.",
    "layer": "The state is kept outside of the files that the layer covers, so rollouts see each other's changes.",
    "reset": "An episode does not begin in the state that its task was made for, so right answers count as wrong.",
    "per-rollout": "A new process is not enough: the state is kept elsewhere, and rollouts see each other's changes.",
}
_ADVICE = {
    "shared": "Declare isolation reset with a tool that resets, or per-rollout (--isolation per-rollout).",
    "layer": "Use --isolation per-rollout, which starts a new process for each rollout, or declare a reset_tool.",
    "reset": "Make the reset put back everything that the tools can change.",
    "per-rollout": "Point it at {tmp}, a folder that each rollout has to itself, or declare a reset_tool.",
}


async def episodes(server: ToolServer, params: OneServer, isolation: Isolation, trials: Trials) -> list[Finding]:
    """Play an episode that makes changes, then another one, then two at once, and compare what each sees."""
    looks = [look for look in trials.looks if look.fault is None and not _OWN_FOLDER.search(repr(look.arguments))]
    changes = [reply for tool in trials.changing for reply in trials.worked(tool.name)[:2]][:_MOST]
    if not changes:
        held_back = any(trial.not_called for trial in trials.tools.values() if not trial.resets)
        if isolation == "shared" or held_back:
            return []
        return [catalogue.NOT_SEEN.found(why="no call changes anything that may be called")]
    if not looks:
        return [catalogue.NOT_SEEN.found(why="no call of a tool that looks things up worked")]
    check = "reset" if isolation == "reset" else "isolation"
    try:
        async with Sessions(
            server=replace(server, isolation=isolation),
            deadlines=replace(deadlines_of(server), call=CALL_SECONDS),
            tools=ToolsConfig(allow_schema_change=True),
        ) as sessions:
            return await _Episodes(sessions, params, isolation, looks, changes).findings(check)
    except McpRlError as error:
        return [catalogue.NO_SECOND_EPISODE.found(check=check, why=shortened(str(error), 300))]


async def remembered(server: ToolServer, params: OneServer, isolation: Isolation, trials: Trials) -> list[Finding]:
    """Find tools whose equal calls differ by earlier calls rather than by the clock.

    A new process answers the first call again. Where it repeats the first answer, time is not the cause.
    """
    firsts = [trials.worked(tool)[0] for tool in sorted(trials.unsteady)]
    if not firsts or not params.ours_to_start:
        return []
    try:
        private = isolation == "per-rollout"
        opening = connect(
            params, deadlines=deadlines_of(server), name=server.name, sandbox=sandbox_of(server, private=private)
        )
        async with opening as connection:
            connection.elicitation = server.elicitation
            again = [await connection.call(first.tool, first.arguments, deadline=CALL_SECONDS) for first in firsts]
    except McpRlError:
        return []
    tools = [first.tool for first, reply in zip(firsts, again, strict=True) if reply.text == first.text]
    level = Level.PROBLEM if isolation == "shared" else Level.NOTE
    return [replace(catalogue.REMEMBERS, level=level).found(tools, names=names(tools))] if tools else []


class _Episodes:
    """Plays episodes that make `changes`, and looks at the state at the beginning of each."""

    def __init__(
        self,
        sessions: Sessions,
        params: OneServer,
        isolation: Isolation,
        looks: Sequence[CallReply],
        changes: Sequence[CallReply],
    ) -> None:
        self._sessions, self._params, self._isolation = sessions, params, isolation
        self._looks, self._changes = looks, changes
        self._begin: dict[str, str] = {}
        """Results of the looks at the beginning of the first episode."""

    async def findings(self, check: str) -> list[Finding]:
        if found := await self._first(check):
            return [found]
        async with self._sessions.lease(self._params) as lease:
            second = await self._seen(lease.session.connection)
        if found := self._left_behind(check, self._begin, second):
            return [found]
        findings = [catalogue.NOTHING_LEFT_BEHIND.found(check=check, looks=names(list(self._begin)))]
        if self._isolation != "shared" and (self._params.ours_to_start or self._isolation == "per-rollout"):
            findings.append(await self._at_once())
        return findings

    async def _first(self, check: str) -> Finding | None:
        """Play the first episode, and keep the looks and changes that tell something; return a finding otherwise."""
        tried = self._changes
        before: dict[str, str] = {}
        if self._isolation == "per-rollout":  # a path or an id that differs from process to process is not state
            async with self._sessions.lease(self._params) as lease:
                before = await self._seen(lease.session.connection)
        async with self._sessions.lease(self._params) as lease:
            begin = await self._seen(lease.session.connection)
            if before:
                self._looks = [look for look in self._looks if before[_key(look)] == begin[_key(look)]]
                begin = {key: begin[key] for key in map(_key, self._looks)}
                # The calls of the trials were a rollout too.
                earlier = {_key(look): _lasting(look.text) for look in self._looks}
                if found := self._left_behind(check, earlier, begin):
                    return found
            self._begin = begin
            self._changes = await self._change(lease.session.connection) if self._looks else ()
        if self._changes:
            return None
        shown_by = names(sorted({look.tool for look in self._looks})) or "any tool"
        made = names(sorted({reply.tool for reply in tried}))
        return catalogue.NOT_SEEN.found(why=f"the calls of {made} changed nothing that {shown_by} shows")

    async def _change(self, link: Link) -> Sequence[CallReply]:
        """Make the changes until a look differs, and return those made; none where no look ever differs."""
        for number, change in enumerate(self._changes):
            await link.call(change.tool, change.arguments)
            if await self._seen(link) != self._begin:
                return self._changes[: number + 1]
        return ()

    async def _at_once(self) -> Finding:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(self._sessions.lease(self._params))
            two = await stack.enter_async_context(self._sessions.lease(self._params))
            for change in self._changes:
                await one.session.connection.call(change.tool, change.arguments)
            other = await self._seen(two.session.connection)
        different = _different(self._begin, other)
        if not different:
            return catalogue.UNSEEN_BY_OTHERS.found()
        was, now = difference(self._begin[different[0]], other[different[0]])
        advice = "Set instances=1 in the plugin (or --max-servers 1), or keep the state of each process to itself."
        if self._isolation == "per-rollout":
            advice = _ADVICE["per-rollout"]
        return catalogue.SEEN_BY_OTHERS.found(different, look=different[0], was=was, now=now, do=advice)

    def _left_behind(self, check: str, first: dict[str, str], following: dict[str, str]) -> Finding | None:
        different = _different(first, following)
        if not different:
            return None
        was, now = difference(first[different[0]], following[different[0]])
        changes = names(sorted({reply.tool for reply in self._changes}))
        return catalogue.STATE_LEFT_BEHIND.found(
            different, check=check, changes=changes, look=different[0], was=was, now=now,
            means=_MEANS[self._isolation], do=_ADVICE[self._isolation],
        )  # fmt: skip

    async def _seen(self, link: Link) -> dict[str, str]:
        """Make the looks and return their results."""
        return {_key(look): _lasting((await link.call(look.tool, look.arguments)).text) for look in self._looks}


def _different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return [key for key in other if one[key] != other[key]]


def _lasting(text: str) -> str:
    """Return the text without times of day and without the name of the process's temporary folder."""
    return _OWN_FOLDER.sub("{tmp}", undated(text))


def _key(look: CallReply) -> str:
    return f"{shortened(look.tool)} {shown(look.arguments)}" if look.arguments else shortened(look.tool)


def difference(one: str, other: str) -> tuple[str, str]:
    """Return two texts, each quoted from shortly before their first difference."""
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, same - 20)
    mark = "…" if start else ""
    return quoted(mark + one[start:], 80), quoted(mark + other[start:], 80)
