"""An MCP session over open streams: which era is spoken, raw requests, and notice of its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Self, cast

import anyio
from mcp import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.types import ElicitResult, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from mcp_rl.toolserver.connection.era import Agreement, Envelope, negotiate
from mcp_rl.toolserver.sandbox.copied_paths import CopiedPaths
from mcp_rl.toolserver.tools.budgets import (
    LARGEST_FORM,
    LARGEST_REQUEST,
    MOST_UNREAD,
    UNREAD_SECONDS,
    json_size,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from mcp.shared.dispatcher import CallOptions

    from mcp_rl.system.redaction import Redaction
    from mcp_rl.toolserver.connection.stdio import Streams
    from mcp_rl.toolserver.tools.listing import Tool


_ECHOED = ("requestState", "taskId", "nextCursor")
"""Members of a result that go back to the server as they are, and nowhere else."""


class RawSession:
    """A session for raw requests: a malformed tool or result spoils nothing but itself."""

    def __init__(self, dispatcher: _Dispatcher, *, one_way: bool) -> None:
        self.one_way = one_way
        """True if answers come on another channel than requests, as over SSE."""
        self.agreement = Agreement("")
        """The server's description of itself; empty before `begin`."""
        self._dispatcher = dispatcher
        self._tokens = count(1)
        self._envelope = Envelope()
        self.paths = CopiedPaths()
        """The copies that the server works on, whose paths only it sees."""

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
    def modern(self) -> bool:
        """True if every request stands for itself, as from revision 2026-07-28 on."""
        return self.agreement.modern

    @property
    def revision(self) -> str:
        """The protocol revision that is spoken."""
        return self.agreement.revision

    async def begin(self, *, handshake: bool) -> None:
        """Agree with the server on a revision, with the older era's handshake first if `handshake`.

        Raises EraError, EndedAtProbe, or MCPError if the server refuses.
        """

        async def notify(method: str, options: Any) -> None:
            await self._dispatcher.notify(method, None, options)

        self.agreement = await negotiate(self._dispatcher.send_raw_request, notify, handshake=handshake)
        self._envelope = Envelope(self.agreement)

    def learn(self, tools: list[Tool]) -> tuple[list[Tool], list[str]]:
        """Take in the listed tools; return those that can be called, and a warning for each other one."""
        return self._envelope.learn(tools)

    async def listen(self) -> None:
        """Ask a server of the newer era to tell when its tools change; return when it stops. Raises MCPError."""
        wanted = {"notifications": {"toolsListChanged": True}}
        await self.ask("subscriptions/listen", wanted, notify_cancel=False)

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
        server reads no more. A server of the newer era, which has no `ping`, is asked who it is.
        """
        if method == "ping" and self.modern:
            method = "server/discover"
        token = next(self._tokens)
        if on_progress is not None:
            params = params | {"_meta": (params.get("_meta") or {}) | {"progressToken": token}}
            self._dispatcher.progress[token] = on_progress
        params, options = self._envelope.around(method, self.paths.for_server(params))
        if not notify_cancel:
            options["cancel_on_abandon"] = False
        try:
            raw = await self._dispatcher.send_raw_request(method, params, cast("CallOptions", options))
        finally:
            self._dispatcher.progress.pop(token, None)
        self._dispatcher.heard = asyncio.get_running_loop().time()
        return cast("dict[str, Any]", self.paths.from_server(raw))

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
    most = LARGEST_FORM if request.method == "elicitation/create" else LARGEST_REQUEST
    if json_size(request.params, most) <= most:
        return item
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method), item.metadata)


def _redacted(item: SessionMessage | Exception, redaction: Redaction) -> SessionMessage | Exception:
    """Return a message without secrets in its result or error."""
    if isinstance(item, Exception):
        return item
    message = item.message
    if isinstance(message, JSONRPCResponse):
        result = redaction.value(message.result)
        if result is not message.result:
            result |= {name: message.result[name] for name in _ECHOED if name in message.result}
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
    on_question: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
    redaction: Redaction,
) -> AsyncIterator[RawSession]:
    """Open a session, which `begin` begins.

    `on_end` is called when the session ends for any reason, `on_listing` when the server says that its tools changed,
    `on_flood` with the reason when the session ends because the server does not read the answers to its requests.
    `on_question` answers a request `elicitation/create` with these parameters.
    `redaction` applies to results and errors.
    """

    async def elicited(context: Any, params: Any) -> ElicitResult:
        asked = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        return ElicitResult.model_validate(await on_question(asked))

    dispatcher = _Dispatcher(streams, on_end, on_listing, on_flood, redaction)
    async with ClientSession(dispatcher=dispatcher, elicitation_callback=elicited):
        yield RawSession(dispatcher, one_way=one_way)
