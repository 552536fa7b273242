"""What `--server` means: a plugin's server, a URL, or a command."""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import PluginError
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import ServerParams, SseServer, StdioServer, StreamableHttpServer

if TYPE_CHECKING:
    from mcp_rl.plugins.manager import Plugins

_RUNNERS = {"npx", "bunx", "uvx", "uv", "pipx", "docker", "podman", "python", "python3", "node", "run", "exec", "-m"}


def resolve_servers(
    texts: Sequence[str], transport: str | None = None, *, plugins: "Plugins", tools: ToolsConfig | None = None
) -> ToolServer:
    """The one server that `texts` names, or several together, as the user's settings want it. Raises PluginError."""
    tools = tools or ToolsConfig()
    servers = [resolve_server(text, transport, plugins=plugins) for text in texts]
    server = servers[0] if len(servers) == 1 else ToolServer.together(servers)
    return server.configured(tools)


def resolve_server(text: str, transport: str | None = None, *, plugins: "Plugins") -> ToolServer:
    """The server that `text` means: a plugin's name, else a URL, else a command that speaks MCP on stdio.

    A URL is streamable HTTP unless its path ends in `/sse` or `transport` says otherwise. Raises PluginError with the
    nearest right name where `text` is none of them, or where the server does not offer `transport`.
    """
    if text in plugins.servers:
        server = plugins.servers[text]
    elif re.match(r"https?://", text):
        server = _from_url(text, transport)
    else:
        server = _from_command(text, plugins)
    server.params(transport)
    return server


def _from_url(url: str, transport: str | None) -> ToolServer:
    parts = urlsplit(url)
    if not parts.hostname:
        raise PluginError(f"The URL {url!r} names no host.")
    params: ServerParams = (
        SseServer(url=url)
        if (transport or ("sse" if parts.path.rstrip("/").endswith("/sse") else "")) == "sse"
        else StreamableHttpServer(url=url)
    )
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    return ToolServer(_slug(place), f"The server at {place}.", {params.transport: params}, origin="URL")


def _from_command(text: str, plugins: "Plugins") -> ToolServer:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PluginError(f"Cannot read the server command {text!r}: {error}.") from error
    if not words:
        raise PluginError("The server is empty: give a server's name, a URL or a quoted command.")
    if len(words) == 1 and shutil.which(words[0]) is None:
        return plugins.server(text)
    params = StdioServer(command=words[0], args=tuple(words[1:]))
    return ToolServer(_slug(_telling_word(words)), f"The command {text}", {"stdio": params}, origin="command line")


def _telling_word(words: list[str]) -> str:
    """The word of a command that names the server: the package or script, not the program that runs it."""
    for word in words:
        name = PurePath(word).name
        if not word.startswith("-") and re.sub(r"[\d.]+$", "", name) not in _RUNNERS:
            return name
    return PurePath(words[0]).name


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", re.sub(r"(?<=.)@[\w.]+$|\.(py|js|mjs|ts)$", "", text)).strip("-.") or "server"
