"""Middleware that vLLM's server loads: no request without the key, whatever its path.

vLLM itself demands the key under /v1 only. Other paths load adapters, run methods in every worker or answer prompts,
and anyone who shares the machine can reach a port on loopback. Standard library only.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_OPEN = ("/health",)


class Guard:
    """ASGI middleware: answer 401 to HTTP requests without `Authorization: Bearer KEY`, and refuse web sockets."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._expected = b"Bearer " + os.environ["VLLM_API_KEY"].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._may_pass(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _may_pass(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return scope["path"] in _OPEN or hmac.compare_digest(given, self._expected)
