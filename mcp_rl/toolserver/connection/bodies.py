"""Limits the body of every HTTP response as it comes, also of those that only a library reads: redirects, logins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from mcp_rl.toolserver.connection.stdio import LONGEST_MESSAGE
from mcp_rl.toolserver.tools.budgets import MOST_VALUES, has_too_many_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

UNCOMPRESSED = {"accept-encoding": "identity"}
"""Header of requests. A compressed answer of 64 kB may unfold to gigabytes before anything else gets its turn."""
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_FEW = 2 * MOST_VALUES
"""Bytes that cannot hold too many values."""
_BEYOND = 2**20
"""Bytes beyond the limit that are let through, so that whoever limits bodies itself says so in its own words."""


def is_event_stream(response: httpx2.Response) -> bool:
    """Return whether a response is a stream of events, which is read as it comes and limited by event."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


async def limit_body(response: httpx2.Response) -> None:
    """Limit a response's body; a hook for responses of a client. Raises RemoteProtocolError for a compressed one."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise httpx2.RemoteProtocolError(f"it compresses its answer ({encoding[:20]}), which was not asked for")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = (_Events if is_event_stream(response) else _Limited)(response.stream)


class _Wrapped(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Events(_Wrapped):
    """A stream of events, none of which has too many values; the SDK limits their lengths."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        event, counted = bytearray(), 0
        async for part in self._stream:
            seam = bytes(event[-3:]) + part  # a blank line may lie in two parts
            ended = max(seam.rfind(end) for end in _BLANK_LINES)
            if ended >= 0:
                event, counted = bytearray(seam[ended:]), 0
            else:
                event += part
            if len(event) > counted * 5 / 4 + _FEW:  # seldom, so that counting takes linear time
                counted = len(event)
                if has_too_many_values(bytes(event)):
                    raise httpx2.ReadError(f"its answer has more than {MOST_VALUES:,} values, which is the limit")
            yield part


class _Limited(_Wrapped):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > LONGEST_MESSAGE + _BEYOND:
                raise httpx2.ReadError(f"its answer is longer than the limit of {LONGEST_MESSAGE // 2**20} MB")
            yield part
