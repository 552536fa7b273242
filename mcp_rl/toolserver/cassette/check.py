"""What can be wrong with a cassette's file, found before anything is started."""

import os
from pathlib import Path

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import UserError
from mcp_rl.plugins.server import ToolServer
from mcp_rl.toolserver.cassette.tape import recorded_servers


def check_cassette(tools: ToolsConfig, server: ToolServer) -> None:
    """Raises UserError for a file that cannot be recorded into, or that cannot be played back for this server."""
    if tools.replay is not None:
        recorded = recorded_servers(tools.replay)
        for name in [member.name for member in server.members] or [server.name]:
            if name not in recorded:
                raise UserError(not_recorded(tools.replay, name, recorded))
    elif tools.record is not None:
        _check_place(tools.record)


def not_recorded(path: Path, server: str, recorded: set[str]) -> str:
    """The sentence for a server that a cassette does not have."""
    held = ", ".join(sorted(recorded)) or "none at all"
    return (
        f"The cassette {path} holds no calls of the server {server!r}; those that it holds: {held}. Replay the job "
        "that was recorded, or record this one."
    )


def _check_place(path: Path) -> None:
    """Without making the file."""
    if path.exists() and path.stat().st_size:
        recorded_servers(path)
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"Cannot record into {path}: there is no folder {folder}.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UserError(f"Cannot record into {path}: permission denied.")
