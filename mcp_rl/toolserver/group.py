"""Several servers as one: their tools side by side as `server__tool`, each call sent to the tool's own server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp_rl.toolserver.tool_server import BETWEEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tools.listing import Tool
    from mcp_rl.toolserver.tools.results import ToolResult


def prefixed(server: str, tool: Tool) -> Tool:
    """Return the tool under its name in a group."""
    return replace(tool, name=f"{server}{BETWEEN}{tool.name}")


def unprefixed(server: str, tools: Iterable[Tool]) -> list[Tool]:
    """Return those tools of a group that are the server's, under its own names."""
    prefix = f"{server}{BETWEEN}"
    return [replace(tool, name=tool.name.removeprefix(prefix)) for tool in tools if tool.name.startswith(prefix)]


class GroupLink:
    """A link to several servers, made of a link to each."""

    def __init__(self, links: Mapping[str, Link]) -> None:
        self._links = dict(links)
        self._routes = {
            prefixed(name, tool).name: (link, tool.name) for name, link in links.items() for tool in link.tools
        }
        self.tools = [prefixed(name, tool) for name, link in links.items() for tool in link.tools]

    @property
    def plain_names(self) -> list[str]:
        """The servers' own names of their tools."""
        return [name for _, name in self._routes.values()]

    @property
    def warnings(self) -> list[str]:
        return [f"{name}: {warning}" for name, link in self._links.items() for warning in link.warnings]

    @property
    def server_info(self) -> dict[str, str]:
        return {
            "name": "+".join(link.server_info.get("name", name) for name, link in self._links.items()),
            "version": "+".join(link.server_info.get("version", "") for link in self._links.values()),
        }

    @property
    def alive(self) -> bool:
        return all(link.alive for link in self._links.values())

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        link, name = self._routes[tool_name]
        return await link.call(name, arguments, deadline=deadline)

    async def resources(self) -> list[dict[str, Any]]:
        return [entry for link in self._links.values() for entry in await link.resources()]

    async def ping(self, deadline: float) -> bool:
        return all([await link.ping(deadline) for link in self._links.values()])
