"""An `AsyncOpenAI` client whose requests never leave the process: no port, no server, the same answers.

The turn is sampled in the task that asks, so cancelling that task ends the turn.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import httpx2

from mcp_rl.inference.openai_api.refusals import Refusal
from mcp_rl.inference.openai_api.service import Events, HttpReply, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai import AsyncOpenAI

_ADDRESS = "http://in-process/v1"


def openai_client(service: Service, **options: Any) -> AsyncOpenAI:
    """Return a client of the service; `options` are those of AsyncOpenAI."""
    from openai import AsyncOpenAI

    http = httpx2.AsyncClient(transport=_Transport(service), timeout=None)
    defaults = {"base_url": _ADDRESS, "api_key": "none", "timeout": None}
    return AsyncOpenAI(http_client=cast("Any", http), **(defaults | options))


class _Transport(httpx2.AsyncBaseTransport):
    """Hands requests to the service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            handler = self._service.handler(request.method, request.url.path)
        except Refusal as refusal:
            return _response(HttpReply(refusal.status, refusal.body_at(request.url.path)))
        return _response(await self._service.answer(handler, await request.aread(), request.url.path))


class _Events(httpx2.AsyncByteStream):
    def __init__(self, events: Events) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            yield event

    async def aclose(self) -> None:
        await self._events.aclose()


def _response(reply: HttpReply) -> httpx2.Response:
    headers = dict(reply.headers)
    if reply.events is not None:
        return httpx2.Response(
            reply.status, headers={**headers, "content-type": "text/event-stream"}, stream=_Events(reply.events)
        )
    body = json.dumps(reply.body).encode()
    return httpx2.Response(reply.status, headers={**headers, "content-type": "application/json"}, content=body)
