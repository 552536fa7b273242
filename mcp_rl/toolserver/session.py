"""One MCP session over open streams: the handshake, raw requests, and word of its end."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
from mcp import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.types import Implementation

from mcp_rl.toolserver.transport import Streams

_PROTOCOL_VERSION_HEADER = "mcp-protocol-version"


class Session:
    """Raw requests, so that one malformed tool or result costs no more than itself."""

    def __init__(self, client: ClientSession, dispatcher: "_Dispatcher", *, one_way: bool) -> None:
        self.one_way = one_way
        """Whether answers come on another channel than the one requests go out on, as they do over SSE."""
        self._client = client
        self._dispatcher = dispatcher

    @property
    def over(self) -> bool:
        """Whether a request sent now could surely not be answered."""
        return self._dispatcher.over

    @property
    def server_info(self) -> dict[str, str]:
        info = self._client.server_info
        return {"name": info.name, "version": info.version} if info else {}

    async def initialize(self) -> None:
        await self._client.initialize()

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request as it came. Raises MCPError where the server, or the SDK for it, reports an error."""
        protocol = self._client.protocol_version or ""
        return await self._dispatcher.send_raw_request(
            method, params, {"headers": {_PROTOCOL_VERSION_HEADER: protocol}}
        )

    def give_up(self) -> None:
        """Let nothing more be sent."""
        self._dispatcher.end()


class _Dispatcher(JSONRPCDispatcher):
    """Says when its streams have ended."""

    def __init__(self, streams: Streams, on_end: Callable[[], None]) -> None:
        super().__init__(*streams)
        self.over = False
        self._on_end = on_end

    async def run(self, *args: Any, **options: Any) -> None:
        try:
            await super().run(*args, **options)
        finally:
            self.end()

    def end(self) -> None:
        self.over = True
        self._on_end()


@asynccontextmanager
async def session_over(streams: Streams, *, one_way: bool, on_end: Callable[[], None]) -> AsyncIterator[Session]:
    """A session that is not initialized yet. `on_end` is called when it is over, by whatever cause."""
    dispatcher = _Dispatcher(streams, on_end)
    us = Implementation(name="mcp-rl", version=_our_version())
    async with ClientSession(dispatcher=dispatcher, client_info=us) as client:
        yield Session(client, dispatcher, one_way=one_way)


class Steps:
    """The step that a session is in, with its deadline, in one cancel scope around all of it.

    A scope for each step could not be closed while the contexts opened in it stay open.
    """

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self.scope = anyio.CancelScope()
        self.name = ""

    @property
    def seconds(self) -> float:
        return self._seconds.get(self.name, math.inf)

    def begin(self, name: str) -> None:
        self.name = name
        self.scope.deadline = anyio.current_time() + self.seconds


def _our_version() -> str:
    try:
        return version("mcp-rl")
    except PackageNotFoundError:
        return "0"
