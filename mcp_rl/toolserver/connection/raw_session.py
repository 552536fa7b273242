"""An MCP session over open streams: the handshake, raw requests, and notice of its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import anyio
from mcp import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.types import Implementation, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from mcp_rl.system.version import own_version
from mcp_rl.toolserver.tools.budgets import LARGEST_REQUEST, MOST_UNREAD, UNREAD_SECONDS, json_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from mcp_rl.system.redaction import Redaction
    from mcp_rl.toolserver.connection.stdio import Streams

_PROTOCOL_VERSION_HEADER = "mcp-protocol-version"


class RawSession:
    """A session for raw requests: a malformed tool or result spoils nothing but itself."""

    def __init__(self, client: ClientSession, dispatcher: _Dispatcher, *, one_way: bool) -> None:
        self.one_way = one_way
        """True if answers come on another channel than requests, as over SSE."""
        self._client = client
        self._dispatcher = dispatcher
        self._tokens = count(1)
        self._options: Any = {}

    @property
    def over(self) -> bool:
        """True once no request can be answered any more."""
        return self._dispatcher.over

    @property
    def flooded(self) -> bool:
        """True once the session was ended because the server does not read the answers to its requests."""
        return self._dispatcher.flooded

    @property
    def heard(self) -> float:
        """When the server last sent an answer or a notification, on the loop's clock."""
        return self._dispatcher.heard

    @property
    def server_info(self) -> dict[str, str]:
        info = self._client.server_info
        return {"name": info.name, "version": info.version} if info else {}

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server declares: `tools`, `resources`, `prompts`, …"""
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
        notify_cancel: bool = True,
    ) -> dict[str, Any]:
        """Send a request and return its raw result. Raises MCPError if the server, or the SDK for it, reports an error.

        `on_progress` is called at every progress notification for the request. (The SDK's own progress callback starts
        a task for each one.) `notify_cancel` tells the server if the request is cancelled, which takes seconds if the
        server reads no more.
        """
        token = next(self._tokens)
        if on_progress is not None:
            params = params | {"_meta": (params.get("_meta") or {}) | {"progressToken": token}}
            self._dispatcher.progress[token] = on_progress
        try:
            options = self._options if notify_cancel else self._options | {"cancel_on_abandon": False}
            raw = await self._dispatcher.send_raw_request(method, params, options)
        finally:
            self._dispatcher.progress.pop(token, None)
        self._dispatcher.heard = asyncio.get_running_loop().time()
        return raw

    def give_up(self) -> None:
        """End the session: nothing more is sent."""
        self._dispatcher.end()


class _Dispatcher(JSONRPCDispatcher):
    """Reports the end of its streams, and handles the notifications that matter here; all others are dropped."""

    def __init__(
        self,
        streams: Streams,
        on_end: Callable[[], None],
        on_listing: Callable[[], None],
        on_flood: Callable[[str], None],
        redaction: Redaction,
    ) -> None:
        reading, writing = streams
        outgoing = _Outgoing(writing)
        super().__init__(_Incoming(reading, outgoing, self._flood, redaction), outgoing)
        self.over = self.flooded = False
        self.heard = asyncio.get_running_loop().time()
        self.progress: dict[int, Callable[[], None]] = {}
        """Progress token to the callback of its request."""
        self._on_end = on_end
        self._on_listing = on_listing
        self._on_flood = on_flood

    async def run(self, on_request: Any, on_notify: Any, *_: Any, **options: Any) -> None:
        try:
            await super().run(on_request, on_notify, self._heard, **options)
        finally:
            self.end()

    def _heard(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Handle a notification, in the order of arrival. Return True, which stops the SDK from handling it too."""
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

    def _flood(self) -> None:
        self.flooded = True
        self._on_flood(f"it sent requests and left {MOST_UNREAD} answers unread")


class _Wrapped:
    """The common part of both streams of a session."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)


class _Outgoing(_Wrapped):
    """The stream of outgoing messages, which counts the answers that the server has not read yet."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._unread = 0
        self._read = anyio.Event()

    async def send(self, item: SessionMessage) -> None:
        if not isinstance(item.message, JSONRPCResponse | JSONRPCError):
            await self._inner.send(item)
            return
        self._unread += 1
        try:
            await self._inner.send(item)
        finally:
            self._unread -= 1
            self._read.set()

    async def keeps_up(self) -> bool:
        """Wait while too many answers are unread; return False if the server reads none for UNREAD_SECONDS."""
        while self._unread >= MOST_UNREAD:
            self._read = anyio.Event()
            with anyio.move_on_after(UNREAD_SECONDS) as scope:
                await self._read.wait()
            if scope.cancelled_caught:
                return False
        return True


class _Incoming(_Wrapped):
    """The stream of incoming messages, which is read no faster than the server reads the answers to its requests.

    Requests wait in memory until they are answered, so large ones are cut. The stream ends, and `on_flood` is called,
    if the server reads no answers. Results and errors come without the secrets that we know: this is where all that a
    server sends enters.
    """

    def __init__(self, inner: Any, outgoing: _Outgoing, on_flood: Callable[[], None], redaction: Redaction) -> None:
        super().__init__(inner)
        self._outgoing, self._on_flood, self._redaction = outgoing, on_flood, redaction

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item = await self._inner.__anext__()
        if not await self._outgoing.keeps_up():
            self._on_flood()
            raise StopAsyncIteration
        return _redacted(_cut(item), self._redaction)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None


def _cut(item: SessionMessage | Exception) -> SessionMessage | Exception:
    """Return a message; a request without large parameters, which no request that we serve has."""
    if isinstance(item, Exception) or not isinstance(item.message, JSONRPCRequest):
        return item
    request = item.message
    if json_size([request.id, request.method], LARGEST_REQUEST) > LARGEST_REQUEST:
        return ValueError("a request with a very long id or method")
    if json_size(request.params, LARGEST_REQUEST) <= LARGEST_REQUEST:
        return item
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method), item.metadata)


def _redacted(item: SessionMessage | Exception, redaction: Redaction) -> SessionMessage | Exception:
    """Return a message without secrets in its result or error."""
    if isinstance(item, Exception):
        return item
    message = item.message
    if isinstance(message, JSONRPCResponse):
        result = redaction.value(message.result)
        return item if result is message.result else _with(item, message.model_copy(update={"result": result}))
    if isinstance(message, JSONRPCError):
        words, data = redaction.text(message.error.message), redaction.value(message.error.data)
        error = message.error.model_copy(update={"message": words, "data": data})
        return _with(item, message.model_copy(update={"error": error}))
    return item


def _with(item: SessionMessage, message: JSONRPCResponse | JSONRPCError) -> SessionMessage:
    return SessionMessage(message, item.metadata)


@asynccontextmanager
async def open_session(
    streams: Streams,
    *,
    one_way: bool,
    on_end: Callable[[], None],
    on_listing: Callable[[], None],
    on_flood: Callable[[str], None],
    redaction: Redaction,
) -> AsyncIterator[RawSession]:
    """Open a session that is not initialized yet.

    `on_end` is called when the session ends for any reason, `on_listing` when the server says that its tools changed,
    `on_flood` with the reason when the session ends because the server does not read the answers to its requests.
    `redaction` applies to results and errors.
    """
    dispatcher = _Dispatcher(streams, on_end, on_listing, on_flood, redaction)
    us = Implementation(name="mcp-rl", version=own_version() or "0")
    async with ClientSession(dispatcher=dispatcher, client_info=us) as client:
        yield RawSession(client, dispatcher, one_way=one_way)
