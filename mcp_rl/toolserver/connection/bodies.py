"""Limits the body of every HTTP response as it comes, also of those that only a library reads: redirects, logins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from mcp_rl.toolserver.connection.stdio import LONGEST_MESSAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

UNCOMPRESSED = {"accept-encoding": "identity"}
"""Header of requests. A compressed answer of 64 kB may unfold to gigabytes before anything else gets its turn."""
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
    if not is_event_stream(response) and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Limited(response.stream)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > LONGEST_MESSAGE + _BEYOND:
                raise httpx2.ReadError(f"its answer is longer than the limit of {LONGEST_MESSAGE // 2**20} MB")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
