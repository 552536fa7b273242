"""The two links of a cassette: one that keeps what a live link does, and one that does it again without any server."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from mcp_rl.errors import ServerFault
from mcp_rl.toolserver.cassette.library import BEGINNING, Listing, Outcome, following
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.results import ToolResult

if TYPE_CHECKING:
    from mcp_rl.toolserver.cassette.cassette import Cassette

_RESOURCES = "resources/list"


class Recorder:
    """A live link whose calls are kept. `after` is None for a server without a state."""

    def __init__(self, cassette: "Cassette", link: Link, server: str, after: str | None) -> None:
        self._cassette, self._link, self._server, self._after = cassette, link, server, after
        self._learn()

    @property
    def tools(self) -> list[Tool]:
        return self._link.tools

    @property
    def warnings(self) -> list[str]:
        return self._link.warnings

    @property
    def server_info(self) -> dict[str, str]:
        return self._link.server_info

    @property
    def alive(self) -> bool:
        return self._link.alive

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        ask = self._cassette.ask(self._server, self._learn(), self._after, tool_name, arguments)
        self._after = following(self._after, tool_name, ask.key.arguments)
        try:
            result = await self._link.call(tool_name, arguments, deadline=deadline)
        except ServerFault as fault:
            ended = not self._link.alive
            if not (ended and fault.delivered is False and ask.key.after == BEGINNING):
                self._cassette.keep(ask, Outcome(None, str(fault), fault.delivered, ended))
            # else the link was dead before its first call, and whoever leases it tries another one
            raise
        self._cassette.keep(ask, Outcome(result))
        return result

    async def resources(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._asked(_RESOURCES, {}, self._link.resources)
        return found

    async def _asked(self, method: str, params: dict[str, Any], send: Callable[[], Awaitable[Any]]) -> Any:
        """What `send` gives: a request that is no call and changes nothing."""
        ask = self._cassette.ask(self._server, self._learn(), self._after, method, params)
        try:
            answer = await send()
        except ServerFault as fault:
            self._cassette.keep(ask, Outcome(None, str(fault), fault.delivered, not self._link.alive), is_call=False)
            raise
        self._cassette.keep(ask, Outcome(ToolResult("", answer)), is_call=False)
        return answer

    def _learn(self) -> str:
        link = self._link
        return self._cassette.learn(self._server, link.tools, link.warnings, link.server_info)


class Player:
    """A link with no server: what it has and gives was recorded. It does not take the time that the server took."""

    def __init__(self, cassette: "Cassette", listing: Listing, after: str | None) -> None:
        self.tools = listing.tools
        self.warnings = listing.warnings
        self.server_info = listing.server_info
        self.alive = True
        self._cassette, self._listing, self._after = cassette, listing, after

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        ask = self._cassette.ask(self._listing.server, self._listing.schema, self._after, tool_name, arguments)
        self._after = following(self._after, tool_name, ask.key.arguments)
        await checkpoint()
        return self._play(self._cassette.find(ask))

    async def resources(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._asked(_RESOURCES, {})
        return found

    async def _asked(self, method: str, params: dict[str, Any]) -> Any:
        ask = self._cassette.ask(self._listing.server, self._listing.schema, self._after, method, params)
        await checkpoint()
        return self._play(self._cassette.find(ask)).structured

    def _play(self, outcome: Outcome) -> ToolResult:
        self.alive = self.alive and not outcome.ended
        return outcome.play()
