"""The bodies of requests: each within its size and its time, all of them together within one budget.

When the budget is spent, the largest body that is still arriving is given up, so that bodies which never end do not
keep short requests out.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from mcp_rl.inference.openai_api.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

MAX_BODY = 16 * 2**20
"""Largest body in bytes: a context of a million tokens fits."""
MOST_BYTES = 8 * MAX_BODY
"""Bytes of all bodies together, from their arrival to the end of the answer."""
BODY_SECONDS = 60.0
"""Time in which a body must have arrived."""


@dataclass(eq=False)
class Held:
    """The body of one request."""

    size: int = 0
    arriving: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    given_up: bool = False


class Bodies:
    """The bodies of all requests in progress."""

    def __init__(self, max_body: int = MAX_BODY, most_bytes: int = MOST_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._max_body, self._most_bytes, self._seconds = max_body, most_bytes, seconds
        self._arriving: set[Held] = set()
        self._total = 0

    @contextmanager
    def holding(self) -> Iterator[Held]:
        """Make room for the body of one request, which counts until the context is left."""
        held = Held()
        try:
            yield held
        finally:
            self._total -= held.size

    async def read(self, request: Request, held: Held) -> bytes:
        """Read the whole body. Raises Refusal where it is too long (by its header, before it is read) or too slow, and
        ClientDisconnect."""
        said = request.headers.get("content-length", "0")
        if not said.isdecimal() or int(said) > self._max_body:
            raise self._too_long()
        body = bytearray()
        held.arriving = anyio.CancelScope(deadline=anyio.current_time() + self._seconds)
        self._arriving.add(held)
        try:
            with held.arriving:
                async for part in request.stream():
                    body += part
                    if len(body) > self._max_body:
                        raise self._too_long()
                    self._count(held, len(part))
                    if held.given_up:
                        break
        finally:
            self._arriving.discard(held)
        if held.given_up:
            message = "Too many long requests are arriving at once; try again in a moment."
            raise Refusal(message, status=503, kind="server_error", headers={"retry-after": "5", **_CLOSE})
        if held.arriving.cancelled_caught:
            raise Refusal(f"The body did not arrive within {self._seconds:g} s.", status=408, headers=_CLOSE)
        return bytes(body)

    def _count(self, held: Held, size: int) -> None:
        held.size += size
        self._total += size
        if self._total > self._most_bytes:
            largest = max(self._arriving, key=lambda body: body.size)
            self._arriving.discard(largest)
            self._total, largest.size = self._total - largest.size, 0
            largest.given_up = True
            largest.arriving.cancel()

    def _too_long(self) -> Refusal:
        return Refusal(f"The body is longer than {self._max_body} bytes.", status=413, headers=_CLOSE)


_CLOSE = {"connection": "close"}
