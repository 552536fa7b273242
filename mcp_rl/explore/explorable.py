"""The tools of a server that may be called freely, and those that change nothing."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from mcp_rl.explore.bearing import Bearing, bearing, computes
from mcp_rl.explore.words import words_of
from mcp_rl.toolserver.tool_server import BETWEEN, ToolServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.toolserver.state import MeasuredState
    from mcp_rl.toolserver.tools.listing import Tool


_SECONDS, _CALLS_EACH, _FEWEST = 60.0, 12, 24
"""Seconds for a first look at all tools of a server, the calls that it takes of each, and the tools that are always
looked at."""


def explorable(tools: Sequence[Tool], server: ToolServer) -> list[Tool]:
    """Return the tools that may be called freely, by their annotations or else by their names.

    Where the server's state was measured, every tool may be called, unless the state is out of reach. On a shared
    server, and without a declared isolation, no tool that changes anything may be called. With isolation "layer" or
    "per-rollout", tools annotated as destructive are left out; with "reset", only those that are also annotated as
    reaching outside the server. (MCP specification 2025-06-18, ToolAnnotations; these are hints.)

    Of very many tools whose calls were measured to be slow, those that gave something and some others are returned.
    """
    late = beyond_time(tools, server)
    return [tool for tool in tools if _free(tool, server) and tool not in late]


def beyond_time(tools: Sequence[Tool], server: ToolServer) -> list[Tool]:
    """Return those of the tools that may be called freely and that there is no time for. The same server, measured the
    same, has the same ones. Each server of a group has time of its own."""
    late: list[Tool] = []
    for owner in server.members or (server,):
        own = [tool for tool in tools if server.owner_of(tool.name)[0] is owner]
        if owner.measured is not None and len(own) > _FEWEST:
            late += _late(own, server, owner.measured)
    return late


def _late(own: Sequence[Tool], server: ToolServer, measured: MeasuredState) -> list[Tool]:
    """Return the tools of one measured server that there is no time for; `server` may be the group that it is in."""
    most = max(_FEWEST, int(_SECONDS / (_CALLS_EACH * max(measured.call_seconds, 1e-4))))
    known = {*measured.reading, *measured.changing, *measured.shown_by}

    def order(tool: Tool) -> tuple[bool, bytes]:
        _, name = server.owner_of(tool.name)
        return name not in known, hashlib.sha256(name.encode()).digest()

    return sorted((tool for tool in own if _free(tool, server)), key=order)[most:]


def reads(tool: Tool, server: ToolServer) -> bool:
    """Return whether a tool changes nothing: as it was measured, and else by its annotations and its name."""
    owner, name = server.owner_of(tool.name)
    if owner.measured is None:
        return reads_only(tool)
    return owner.measured.kept == "nothing" or name in owner.measured.reading


def unfit_tools(server: ToolServer) -> set[str]:
    """Return the tools that were measured to take too long, or to answer differently in each process."""
    found = set(server.measured.unfit if server.measured else ())
    for member in server.members:
        found |= {f"{member.name}{BETWEEN}{tool}" for tool in unfit_tools(member)}
    return found


def shows_changes(tool: Tool, server: ToolServer) -> bool:
    """Return whether some tool of the same server may show what this one changes."""
    owner, _ = server.owner_of(tool.name)
    return owner.measured is None or bool(owner.measured.shown_by)


def may_read(tool: Tool, server: ToolServer) -> bool:
    """Return whether a tool that was never seen to work may be one that changes nothing, judging by its name."""
    owner, name = server.owner_of(tool.name)
    changing = owner.measured.changing if owner.measured else ()
    return name not in changing and bearing(tool) in (Bearing.READS, Bearing.UNCLEAR)


def _free(tool: Tool, server: ToolServer) -> bool:
    owner, name = server.owner_of(tool.name)
    if tool.name in server.avoided:
        return False
    if owner.measured is None:
        return reads_only(tool) or _harmless(tool, server.declared_isolation(tool.name))
    return owner.measured.kept != "elsewhere" or name in owner.measured.reading  # nothing else leaves the layer


_CHANGING_VERBS = re.compile(
    "append|clear|close|commit|create|delete|destroy|drop|edit|execute|insert|kill|merge|move|overwrite|patch|post|"
    "publish|purge|push|put|remove|rename|reset|revoke|save|send|set|shutdown|stop|toggle|truncate|unlink|update|"
    "upload|write"
)


def reads_only(tool: Tool) -> bool:
    """Return whether a tool is annotated as read-only, or else has no name that says it changes something."""
    hints = tool.annotations or {}
    if isinstance(hint := hints.get("readOnlyHint"), bool):
        return hint
    if hints.get("destructiveHint") is True:
        return False
    words = words_of(tool.name.rpartition(BETWEEN)[2])
    first = words.split(" ")[0]
    return _CHANGING_VERBS.fullmatch(first) is None and (first != "add" or computes(tool))


def _harmless(tool: Tool, isolation: str) -> bool:
    hints = tool.annotations or {}
    destroys = hints.get("destructiveHint") is True
    if isolation == "reset":
        return not (destroys and hints.get("openWorldHint") is True)
    return isolation in ("layer", "per-rollout") and not destroys
