"""Resolve the argument of `--server` to a `ToolServer`.

It is tried, in this order, as the name of a plugin's server, an entry of an MCP client's file, a server of the MCP
registry, a URL, the path of a server's script, and a command that speaks MCP on stdio. Several servers become a group.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ConfigError, PluginError
from mcp_rl.scenario import ServerParams, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.client_files.client_entry import check_url, looks_like_sse, slug
from mcp_rl.toolserver.client_files.client_file import ClientFiles, client_files
from mcp_rl.toolserver.client_files.variables import (
    holds_secret,
    looks_random,
    url_without_secrets,
    words_without_secrets,
)
from mcp_rl.toolserver.launchers.words import read_words
from mcp_rl.toolserver.mcp_registry.consent import PREFIX, agreed_server
from mcp_rl.toolserver.tool_server import ToolServer, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.plugins.manager import Plugins

_SCRIPTS = {".py": "{python}", ".js": "node", ".mjs": "node", ".cjs": "node"}
"""Suffix of a server's script to the program that runs it."""
_RUNNERS = {
    "npx",
    "bunx",
    "uvx",
    "uv",
    "pipx",
    "docker",
    "podman",
    "python",
    "python3",
    "node",
    "run",
    "exec",
    "-m",
    "env",
}
_GENERIC = {"index", "main", "__main__", "server", "app", "cli", "dist", "build", "lib", "bin", "out", "src"}
"""Names of scripts and folders that most packages have, and that tell no server from another."""


def resolve_servers(
    texts: Sequence[str], transport: str | None = None, *, plugins: Plugins, tools: ToolsConfig | None = None
) -> ToolServer:
    """Return the server that `texts` name, or a group of several, with the user's settings.

    Raises PluginError or ConfigError, one sentence, if it cannot be used.
    """
    tools = tools or ToolsConfig()
    files = client_files(tools.server_config, values_needed=tools.replay is None)
    servers = [resolve_server(text, transport, plugins=plugins, files=files) for text in texts]
    server = servers[0] if len(servers) == 1 else ToolServer.together(servers)
    return server.configured(tools)


def resolve_server(
    text: str, transport: str | None = None, *, plugins: Plugins | None = None, files: ClientFiles | None = None
) -> ToolServer:
    """Return the server that `text` names, as for `--server`: a name, a URL, a script, or a command that speaks MCP.

    By default, `plugins` are the installed ones and `files` the clients' files in the usual places.
    A URL means streamable HTTP unless its path ends in `/sse` or `transport` is given. Raises PluginError with the
    nearest valid name if `text` matches nothing or the server does not offer `transport`, ConfigError for an entry that
    cannot be used.
    """
    if plugins is None:
        from mcp_rl.plugins.manager import load_plugins

        plugins = load_plugins()
    server = plugins.servers.get(text)
    if server is None:
        files = client_files() if files is None else files
        server = files.server(text) or _unnamed(text, transport, plugins, files)
    server.params(transport)
    return server


def _unnamed(text: str, transport: str | None, plugins: Plugins, files: ClientFiles) -> ToolServer:
    if text.startswith(PREFIX):
        return agreed_server(text)
    if re.match(r"https?:|[\w.+-]+://", text):
        return _from_url(text, transport)
    words = _words(text)
    if script := _script(text.strip(), words):
        return _from_script(script)
    if len(words) == 1 and shutil.which(words[0]) is None:
        raise _no_such(text, plugins, files)
    asked = read_words(words[0], words[1:])
    flags = (option for option in asked.options if option.startswith("-")) if asked else ()
    naming = [words[0], *flags, re.split(r"\[|[=<>~!]=", asked.spec)[0], *asked.args] if asked else words
    name = slug(_bare(_telling_word(naming)))
    params = StdioServer(command=words[0], args=words_without_secrets(words[1:], entry=name))
    return ToolServer(
        name, f"The command {shlex.join([words[0], *params.args])}", {"stdio": params}, origin="command line"
    )


