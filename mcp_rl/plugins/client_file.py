"""Files of servers as MCP clients have them: `{"mcpServers": {NAME: {"command": …} or {"url": …}}}`.

The files of Claude Desktop, Claude Code, Cursor, VS Code (`servers`), Windsurf, Cline and the Inspector load unchanged.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_rl.errors import ConfigError
from mcp_rl.plugins.bundled import bundled_root
from mcp_rl.plugins.client_entry import server_of, slug
from mcp_rl.plugins.server import ToolServer

PLACES = ("config.json", "configs/config.json")
"""Where a file is looked for when none is named: in the working folder, and the second one among what is bundled."""
_KEYS = ("mcpServers", "servers")
_MOST_WITH_COMMENTS = 100_000
"""Characters of a file that is no plain JSON: reading so many with comments takes two seconds."""


@dataclass(frozen=True)
class ClientFile:
    """A file of servers. Its entries are looked at when they are asked for, so that one bad one harms no other."""

    path: Path
    entries: Mapping[str, Any]

    def named(self, text: str) -> str | None:
        """The name of the entry that is called so, or that would be if it were written with `-` for all else."""
        if text in self.entries:
            return text
        return next((name for name in self.entries if slug(name) == text), None)

    def server(self, name: str, *, values_needed: bool = True) -> ToolServer:
        """The server of an entry. Raises ConfigError, one sentence that names the file, the entry and the key, also for
        a variable that is not set, if values are needed."""
        fields = self.entries[name]
        if _is_bundled(self.path):
            return server_of(name, _bundled(fields), origin=f"bundled {self.path.name}", values_needed=values_needed)
        return server_of(name, fields, origin=str(self.path), values_needed=values_needed)


@dataclass(frozen=True)
class ClientFiles:
    """The files that `--server` looks into, the first first."""

    files: Sequence[ClientFile]
    problems: Sequence[str] = field(default=())
    """A sentence for each file that was looked for on our own account and cannot be read."""
    values_needed: bool = True
    """Whether what entries refer to must be there; not where no server is reached, as in a replay."""

    @property
    def names(self) -> list[str]:
        """Of all entries."""
        return [name for file in self.files for name in file.entries]

    def server(self, text: str) -> ToolServer | None:
        """The server of the first entry of that name, None where there is none. Raises ConfigError where it is bad."""
        for file in self.files:
            if (name := file.named(text)) is not None:
                return file.server(name, values_needed=self.values_needed)
        return None


def client_files(chosen: Path | None = None, *, values_needed: bool = True) -> ClientFiles:
    """The file that was chosen alone, else those that lie in their usual places and hold servers.

    Raises ConfigError where the chosen one cannot be read or holds no servers.
    """
    if chosen is not None:
        file = read_client_file(chosen.expanduser())
        if file is None:
            raise ConfigError(f'The file {chosen} lists no servers: it has no "mcpServers" (or "servers") object.')
        return ClientFiles((file,), values_needed=values_needed)
    found: list[ClientFile] = []
    problems: list[str] = []
    for path in (*map(Path, PLACES), bundled_root() / PLACES[-1]):
        if not path.is_file() or any(path.samefile(file.path) for file in found):
            continue
        try:
            if file := read_client_file(path):
                found.append(file)
        except ConfigError as error:
            problems.append(str(error))
    return ClientFiles(tuple(found), tuple(problems), values_needed)


def known_entries(chosen: Path | None = None) -> dict[str, ToolServer | str]:
    """Every entry by name: its server, or the sentence that says why it cannot be used. Raises ConfigError as above."""
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
    """A file of servers, or None where it is JSON of another kind. Comments and commas too many are no harm.

    Raises ConfigError for a file that cannot be read or is no JSON.
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
        raise ConfigError(f"{path}: the servers are to be a JSON object of entries by name.")
    return ClientFile(path, listed)


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a file of servers.") from None
    except ValueError as plain:
        if len(text) > _MOST_WITH_COMMENTS:
            raise ConfigError(f"{path} is no valid JSON: {plain}.") from plain
        return _json_with_comments(text, path)


def _json_with_comments(text: str, path: Path) -> Any:
    import json5

    try:
        return json5.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a file of servers.") from None
    except ValueError as error:
        place = " ".join(str(error).replace("<string>:", "line ").split())
        raise ConfigError(f"{path} is no valid JSON: {place}.") from error


def _is_bundled(path: Path) -> bool:
    bundled = bundled_root() / PLACES[-1]
    return bundled.is_file() and path.samefile(bundled)


def _bundled(fields: Any) -> Any:
    """An entry of the bundled file, which is written for the root of a checkout: it works everywhere."""
    if not isinstance(fields, dict):
        return fields
    args = [
        f"{{bundled}}/{word}" if isinstance(word, str) and "/" in word and (bundled_root() / word).is_file() else word
        for word in fields.get("args", [])
    ]
    return {**fields, **({"command": "{python}"} if fields.get("command") == "python" else {}), "args": args}
