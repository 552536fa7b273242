"""Output of a stdio server on standard output that is not a message: a print in a tool, a log, a banner.

The client skips such lines, so seeing them takes a conversation by hand.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import LATEST_PROTOCOL_VERSION, JSONRPCNotification, JSONRPCRequest
from pydantic import ValidationError

from mcp_rl.errors import McpRlError
from mcp_rl.explore.check.catalogue import STRAY_OUTPUT
from mcp_rl.scenario import OneServer, StdioServer
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.visible import count, quoted
from mcp_rl.toolserver.connection.launch import server_log
from mcp_rl.toolserver.connection.stdio import stdio_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.check.caller import CallReply
    from mcp_rl.explore.check.findings import Finding

_SECONDS = 15.0
_MOST_CALLS = 10
_INITIALIZE = {
    "protocolVersion": LATEST_PROTOCOL_VERSION,
    "capabilities": {},
    "clientInfo": {"name": "mcp-rl", "version": "0"},
}


async def stray_output(params: OneServer, calls: Sequence[CallReply], *, name: str) -> list[Finding]:
    """Start the server once more, repeat `calls`, and read every line that it writes."""
    if not isinstance(params, StdioServer):
        return []
    lines: list[str] = []
    asked: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": call.tool, "arguments": call.arguments}) for call in calls[:_MOST_CALLS]
    ]
    # Earlier checks have reported any other error.
    with suppress(McpRlError, ExceptionGroup), anyio.move_on_after(_SECONDS), server_log(name, None) as log:
        async with stdio_streams(params, server=name, log=log) as (reading, writing):
            await _ask(reading, writing, (0, "initialize", _INITIALIZE), lines)
            await writing.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")))
            for number, (method, arguments) in enumerate(asked, 1):
                await _ask(reading, writing, (number, method, arguments), lines)
    return [STRAY_OUTPUT.found(lines=count(len(lines), "line"), first=quoted(lines[0]))] if lines else []


async def _ask(reading: Any, writing: Any, asked: tuple[int, str, dict[str, Any]], lines: list[str]) -> None:
    """Send a request (id, method, params) and read to its answer or the end; add stray lines to `lines`."""
    number, method, params = asked
    request = JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)
    try:
        await writing.send(SessionMessage(request))
        async for item in reading:
            if isinstance(item, ValidationError):
                line = item.errors(include_url=False, include_context=False)[0]["input"]
                lines.append(without_secrets(line.decode(errors="replace") if isinstance(line, bytes) else str(line)))
            elif isinstance(item, SessionMessage) and getattr(item.message, "id", None) == number:
                return
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
