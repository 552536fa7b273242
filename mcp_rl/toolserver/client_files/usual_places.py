"""Finds the servers that the MCP clients on this machine are configured with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError
from mcp_rl.toolserver.client_files.client_file import USUAL_FILE, read_client_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = (USUAL_FILE, Path(".mcp.json"), Path(".cursor/mcp.json"), Path(".vscode/mcp.json"))
_AT_HOME = (".claude.json", ".cursor/mcp.json", ".codeium/windsurf/mcp_config.json", ".gemini/settings.json")
_DESKTOP = "Claude/claude_desktop_config.json", "Code/User/mcp.json"


def entries_of_clients() -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each server that an MCP client on this machine knows; unreadable files have none.

    The first file with a name counts.
    """
    settings = Path.home() / ("Library/Application Support" if sys.platform == "darwin" else ".config")
    places = [*_HERE, *(Path.home() / place for place in _AT_HOME), *(settings / place for place in _DESKTOP)]
    known: set[str] = set()
    for path in places:
        try:
            file = read_client_file(path) if path.is_file() else None
        except ConfigError:
            continue
        for name in file.entries if file else ():
            if name not in known:
                known.add(name)
                yield name, path
