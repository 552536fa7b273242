"""What a rollout has of a tool server, whatever stands behind it.

A connection is a link. A recording played back, several servers together and a server whose resources are offered as
tools are others, which have a link or several in them.
"""

from typing import Any, Protocol

from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.results import ToolResult


class Link(Protocol):
    """Tools that can be called."""

    @property
    def tools(self) -> list[Tool]:
        """In the order of the listing."""
        ...

    @property
    def warnings(self) -> list[str]:
        """A sentence for each tool that was left out."""
        ...

    @property
    def server_info(self) -> dict[str, str]:
        """Name and version, as the server says."""
        ...

    @property
    def alive(self) -> bool:
        """Whether a call has a chance."""
        ...

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        """Call a tool by the server's own name for it. `deadline` is in seconds; None: the link's own.

        What the tool or the server reports about the call is in the result, with `is_error`. Raises ServerFault where
        the world failed, RunStop where the run cannot go on.
        """
        ...

    async def resources(self) -> list[dict[str, Any]]:
        """The resources as the server describes them, each with a `uri`; none where it lists none."""
        ...
