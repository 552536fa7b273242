"""The three transports behind one function: a pair of message streams, open while its context is."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies
from weakref import WeakKeyDictionary, WeakSet

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INVALID_REQUEST

from mcp_rl.errors import LoginNeeded
from mcp_rl.scenario import OneServer, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.connection.bodies import UNCOMPRESSED, is_event_stream, limit_body
from mcp_rl.toolserver.connection.launch import expand, expand_variables, launched
from mcp_rl.toolserver.connection.stdio import LONGEST_MESSAGE, Streams, stdio_streams
from mcp_rl.toolserver.logins.renewal import kept_login
from mcp_rl.toolserver.tools.budgets import MOST_VALUES, has_too_many_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from ssl import SSLContext

    from anyio.abc import Process

    from mcp_rl.system.processes.process_log import ProcessLog
    from mcp_rl.toolserver.connection.call import Delivery
    from mcp_rl.toolserver.sandbox.layer import Layer

# Our own errors report failures; without a handler, the SDK's tracebacks would appear on the user's terminal.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

_MOST_OPENED = 50
"""Streams of one message that are opened in turn, since the SDK opens each inside the one before."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds before a stream is opened again; the server may suggest more."""
_BODY_HEADERS = ("content-length", "content-encoding", "transfer-encoding")


current_delivery: ContextVar[Delivery | None] = ContextVar("current delivery", default=None)
"""The delivery that an HTTP request belongs to. The SDK sends in the context of the caller."""


@asynccontextmanager
async def reachable(
    params: OneServer, *, server: str, log: ProcessLog, deadline: float, layer: Layer | None = None
) -> AsyncIterator[tuple[OneServer, Process | None]]:
    """Start the process of a network server if `params` say how; give the parameters to connect with."""
    if isinstance(params, StdioServer):
        yield params, None
        return
    if params.launch is None:
        yield params.model_copy(update={"url": expand(params.url, server=server)}), None
        return
    launching = launched(params.launch, params.url, server=server, log=log, deadline=deadline, layer=layer)
    async with launching as (url, process):
        yield params.model_copy(update={"url": url}), process


@asynccontextmanager
async def open_streams(
    params: OneServer, *, server: str, log: ProcessLog, deadline: float, layer: Layer | None = None
) -> AsyncIterator[Streams]:
    """Open the transport. `deadline`, in seconds, limits connecting; the caller limits everything else."""
    match params:
        case StdioServer():
            async with stdio_streams(params, server=server, log=log, layer=layer) as (reading, writing):
                yield reading, writing
        case SseServer():
            client = _client(params, server, deadline)

            def same_client(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
                return client

            async with sse_client(params.url, httpx_client_factory=same_client) as (reading, writing):
                yield reading, writing
        case StreamableHttpServer():
            async with (
                _client(params, server, deadline) as client,
                streamable_http_client(params.url, http_client=client, **_event_limit()) as (reading, writing),
            ):
                yield reading, writing


@cache
def _event_limit() -> dict[str, Any]:
    """Return the option that raises the SDK's limit on an event (1 MB) to ours, in versions that have one."""
    known = "max_sse_event_size" in signature(streamable_http_client).parameters
    return {"max_sse_event_size": LONGEST_MESSAGE} if known else {}


class _Client(httpx2.AsyncClient):
    """Reports the fate of each HTTP request to its `Delivery`.

    A transport error of one message would end the SDK's transport and every request in flight, so such a message is
    answered with an HTTP status instead. No body is read beyond LONGEST_MESSAGE, whatever its type: an answer that is
    longer becomes an error. Only event streams are passed on unread, and the SDK limits each of their events. A stream
    that ends is opened again by the SDK as soon as the server wants, and as often: here it waits, and is given up.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opened: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """How often each task, one for each message and one for the server's own messages, has opened a stream."""
        self._sending: WeakSet[Any] = WeakSet()
        """The tasks that have sent a message."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        delivery = current_delivery.get()
        task = asyncio.current_task()
        if request.method == "POST":
            self._sending.add(task)
        elif request.method == "GET" and not await self._may_open(task):
            return httpx2.Response(502, request=request)
        try:
            streamed = options.pop("stream", False)
            response = await super().send(request, stream=True, **options)  # else the body would be read here, whole
            if delivery is not None:
                delivery.answered(response.status_code)
            if not (streamed and is_event_stream(response)):
                return await _read_whole(request, response)
        except LoginNeeded as error:
            if delivery is not None:
                delivery.halt(error)
            return httpx2.Response(401, request=request)
        except httpx2.TransportError as error:
            if delivery is not None:
                delivery.broke(error, never_sent=isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout))
            if request.method != "POST":
                raise
            return httpx2.Response(502, request=request)
        return response

    async def _may_open(self, task: Any) -> bool:
        """Wait the longer, the more often a task has opened a stream; return whether it may open another one."""
        before = self._opened.get(task, 0)
        self._opened[task] = before + 1
        if before:
            await asyncio.sleep(min(_SHORTEST_PAUSE * 2 ** min(before, 9), _LONGEST_PAUSE))
        return before < _MOST_OPENED or task not in self._sending


async def _read_whole(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """Return the response with its body, or with a JSON-RPC error if the body is too long or has too many values."""
    body = await _body_within(LONGEST_MESSAGE, response)
    await response.aclose()
    headers = {name: value for name, value in response.headers.items() if name not in _BODY_HEADERS}
    words = None
    if body is None:
        words = f"The answer is longer than the limit of {LONGEST_MESSAGE // 2**20} MB."
    elif has_too_many_values(body):
        words = f"The answer has more than {MOST_VALUES:,} values, which is the limit."
    if words is not None:
        error = {"code": INVALID_REQUEST, "message": words}
        number = json.loads(request.content).get("id") if request.method == "POST" else None
        body = json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()
        headers["content-type"] = "application/json"
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


async def _body_within(longest: int, response: httpx2.Response) -> bytes | None:
    """Return the body, or None if it is longer."""
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) > len(str(longest)):
        return None
    if declared.isdecimal() and int(declared) > longest:
        return None
    parts, size = [], 0
    async for part in response.aiter_bytes(65536):
        parts.append(part)
        size += len(part)
        if size > longest:
            return None
    return b"".join(parts)


@cache
def _tls() -> SSLContext:
    """Return the TLS context that all clients share, since building one takes 25 ms or more."""
    return httpx2.create_ssl_context()


def _kept_alive() -> list[tuple[int, int, int]]:
    """Return socket options that keep idle connections open for hours, and end one whose peer vanished within two
    minutes."""
    seconds = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 5}
    known = [(getattr(socket, name), value) for name, value in seconds.items() if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *((socket.IPPROTO_TCP, *option) for option in known)]


def _client(params: SseServer | StreamableHttpServer, server: str, deadline: float) -> _Client:
    ours = params.launch is not None  # so it is on this machine and needs no proxy
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    direct = None
    if ours or not getproxies():  # an explicit transport would bypass proxies
        direct = httpx2.AsyncHTTPTransport(
            verify=_tls(), limits=limits, trust_env=not ours, socket_options=_kept_alive()
        )
    return _Client(
        headers=UNCOMPRESSED | expand_variables(params.headers, server=server),
        event_hooks={"response": [limit_body]},
        timeout=httpx2.Timeout(None, connect=deadline),
        limits=limits,
        verify=_tls(),
        trust_env=not ours,
        transport=direct,
        auth=None if ours else kept_login(params.url, server=server),
    )
