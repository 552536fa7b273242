"""How episodes are kept apart where nobody declared it: by what the tools' annotations say."""

from collections.abc import Iterable

from mcp_rl.config import Isolation
from mcp_rl.toolserver.listing import Tool


def changing_tools(tools: Iterable[Tool]) -> list[str]:
    """Names of the tools that are annotated as destructive or as not read-only.

    A tool without these annotations is not among them, though a client may assume the worst of it (MCP specification
    2025-11-25, ToolAnnotations): most servers annotate nothing, and most of those only look things up.
    """
    return [tool.name for tool in tools if _changes(tool)]


def implied_isolation(tools: Iterable[Tool]) -> Isolation:
    """ "per-rollout" where any tool is annotated as changing something, else "shared"."""
    return "per-rollout" if changing_tools(tools) else "shared"


def on_undeclared_isolation(tools: Iterable[Tool]) -> str:
    """What the user of a server with such tools ought to know."""
    names = changing_tools(tools)
    some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return (
        f"Nobody declared how episodes are kept apart, and {some} {'is' if len(names) == 1 else 'are'} annotated as "
        "changing something: each episode gets a server process of its own, which is slow and undoes nothing "
        "outside of it. --isolation declares it; tools.exclude keeps tools from the model."
    )


def _changes(tool: Tool) -> bool:
    hints = tool.annotations
    if hints.get("readOnlyHint") is True:
        return False
    return hints.get("readOnlyHint") is False or hints.get("destructiveHint") is True
