"""Limits on connections, for clients that open many and send nothing, or bytes at long intervals.

uvicorn has no deadline for a request's headers. Here a connection that waits for a request has HEADER_SECONDS for the
whole of its headers, and beyond the limit on connections the one that waited longest is closed for a new one: those
that hold connections open lose them, and requests in progress are left alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_rl.inference.openai_api.refusals import failed

if TYPE_CHECKING:
    import asyncio

HEADER_SECONDS = 10.0
"""Time for the headers of a request, from the connection or from the end of the answer before."""
ACCEPTED_AT_ONCE = 16
"""Connections accepted before the limit is looked at. asyncio accepts as many as its backlog in one go, and writes a
traceback for each beyond the limit on open files."""


def limited_protocol(most: int) -> type[H11Protocol]:
    """Return the protocol of a server with at most this number of open connections."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"most": most, "waiting": {}})


class _LimitedProtocol(H11Protocol):
    most: int
    waiting: dict[H11Protocol, asyncio.TimerHandle]
    """The connections without a request in progress, the one that has waited longest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) <= self.most:
            return
        oldest = next(iter(self.waiting))
        self._stop_waiting(oldest)
        if oldest is self:
            transport.write(_busy(self.most))
            transport.close()
        else:
            oldest.transport.abort()
            self.connections.discard(oldest)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_waiting(self)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()  # may begin the next request, which was sent already

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting(self)
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting(self)
        self.waiting[self] = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_waiting(self, connection: H11Protocol) -> None:
        if timer := self.waiting.pop(connection, None):
            timer.cancel()


def _busy(most: int) -> bytes:
    refusal = failed(f"{most} connections are busy already; try again later.", status=503, again=True)
    body = json.dumps(refusal.body).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nretry-after: 5\r\nconnection: close"
    return f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n\r\n".encode() + body
