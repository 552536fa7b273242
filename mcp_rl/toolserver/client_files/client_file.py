"""MCP clients' files of servers: `{"mcpServers": {NAME: {"command": …} or {"url": …}}}`.

The files of Claude Desktop, Claude Code, Cursor, VS Code (`servers`), Windsurf, Cline and the Inspector load unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.client_files.client_entry import server_of, slug

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.toolserver.tool_server import ToolServer

USUAL_FILE = Path("config.json")
"""The file to look for in the working folder and among the bundled files if none is named."""
_LAUNCHER = "servers/python/start.sh"
"""Runs a bundled Python server for other clients, with the project's own Python."""
_KEYS = ("mcpServers", "servers")
_MOST_WITH_COMMENTS = 100_000
"""Most characters of a file that is JSON with comments: reading so many takes two seconds."""


@dataclass(frozen=True)
class ClientFile:
    """A file of servers. Each entry is checked when it is requested, so that a bad one does not affect the others."""

    path: Path
    entries: Mapping[str, Any]

    def named(self, text: str) -> str | None:
        """Return the name of the entry that `text` names literally or as its slug; None if there is none."""
        if text in self.entries:
            return text
        return next((name for name in self.entries if slug(name) == text), None)

    def server(self, name: str, *, values_needed: bool = True) -> ToolServer:
        """Return the server of an entry. Raises ConfigError, one sentence that names the file, the entry and the key,
        also for an unset variable if `values_needed`."""
        fields = self.entries[name]
        if _is_bundled(self.path):
            return server_of(name, _bundled(fields), origin=f"bundled {self.path.name}", values_needed=values_needed)
        return server_of(name, fields, origin=str(self.path), values_needed=values_needed)


@dataclass(frozen=True)
class ClientFiles:
    """The files that `--server` looks into, in order."""

    files: Sequence[ClientFile]
    problems: Sequence[str] = field(default=())
    """A sentence for each file in a usual place that cannot be read."""
    values_needed: bool = True
    """True if the variables that entries refer to must be set; False if no server is reached, as in a replay."""

    @property
    def names(self) -> list[str]:
        """The names of all entries."""
        return [name for file in self.files for name in file.entries]

    def server(self, text: str) -> ToolServer | None:
        """Return the server of the first entry of that name, or None. Raises ConfigError if it is invalid."""
        for file in self.files:
            if (name := file.named(text)) is not None:
                return file.server(name, values_needed=self.values_needed)
        return None


def client_files(chosen: Path | None = None, *, values_needed: bool = True) -> ClientFiles:
    """Return the chosen file alone, or the file in the working folder and the bundled one where they hold servers.

    Raises ConfigError if the chosen one cannot be read or holds no servers.
    """
    if chosen is not None:
        file = read_client_file(chosen.expanduser())
        if file is None:
            raise ConfigError(f'The file {chosen} lists no servers: it has no "mcpServers" (or "servers") object.')
        return ClientFiles((file,), values_needed=values_needed)
    found: list[ClientFile] = []
    problems: list[str] = []
    for path in (USUAL_FILE, bundled_root() / USUAL_FILE):
        if not path.is_file() or any(path.samefile(file.path) for file in found):
            continue
        try:
            if file := read_client_file(path):
                found.append(file)
        except ConfigError as error:
            problems.append(str(error))
    return ClientFiles(tuple(found), tuple(problems), values_needed)


def known_entries(chosen: Path | None = None) -> dict[str, ToolServer | str]:
    """Return every entry by name: its server, or an error message. Raises ConfigError like `client_files`."""
    known: dict[str, ToolServer | str] = {}
    for file in client_files(chosen).files:
        for name in file.entries:
            if name not in known:
                try:
                    known[name] = file.server(name)
                except ConfigError as error:
                    known[name] = str(error)
    return known


def read_client_file(path: Path) -> ClientFile | None:
    """Read a file of servers; return None for JSON of another kind. Comments and trailing commas are allowed.

    Raises ConfigError if the file cannot be read or is not JSON.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot read the servers of {path}: {reason}.") from error
    content = _json(text, path)
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("mcp"), dict):  # VS Code's settings.json
        content = {**content["mcp"], **content}
    listed = next((content[key] for key in _KEYS if key in content), None)
    if listed is None:
        return None
    if not isinstance(listed, dict):
        raise ConfigError(f"{path}: its servers must be a JSON object of entries by name.")
    return ClientFile(path, listed)


def _json(text: str, path: Path) -> Any:
    try:
        try:
            return json.loads(text)
        except ValueError:
            if len(text) > _MOST_WITH_COMMENTS:
                raise
            import json5

            return json5.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a file of servers.") from None
    except ValueError as error:
        place = " ".join(str(error).replace("<string>:", "line ").split())
        raise ConfigError(f"{path} is not valid JSON: {place}.") from error


def _is_bundled(path: Path) -> bool:
    bundled = bundled_root() / USUAL_FILE
    return bundled.is_file() and path.samefile(bundled)


def _bundled(fields: Any) -> Any:
    """Make an entry of the bundled file, whose paths are relative to the root of a checkout, work everywhere."""
    if not isinstance(fields, dict):
        return fields
    args = [
        f"{{bundled}}/{word}" if isinstance(word, str) and "/" in word and (bundled_root() / word).is_file() else word
        for word in fields.get("args", [])
    ]
    if args[:1] == [f"{{bundled}}/{_LAUNCHER}"]:
        return {**fields, "command": "{python}", "args": args[1:]}
    return {**fields, "args": args}
