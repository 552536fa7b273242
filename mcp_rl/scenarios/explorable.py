"""Which tools of a server may be called freely, and which of them change nothing."""

import re
from collections.abc import Sequence

from mcp_rl.plugins.server import BETWEEN, ToolServer
from mcp_rl.scenarios.wording import words_of
from mcp_rl.toolserver.connection import Tool


def explorable(tools: Sequence[Tool], server: ToolServer) -> list[Tool]:
    """Tools that may be called freely, by their annotations and, where there are none, by their names.

    On a shared server nothing may be changed, nor where nobody declared how episodes are kept apart. Where every
    episode has a connection of its own, tools that are said to destroy are left out, and where a reset puts everything
    back only those that are said to destroy something outside the server. (MCP specification 2025-06-18,
    ToolAnnotations; these are hints.)
    """
    return [tool for tool in tools if reads_only(tool) or _harmless(tool, server.isolation_of(tool.name))]


_CHANGING_VERBS = re.compile(
    "append|clear|close|commit|create|delete|destroy|drop|edit|execute|insert|kill|merge|move|overwrite|patch|post|"
    "publish|purge|push|put|remove|rename|reset|revoke|save|send|set|shutdown|stop|toggle|truncate|unlink|update|"
    "upload|write"
)


def reads_only(tool: Tool) -> bool:
    """Whether a tool is annotated as reading only, or has no such annotation and no changing name."""
    hints = tool.annotations or {}
    if isinstance(hint := hints.get("readOnlyHint"), bool):
        return hint
    if hints.get("destructiveHint") is True:
        return False
    verb = words_of(tool.name.rpartition(BETWEEN)[2]).split(" ")[0]
    return _CHANGING_VERBS.fullmatch(verb) is None


def _harmless(tool: Tool, isolation: str) -> bool:
    hints = tool.annotations or {}
    destroys = hints.get("destructiveHint") is True
    if isolation == "reset":
        return not (destroys and hints.get("openWorldHint") is True)
    return isolation == "per-rollout" and not destroys
