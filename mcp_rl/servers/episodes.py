"""What one episode leaves for the next, and what two at once see of each other: as a run would have them."""

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from mcp_rl.config import Isolation, ToolsConfig
from mcp_rl.errors import McpRlError
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import OneServer
from mcp_rl.scenarios.answer import undated
from mcp_rl.servers.caller import CALL_SECONDS, Reply
from mcp_rl.servers.calls import Trials, shown
from mcp_rl.servers.findings import Finding, note, ok, problem
from mcp_rl.servers.inspection import deadlines_of
from mcp_rl.servers.isolation import names
from mcp_rl.servers.visible import quoted, shortened
from mcp_rl.toolserver.connection import connect
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions

_MOST = 12
"""Tools whose results show the state, and calls that change it."""
_OWN_FOLDER = re.compile(r"mcp-rl-[0-9a-f]{16}")
"""The temporary folder of one process, which the next one has no right to."""
_WORDS = {
    "shared": "All rollouts share the server, and one sees what another one did.",
    "reset": "An episode does not begin in the state that its task was made for, so right answers count as wrong.",
    "per-rollout": "A new process is not enough: the state is kept elsewhere, and one rollout sees another one's.",
}
_ADVICE = {
    "shared": "Declare isolation reset with a tool that resets, or per-rollout (--isolation per-rollout).",
    "reset": "Let the reset put back everything that the tools can change.",
    "per-rollout": "Point it at {tmp}, a folder that each rollout has for itself, or declare a reset_tool.",
}


async def episodes(server: ToolServer, params: OneServer, isolation: Isolation, trials: Trials) -> list[Finding]:
    """Play an episode that changes what it may, then another one, and two at once; look at what each sees."""
    looks = [look for look in trials.looks if look.fault is None and not _OWN_FOLDER.search(repr(look.arguments))]
    changes = [reply for tool in trials.changing for reply in trials.worked(tool.name)[:2]][:_MOST]
    if not changes:
        held_back = any(trial.not_called for trial in trials.tools.values() if not trial.resets)
        return [] if isolation == "shared" or held_back else [_unseen("no call changes anything that may be called")]
    if not looks:
        return [_unseen("no call of a tool that looks things up worked")]
    try:
        async with Sessions(
            server=replace(server, isolation=isolation),
            deadlines=replace(deadlines_of(server), call=CALL_SECONDS),
            tools=ToolsConfig(allow_schema_change=True),
        ) as sessions:
            return await _played(sessions, params, isolation, looks, changes)
    except McpRlError as error:
        return [
            problem(
                "reset" if isolation == "reset" else "isolation",
                f"The second episode could not be played: {shortened(str(error), 300)}",
                "Every episode after the first is a fault.",
                "Mend the reset, or let the server be started again and again.",
            )
        ]


async def remembered(server: ToolServer, params: OneServer, isolation: Isolation, trials: Trials) -> list[Finding]:
    """Of tools whose equal calls differ: do they differ by what was called before, rather than by the clock?

    A new process answers the first call again. Where it says what the first one said, time is not what changed it.
    """
    firsts = [trials.worked(tool)[0] for tool in sorted(trials.unsteady)]
    if not firsts or not params.ours_to_start:
        return []
    try:
        private = isolation == "per-rollout"
        async with connect(params, deadlines=deadlines_of(server), name=server.name, private=private) as connection:
            again = [await connection.call(first.tool, first.arguments, deadline=CALL_SECONDS) for first in firsts]
    except McpRlError:
        return []
    tools = [first.tool for first, reply in zip(firsts, again, strict=True) if reply.text == first.text]
    if not tools:
        return []
    make = problem if isolation == "shared" else note
    return [
        make(
            "annotations",
            f"{names(tools)} only looks things up, as far as its annotations and name tell, and yet what it says "
            "depends on the calls before.",
            "Episodes that share the server see what others did; with a process each they do not.",
            "Set readOnlyHint to false, and declare how episodes are kept apart (--isolation per-rollout).",
            tools,
        )
    ]


