"""Checks of a cassette's file before anything is started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcp_rl.errors import UserError
from mcp_rl.toolserver.cassette.tape import recorded_servers

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.config import ToolsConfig
    from mcp_rl.toolserver.tool_server import ToolServer


def check_cassette(tools: ToolsConfig, server: ToolServer) -> None:
    """Raise UserError if the file cannot be recorded into, or cannot be replayed for this server."""
    if tools.replay is not None:
        recorded = recorded_servers(tools.replay)
        for name in [member.name for member in server.members] or [server.name]:
            if name not in recorded:
                raise UserError(not_recorded(tools.replay, name, recorded))
    elif tools.record is not None:
        _check_place(tools.record)


def not_recorded(path: Path, server: str, recorded: set[str]) -> str:
    """Return the error for a server that a cassette does not hold."""
    held = ", ".join(sorted(recorded)) or "none"
    return (
        f"The cassette {path} holds no calls of the server {server!r} (its servers: {held}); replay the job that was "
        "recorded, or record this one."
    )


def _check_place(path: Path) -> None:
    """Check that the file can be written, without creating it."""
    if path.exists() and path.stat().st_size:
        recorded_servers(path)
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"Cannot record into {path}: the folder {folder} does not exist.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UserError(f"Cannot record into {path}: permission denied.")
