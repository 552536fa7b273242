"""What a server on stdio writes to its standard output beside its messages: a print in a tool, a log, a banner.

The client skips such lines, so it takes a conversation by hand to see them.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import LATEST_PROTOCOL_VERSION, JSONRPCNotification, JSONRPCRequest
from pydantic import ValidationError

from mcp_rl.errors import McpRlError
from mcp_rl.scenario import OneServer, StdioServer
from mcp_rl.servers.caller import Reply
from mcp_rl.servers.findings import Finding, note
from mcp_rl.servers.visible import count, quoted
from mcp_rl.toolserver.launch import server_log
from mcp_rl.toolserver.stdio import stdio_streams

_SECONDS = 15.0
_MOST_CALLS = 10


async def stray_output(params: OneServer, calls: Sequence[Reply], *, name: str) -> list[Finding]:
    """Start the server once more, make `calls` again, and look at every line that it writes."""
    if not isinstance(params, StdioServer):
        return []
    lines: list[str] = []
    asked: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": call.tool, "arguments": call.arguments}) for call in calls[:_MOST_CALLS]
    ]
    # What goes wrong beside that has been found out before.
    with suppress(McpRlError, ExceptionGroup), anyio.move_on_after(_SECONDS), server_log(name, None) as log:
        async with stdio_streams(params, whose=name, log=log) as (reading, writing):
            us = {"protocolVersion": LATEST_PROTOCOL_VERSION, "capabilities": {}, "clientInfo": _US}
            await _answered(reading, writing, 0, "initialize", us, lines)
            await writing.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")))
            for number, (method, given) in enumerate(asked, 1):
                await _answered(reading, writing, number, method, given, lines)
    if not lines:
        return []
    return [
        note(
            "stdout",
            f"{count(len(lines), 'line')} on its standard output were no JSON-RPC, the first {quoted(lines[0])}.",
            "We skip them; other clients end the session.",
            "Write logs to standard error.",
        )
    ]


_US = {"name": "mcp-rl", "version": "0"}


async def _answered(
    reading: Any, writing: Any, number: int, method: str, params: dict[str, Any], lines: list[str]
) -> None:
    """Send a request and read until its answer, or to the end."""
    request = JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)
    try:
        await writing.send(SessionMessage(request))
        async for item in reading:
            if isinstance(item, ValidationError):
                given = item.errors(include_url=False, include_context=False)[0]["input"]
                lines.append(given.decode(errors="replace") if isinstance(given, bytes) else str(given))
            elif isinstance(item, SessionMessage) and getattr(item.message, "id", None) == number:
                return
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
