"""Fill a server that begins empty with the world that was measured for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.errors import ServerFault

if TYPE_CHECKING:
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.sandbox.layer import Layer
    from mcp_rl.toolserver.tool_server import ToolServer


async def fill(link: Link, layer: Layer | None, server: ToolServer) -> None:
    """Put the files of its world into a new process's layer, or make the calls that fill it.

    Raises ServerFault where that fails.
    """
    measured = server.measured
    if measured is None:
        return
    if measured.written and layer is not None:
        await layer.unpack(measured.written)
        return
    for call in measured.setup:
        result = await link.call(call.tool, dict(call.arguments))
        if result.is_error:
            raise ServerFault(
                f"The server {server.name} could not be filled: its tool {call.tool} says {result.text[:200]!r}."
            )
