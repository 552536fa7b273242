"""One MCP session over open streams: the handshake, raw requests, and word of its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any

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
        self._tokens = count(1)
        self._options: Any = {}

    @property
    def over(self) -> bool:
        """Whether a request sent now could surely not be answered."""
        return self._dispatcher.over

    @property
    def heard(self) -> float:
        """When the server last answered or said anything, on the loop's clock."""
        return self._dispatcher.heard

    @property
    def server_info(self) -> dict[str, str]:
        info = self._client.server_info
        return {"name": info.name, "version": info.version} if info else {}

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of what the server says that it offers: `tools`, `resources`, `prompts`, …"""
        declared = self._client.server_capabilities
        return frozenset(declared.model_dump(exclude_none=True)) if declared else frozenset()

    async def initialize(self) -> None:
        await self._client.initialize()
        self._options = {"headers": {_PROTOCOL_VERSION_HEADER: self._client.protocol_version or ""}}

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        on_progress: Callable[[], None] | None = None,
        *,
        take_back: bool = True,
    ) -> dict[str, Any]:
        """The result of a request as it came. Raises MCPError where the server, or the SDK for it, reports an error.

        `on_progress` is called whenever the server says that it is at work on the request. (The SDK's own way to hear
        of progress starts a task for each notification.) `take_back`: where the request is cancelled, tell the server,
        which takes seconds where it reads no more.
        """
        token = next(self._tokens)
        if on_progress is not None:
            params = params | {"_meta": (params.get("_meta") or {}) | {"progressToken": token}}
            self._dispatcher.progress[token] = on_progress
        try:
            options = self._options if take_back else self._options | {"cancel_on_abandon": False}
            raw = await self._dispatcher.send_raw_request(method, params, options)
        finally:
            self._dispatcher.progress.pop(token, None)
        self._dispatcher.heard = asyncio.get_running_loop().time()
        return raw

    def give_up(self) -> None:
        """Let nothing more be sent."""
        self._dispatcher.end()


class _Dispatcher(JSONRPCDispatcher):
    """Says when its streams have ended, and hears the notifications that matter here; no other is read."""

    def __init__(self, streams: Streams, on_end: Callable[[], None], on_listing: Callable[[], None]) -> None:
        super().__init__(*streams)
        self.over = False
        self.heard = asyncio.get_running_loop().time()
        self.progress: dict[int, Callable[[], None]] = {}
        """Who wants to hear of the progress of a request, by its token."""
        self._on_end = on_end
        self._on_listing = on_listing

    async def run(self, on_request: Any, on_notify: Any, *_: Any, **options: Any) -> None:
        try:
            await super().run(on_request, on_notify, self._heard, **options)
        finally:
            self.end()

    def _heard(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Called for each notification in the order of their coming. True: it is dealt with."""
        self.heard = asyncio.get_running_loop().time()
        if method == "notifications/progress":
            token = (params or {}).get("progressToken")
            on_progress = self.progress.get(token) if type(token) is int else None
            if on_progress is not None:
                on_progress()
        elif method == "notifications/tools/list_changed":
            self._on_listing()
        return True

    def end(self) -> None:
        self.over = True
        self._on_end()


@asynccontextmanager
async def session_over(
    streams: Streams, *, one_way: bool, on_end: Callable[[], None], on_listing: Callable[[], None]
) -> AsyncIterator[Session]:
    """A session that is not initialized yet.

    `on_end` is called when it is over, by whatever cause; `on_listing` when the server says that its tools changed.
    """
    dispatcher = _Dispatcher(streams, on_end, on_listing)
    us = Implementation(name="mcp-rl", version=_our_version())
    async with ClientSession(dispatcher=dispatcher, client_info=us) as client:
        yield Session(client, dispatcher, one_way=one_way)


def _our_version() -> str:
    try:
        return version("mcp-rl")
    except PackageNotFoundError:
        return "0"
