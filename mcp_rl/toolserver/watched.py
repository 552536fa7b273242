"""A link that knows if its episode has called anything that may leave a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.toolserver.link import Link, WrappedLink

if TYPE_CHECKING:
    from collections.abc import Container

    from mcp_rl.toolserver.tools.results import ToolResult


class WatchedLink(WrappedLink):
    """Passes calls on; `clean` is True while only tools that leave no trace were called."""

    def __init__(self, link: Link, harmless: Container[str]) -> None:
        super().__init__(link)
        self._harmless = harmless
        self.clean = True

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        self.clean = self.clean and tool_name in self._harmless
        return await self._link.call(tool_name, arguments, deadline=deadline)
