"""The tools of a server that may be called freely, and those that change nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.words import words_of
from mcp_rl.toolserver.tool_server import BETWEEN, ToolServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.toolserver.tools.listing import Tool


def explorable(tools: Sequence[Tool], server: ToolServer) -> list[Tool]:
    """Return the tools that may be called freely, by their annotations or else by their names.

    On a shared server, and without a declared isolation, no tool that changes anything may be called. With isolation
    "layer" or "per-rollout", tools annotated as destructive are left out; with "reset", only those that are also
    annotated as reaching outside the server. (MCP specification 2025-06-18, ToolAnnotations; these are hints.)
    """
    return [tool for tool in tools if reads_only(tool) or _harmless(tool, server.declared_isolation(tool.name))]


_CHANGING_VERBS = re.compile(
    "append|clear|close|commit|create|delete|destroy|drop|edit|execute|insert|kill|merge|move|overwrite|patch|post|"
    "publish|purge|push|put|remove|rename|reset|revoke|save|send|set|shutdown|stop|toggle|truncate|unlink|update|"
    "upload|write"
)
_ADDS_SOMETHING = re.compile(r"add (?!two|numbers?|integers?|ints?|floats?|values?|vectors?|matrix|matrices)")
"""`add_note` changes something; `add` and `add_numbers` compute."""


def reads_only(tool: Tool) -> bool:
    """Return whether a tool is annotated as read-only, or else has no name that says it changes something."""
    hints = tool.annotations or {}
    if isinstance(hint := hints.get("readOnlyHint"), bool):
        return hint
    if hints.get("destructiveHint") is True:
        return False
    words = words_of(tool.name.rpartition(BETWEEN)[2])
    return _CHANGING_VERBS.fullmatch(words.split(" ")[0]) is None and _ADDS_SOMETHING.match(words) is None


def _harmless(tool: Tool, isolation: str) -> bool:
    hints = tool.annotations or {}
    destroys = hints.get("destructiveHint") is True
    if isolation == "reset":
        return not (destroys and hints.get("openWorldHint") is True)
    return isolation in ("layer", "per-rollout") and not destroys
