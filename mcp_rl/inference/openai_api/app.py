"""The service over HTTP: keys, limits, statuses, server-sent events. A client that disconnects ends its turns."""

from __future__ import annotations

import hmac
import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from mcp_rl.inference.openai_api.bodies import Bodies
from mcp_rl.inference.openai_api.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mcp_rl.inference.openai_api.service import Handler, HttpReply, Service

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_OPEN = {"/health"}


def make_app(
    service: Service,
    *,
    key: str | None = None,
    keys: Mapping[str, Service] | None = None,
    bodies: Bodies | None = None,
) -> ASGIApp:
    """Return the application. `bodies` limits the bodies of its requests.

    With a key, every request but /health needs it as a bearer token or in the header x-api-key; `keys` gives each of
    several keys a service of its own, and may change. Without any, only requests that name this machine by its loopback
    address are answered, so that no web page can make a browser send one.
    """
    return _Door(service, keys if key is None else {key: service}, bodies or Bodies())


class _Door:
    """The ASGI application: checks a request, then hands it to the service."""

    def __init__(self, service: Service, keys: Mapping[str, Service] | None, bodies: Bodies) -> None:
        self._service, self._keys, self._bodies = service, keys, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        with self._bodies.holding() as held, suppress(ClientDisconnect):
            try:
                service, handler = self._find(request)  # before the body is read
                body = await self._bodies.read(request, held) if request.method == "POST" else b""
            except Refusal as refusal:
                said = refusal.body_at(scope["path"])
                await JSONResponse(said, refusal.status, refusal.headers)(scope, receive, send)
                return
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
                reply = await service.answer(handler, body, scope["path"])
                await _send(reply, scope, receive, send)
                tasks.cancel_scope.cancel()

    def _find(self, request: Request) -> tuple[Service, Handler]:
        """Find the service and the handler of a request. Raises Refusal for a client that may not ask."""
        path = request.scope["path"]
        service = self._service if path in _OPEN else self._admit(request)
        handler = service.handler(request.method, path if path == "/" else path.rstrip("/"))
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind != "application/json":
            raise Refusal("The request needs the header Content-Type: application/json.", status=415)
        return service, handler

    def _admit(self, request: Request) -> Service:
        if self._keys is None:
            if _host(request.headers.get("host", "")) not in _LOOPBACK:
                raise Refusal("Without a key, only requests to 127.0.0.1 or localhost are answered.", status=403)
            return self._service
        bearer, own = (request.headers.get(name, "").encode() for name in ("authorization", "x-api-key"))
        for key, service in self._keys.items():
            if hmac.compare_digest(bearer, f"Bearer {key}".encode()) or hmac.compare_digest(own, key.encode()):
                return service
        raise Refusal(
            "The API key is missing or wrong; it goes into the header Authorization: Bearer KEY, or x-api-key: KEY.",
            status=401,
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _send(reply: HttpReply, scope: Scope, receive: Receive, send: Send) -> None:
    if reply.events is None:
        await _json(reply)(scope, receive, send)
        return
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    async with aclosing(reply.events) as events:
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        async for event in events:
            await send(_chunk(event, more=True))
        await send(_chunk(b"", more=False))


def _chunk(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _json(reply: HttpReply) -> Response:
    """Respond in ASCII, in which half of a surrogate pair, which a model can say, goes through."""
    return Response(json.dumps(reply.body).encode(), reply.status, dict(reply.headers), "application/json")


def _host(header: str) -> str:
    """Return the name in a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
