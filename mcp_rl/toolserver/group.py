"""Several servers as one: their tools side by side, each as `server__tool`, each call sent to the one it belongs to."""

from collections.abc import Mapping
from typing import Any

from mcp_rl.plugins.server import BETWEEN
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.results import ToolResult


def prefixed(server: str, tool: Tool) -> Tool:
    """The tool under the name that it has beside those of other servers."""
    return Tool(
        f"{server}{BETWEEN}{tool.name}",
        tool.description,
        tool.input_schema,
        tool.output_schema,
        tool.annotations,
        tool.title,
    )


class Together:
    """A link to several servers; made of a link to each."""

    def __init__(self, links: Mapping[str, Link]) -> None:
        self._links = dict(links)
        self.tools = [prefixed(name, tool) for name, link in links.items() for tool in link.tools]
        self._routes = {f"{name}{BETWEEN}{tool.name}": (link, tool.name) for name, link in links.items()
                        for tool in link.tools}  # fmt: skip

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