async def _played(
    sessions: Sessions, params: OneServer, isolation: Isolation, looks: Sequence[Reply], changes: Sequence[Reply]
) -> list[Finding]:
    check = "reset" if isolation == "reset" else "isolation"
    tried = changes
    before: dict[str, str] = {}
    if isolation == "per-rollout":  # what differs from process to process anyhow, such as a path or an id, is no state
        async with sessions.lease(params) as lease:
            before = await _seen(lease.session.connection, looks)
    async with sessions.lease(params) as lease:
        begin = await _seen(lease.session.connection, looks)
        if before:
            looks = [look for look in looks if before[_key(look)] == begin[_key(look)]]
            begin = {key: begin[key] for key in map(_key, looks)}
            # The calls before these episodes were a rollout too.
            earlier = {_key(look): _lasting(look.text) for look in looks}
            if different := [key for key in begin if earlier[key] != begin[key]]:
                return [_left_behind(check, isolation, changes, different, earlier, begin)]
        changes = await _changed(lease.session.connection, changes, looks, begin) if looks else ()
    made = sorted({reply.tool for reply in changes or tried})
    if not changes:
        shown_by = names(sorted({look.tool for look in looks})) or "any tool"
        return [_unseen(f"the calls of {names(made)} changed nothing that {shown_by} shows")]
    async with sessions.lease(params) as lease:
        second = await _seen(lease.session.connection, looks)
    if different := [look for look in begin if begin[look] != second[look]]:
        return [_left_behind(check, isolation, changes, different, begin, second)]
    found = [ok(check, f"An episode leaves nothing to the next one ({names(list(begin))} agree).")]
    if isolation != "shared" and (params.ours_to_start or isolation == "per-rollout"):
        found += await _at_once(sessions, params, isolation, looks, changes, begin)
    return found


def _left_behind(
    check: str,
    isolation: Isolation,
    changes: Sequence[Reply],
    different: Sequence[str],
    first: dict[str, str],
    next_one: dict[str, str],
) -> Finding:
    look = different[0]
    was, now = difference(first[look], next_one[look])
    made = names(sorted({reply.tool for reply in changes}))
    return problem(
        check,
        f"After an episode that called {made}, the next one does not begin as the first one did: {look} said "
        f"{was}, and now says {now}.",
        _WORDS[isolation],
        _ADVICE[isolation],
        different,
    )


async def _at_once(
    sessions: Sessions,
    params: OneServer,
    isolation: Isolation,
    looks: Sequence[Reply],
    changes: Sequence[Reply],
    begin: dict[str, str],
) -> list[Finding]:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(sessions.lease(params))
        two = await stack.enter_async_context(sessions.lease(params))
        for change in changes:
            await one.session.connection.call(change.tool, change.arguments)
        other = await _seen(two.session.connection, looks)
    if different := [look for look in begin if begin[look] != other[look]]:
        look = different[0]
        was, now = difference(begin[look], other[look])
        return [
            problem(
                "isolation",
                f"Of two episodes at once, one sees what the other did: {look} said {was}, and now says {now}.",
                "Rollouts disturb each other, and right answers count as wrong.",
                _ADVICE["per-rollout"]
                if isolation == "per-rollout"
                else "Set instances=1 in the plugin (or --max-servers 1), or keep the state of each process to itself.",
                different,
            )
        ]
    return [ok("isolation", "Of two episodes at once, neither sees what the other does.")]


async def _seen(link: Link, looks: Sequence[Reply]) -> dict[str, str]:
    """What each look says."""
    return {_key(look): _lasting((await link.call(look.tool, look.arguments)).text) for look in looks}


def _lasting(text: str) -> str:
    """The text without times of day and without the name of the process's temporary folder."""
    return _OWN_FOLDER.sub("{tmp}", undated(text))


def _key(look: Reply) -> str:
    return f"{shortened(look.tool)} {shown(look.arguments)}" if look.arguments else shortened(look.tool)


def difference(one: str, other: str) -> tuple[str, str]:
    """Two texts from a little before the place where they begin to differ."""
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, same - 20)
    mark = "…" if start else ""
    return quoted(mark + one[start:], 80), quoted(mark + other[start:], 80)


async def _changed(
    link: Link, changes: Sequence[Reply], looks: Sequence[Reply], begin: dict[str, str]
) -> Sequence[Reply]:
    """Make the changes until the state is seen to be another one; those made. None where it never is."""
    for number, change in enumerate(changes):
        await link.call(change.tool, change.arguments)
        if await _seen(link, looks) != begin:
            return changes[: number + 1]
    return ()


def _unseen(why: str) -> Finding:
    return note(
        "isolation",
        f"Whether episodes are kept apart was not seen: {why}.",
        "It is taken on trust.",
        "Give the server a tool without required arguments that lists its state, annotated read-only.",
    )