def _from_url(url: str, transport: str | None) -> ToolServer:
    try:
        check_url(url, said=f"The server {url!r}")
    except ConfigError as error:
        raise PluginError(str(error)) from error
    parts = urlsplit(url)
    path = "/".join(part for part in parts.path.split("/") if not looks_random(part))
    place = f"{parts.netloc.rpartition('@')[2]}{path}"
    url = url_without_secrets(url, entry=slug(place))
    params: ServerParams = (
        SseServer(url=url)
        if (transport or ("sse" if looks_like_sse(url) else "")) == "sse"
        else StreamableHttpServer(url=url)
    )
    return ToolServer(slug(place), f"The server at {place}.", {params.transport: params}, origin="URL")


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PluginError(f"Cannot read the server command {text!r}: {error}.") from error
    if not words:
        raise PluginError("The server is empty: give a server's name, a URL or a quoted command.")
    return words


def _script(text: str, words: list[str]) -> Path | None:
    """Return the script whose path the text is, even with spaces in it; None if it is not a script.

    Raises PluginError if the path names a script that does not exist.
    """
    for path in dict.fromkeys((Path(text), Path(words[0]))) if len(words) == 1 else (Path(text),):
        if path.suffix in _SCRIPTS and path.is_file():
            return path
    if len(words) == 1 and PurePath(words[0]).suffix in _SCRIPTS and shutil.which(words[0]) is None:
        raise PluginError(f"The server script {words[0]} does not exist in {Path.cwd()}.")
    return None


def _from_script(path: Path) -> ToolServer:
    path = path.resolve()
    params = StdioServer(command=_SCRIPTS[path.suffix], args=(str(path),))
    return ToolServer(slug(_telling_name(path)), f"The script {path}.", {"stdio": params}, origin="script")


def _no_such(text: str, plugins: Plugins, files: ClientFiles) -> PluginError:
    if Path(text).exists() and (os.sep in text or Path(text).suffix):
        what = "a folder" if Path(text).is_dir() else f"not a script that we can start ({', '.join(_SCRIPTS)})"
        return PluginError(f"{text} is {what}; give the command that starts the server, in quotes.")
    if os.sep in text and " " not in text:
        address = (
            f"; if it is an address, type http://{text}" if re.match(r"(localhost|[\w-]+\.\w+)[\w.:]*/", text) else ""
        )
        return PluginError(f"The program or script {text} does not exist in {Path.cwd()}{address}.")
    known = [*plugins.servers, *files.names]
    sentence = f"There is no server named {text!r}; {nearest(text, list(dict.fromkeys(known)))}"
    return PluginError(" ".join([sentence, *plugins.problems, *files.problems]))


def _telling_word(words: list[str]) -> str:
    """Return the word of a command that names the server: the package or script, not its runner and not a secret."""
    for number, word in enumerate(words):
        name = PurePath(word).name
        plain = not re.match(r"-|[\w-]+=|https?://", word) and not holds_secret(words, number)
        if plain and re.sub(r"[\d.]+$", "", name) not in _RUNNERS:
            if PurePath(word).suffix not in (*_SCRIPTS, ".ts"):
                return name
            return _telling_name(Path(word).absolute() if Path(word).is_file() else PurePath(word))
    return PurePath(words[0]).name


def _telling_name(script: PurePath) -> str:
    """Return the name of a script without its suffix; for `server-files/dist/index.js`, that of the nearest folder that
    is not generic either. A home folder, what is above it and the folders of the root, such as `/tmp`, tell nothing."""
    tell_nothing = {Path.home(), *Path.home().parents}
    folders = [
        folder
        for folder in script.parents
        if folder.name and folder not in tell_nothing and not (script.anchor and len(folder.parts) == 2)
    ]
    names = (script.stem, *(folder.name for folder in folders))
    return next((name for name in names if name.lower() not in _GENERIC), script.stem)


def _bare(word: str) -> str:
    """Return the word without a version or the suffix of a script."""
    return re.sub(r"(?<=.)@[\w.]+$|\.(py|js|mjs|ts)$", "", word)
