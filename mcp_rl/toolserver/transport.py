"""The three transports behind one door: a pair of message streams, open for as long as the context is."""

import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from ssl import SSLContext
from typing import Any, Protocol
from urllib.request import getproxies

import httpx2
from anyio.abc import Process
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INVALID_REQUEST

from mcp_rl.processes.process_log import ProcessLog
from mcp_rl.scenario import OneServer, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.launch import expand, expand_variables, launched
from mcp_rl.toolserver.stdio import LONGEST_MESSAGE, stdio_streams

# What goes wrong on a connection is told by our own errors; without a handler of its own, the SDK's tracebacks would
# land on the user's terminal.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

Streams = tuple[Any, Any]
_OF_THE_BODY = ("content-length", "content-encoding", "transfer-encoding")


class Delivery(Protocol):
    """Learns what became of the HTTP request that carries it."""

    def answered(self, status: int) -> None: ...

    def broke(self, error: Exception, *, never_sent: bool) -> None: ...


carried: ContextVar[Delivery | None] = ContextVar("carried", default=None)
"""The call on whose behalf a message is sent. The SDK sends in the context of the sender."""


@asynccontextmanager
async def reachable(
    params: OneServer, *, whose: str, log: ProcessLog, deadline: float
) -> AsyncIterator[tuple[OneServer, Process | None]]:
    """Start the process of a network server where it is ours to start; yields where to connect."""
    if isinstance(params, StdioServer):
        yield params, None
        return
    if params.launch is None:
        yield params.model_copy(update={"url": expand(params.url, whose=whose)}), None
        return
    async with launched(params.launch, params.url, whose=whose, log=log, deadline=deadline) as (url, process):
        yield params.model_copy(update={"url": url}), process


@asynccontextmanager
async def open_streams(params: OneServer, *, whose: str, log: ProcessLog, deadline: float) -> AsyncIterator[Streams]:
    """Open the transport. `deadline`, in seconds, is for connecting; all else has the caller's."""
    match params:
        case StdioServer():
            async with stdio_streams(params, whose=whose, log=log) as (reading, writing):
                yield reading, writing
        case SseServer():
            client = _client(params, whose, deadline)

            def same_client(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
                return client

            async with sse_client(params.url, httpx_client_factory=same_client) as (reading, writing):
                yield reading, writing
        case StreamableHttpServer():
            async with (
                _client(params, whose, deadline) as client,
                streamable_http_client(params.url, http_client=client, **_event_limit()) as (reading, writing),
            ):
                yield reading, writing


@cache
def _event_limit() -> dict[str, Any]:
    """The longest event, where the SDK has a limit of its own: a megabyte, and what is longer is no answer."""
    known = "max_sse_event_size" in signature(streamable_http_client).parameters
    return {"max_sse_event_size": LONGEST_MESSAGE} if known else {}


class _Client(httpx2.AsyncClient):
    """Tells each call what became of the request that carried it.

    An error on the way of one message would end the SDK's transport with all that is under way in it; such a message
    gets a status for an answer, and what is too long an error in its place.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        call = carried.get()
        try:
            response = await super().send(request, **options)
            if call is not None:
                call.answered(response.status_code)
            if request.method == "POST" and response.headers.get("content-type", "").startswith("application/json"):
                return await _read_whole(request, response)
        except httpx2.TransportError as error:
            if call is not None:
                call.broke(error, never_sent=isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout))
            if request.method != "POST":
                raise
            return httpx2.Response(502, request=request)
        return response


async def _read_whole(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """The response with its body; where that is too long, a response with an error."""
    said = response.headers.get("content-length", "")
    length = int(said) if said.isdecimal() else None
    if length is not None and length <= LONGEST_MESSAGE and "content-encoding" not in response.headers:
        await response.aread()
        return response
    body = await _body_within(LONGEST_MESSAGE, response) if length is None or length <= LONGEST_MESSAGE else None
    await response.aclose()
    headers = {name: value for name, value in response.headers.items() if name not in _OF_THE_BODY}
    if body is None:
        words = f"The answer is longer than {LONGEST_MESSAGE // 2**20} MB, and more is not read."
        error = {"code": INVALID_REQUEST, "message": words}
        body = json.dumps({"jsonrpc": "2.0", "id": json.loads(request.content).get("id"), "error": error}).encode()
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


async def _body_within(longest: int, response: httpx2.Response) -> bytes | None:
    """The body, unpacked; None where it is longer."""
    parts, size = [], 0
    async for part in response.aiter_bytes(65536):
        parts.append(part)
        size += len(part)
        if size > longest:
            return None
    return b"".join(parts)


@cache
def _tls() -> SSLContext:
    """Building one takes 25 ms or more, so there is one for the process; clients share nothing else."""
    return httpx2.create_ssl_context()


def _kept_alive() -> list[tuple[int, int, int]]:
    """Socket options, so that nothing on the way forgets a connection that rests for hours, and one whose other end has
    gone without a word ends within two minutes."""
    seconds = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 5}
    known = [(getattr(socket, name), value) for name, value in seconds.items() if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *((socket.IPPROTO_TCP, *option) for option in known)]


def _client(params: SseServer | StreamableHttpServer, whose: str, deadline: float) -> _Client:
    ours = params.launch is not None  # and so on this machine, behind no proxy
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    direct = None
    if ours or not getproxies():  # a transport of one's own would bypass them
        direct = httpx2.AsyncHTTPTransport(
            verify=_tls(), limits=limits, trust_env=not ours, socket_options=_kept_alive()
        )
    return _Client(
        headers=expand_variables(params.headers, whose=whose),
        timeout=httpx2.Timeout(None, connect=deadline),
        limits=limits,
        verify=_tls(),
        trust_env=not ours,
        transport=direct,
    )
