"""Which isolation a run would use with a server, and why."""

from collections.abc import Sequence

from mcp_rl.config import Isolation
from mcp_rl.plugins.server import ToolServer
from mcp_rl.servers.visible import shortened
from mcp_rl.toolserver.isolation import changing_tools, implied_isolation
from mcp_rl.toolserver.listing import Tool

_MOST_NAMES = 3


def effective_isolation(server: ToolServer, tools: Sequence[Tool]) -> tuple[Isolation, str]:
    """How episodes are kept apart on this server, and the reason in words."""
    if server.isolation is not None:
        how = f" by its tool {server.reset_tool}" if server.reset_tool else " by a function" if server.reset else ""
        return server.isolation, f"declared{how}"
    changing = changing_tools(tools)
    if changing:
        return (
            implied_isolation(tools),
            f"undeclared, and {names(changing)} {_are(changing)} annotated as changing things",
        )
    silent = [tool.name for tool in tools if "readOnlyHint" not in tool.annotations]
    if silent:
        return ("shared", f"undeclared, and no tool is annotated as changing things ({names(silent)}: not annotated)")
    return "shared", "undeclared, and all tools are annotated as read-only"


def names(tools: Sequence[str]) -> str:
    """The first few names, and how many there are more."""
    shown = ", ".join(shortened(tool, 60) for tool in tools[:_MOST_NAMES])
    return shown + (f" and {len(tools) - _MOST_NAMES} more" if len(tools) > _MOST_NAMES else "")


def _are(tools: Sequence[str]) -> str:
    return "is" if len(tools) == 1 else "are"
