"""The isolation of episodes on a server: declared, or implied by the annotations of its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.config import Isolation
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_MOST_NAMES = 3


def changing_tools(tools: Iterable[Tool]) -> list[str]:
    """Return the names of the tools that are annotated as destructive or as not read-only.

    Tools without these annotations are not included, although a client may assume the worst of them (MCP specification
    2025-11-25, ToolAnnotations): most servers annotate nothing, and most of those only look things up.
    """
    return [tool.name for tool in tools if _changes(tool)]


def effective_isolation(server: ToolServer, tools: Sequence[Tool]) -> tuple[Isolation, str]:
    """Return the isolation of episodes on this server, and the reason in words."""
    if server.isolation is None:
        return implied_isolation(tools)
    if server.measured is not None:
        return server.isolation, server.measured.reason
    how = f" by its tool {server.reset_tool}" if server.reset_tool else " by a function" if server.reset else ""
    return server.isolation, f"declared{how}"


def implied_isolation(tools: Iterable[Tool]) -> tuple[Isolation, str]:
    """Return the isolation that the tools' annotations imply, and the reason in words.

    It is "per-rollout" if any tool is annotated as changing things, else "shared".
    """
    tools = list(tools)
    changing = changing_tools(tools)
    if changing:
        return "per-rollout", f"undeclared, and {names(changing)} {_are(changing)} annotated as changing things"
    silent = [tool.name for tool in tools if "readOnlyHint" not in tool.annotations]
    if silent:
        return "shared", f"undeclared, and no tool is annotated as changing things ({names(silent)}: not annotated)"
    return "shared", "undeclared, and all tools are annotated as read-only"


def undeclared_notice(tools: Iterable[Tool]) -> str:
    """Return the notice for the user of a server whose undeclared isolation is "per-rollout"."""
    changing = changing_tools(tools)
    return (
        f"No isolation is declared, and {names(changing)} {_are(changing)} annotated as changing things: each episode "
        "gets its own server process, which is slow and undoes nothing outside of it. Declare one with --isolation, or "
        "hide tools from the model with tools.exclude."
    )


def names(tools: Sequence[str]) -> str:
    """Return the first three names, shortened, and the number of the others."""
    shown = ", ".join(shortened(tool, 60) for tool in tools[:_MOST_NAMES])
    return shown + (f" and {len(tools) - _MOST_NAMES} more" if len(tools) > _MOST_NAMES else "")


def _are(tools: Sequence[str]) -> str:
    return "is" if len(tools) == 1 else "are"


def _changes(tool: Tool) -> bool:
    hints = tool.annotations
    if hints.get("readOnlyHint") is True:
        return False
    return hints.get("readOnlyHint") is False or hints.get("destructiveHint") is True
