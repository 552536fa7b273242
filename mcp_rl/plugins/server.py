"""A tool server as a plugin offers it, or as the command line names it."""

import random
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from mcp_rl.errors import PluginError
from mcp_rl.scenario import Launch, ServerParams, SseServer, StdioServer, StreamableHttpServer

if TYPE_CHECKING:
    from mcp_rl.plugins.manager import Plugins

Transport = Literal["sse", "stdio", "streamable-http"]
Isolation = Literal["shared", "reset", "per-rollout"]
ArgumentSampler = Callable[[random.Random], dict[str, Any]]

_RUNNERS = {"npx", "bunx", "uvx", "uv", "pipx", "docker", "podman", "python", "python3", "node", "run", "exec", "-m"}


@dataclass(frozen=True)
class ToolServer:
    """A tool server: how to reach it, and hints for whoever writes requests for its tools.

    Raises PluginError where a field makes no sense.
    """

    name: str
    """Letters, digits, `-`, `_` and `.`; what `--server` takes."""
    description: str
    """One line."""
    transports: Mapping[str, ServerParams]
    """Transport name to how it is reached that way. The first is the default."""
    isolation: Isolation = "shared"
    """"shared": calls leave no trace, so all rollouts may use one server. "reset": `reset_tool` is called before each
    rollout, and rollouts on one connection take turns. "per-rollout": each rollout gets a connection of its own."""
    reset_tool: str | None = None
    """The server's own name of the tool that puts its state back to the beginning. It is called with the scenario's
    `initial_state` as arguments, and no model sees it. "reset" needs one."""
    instances: int = 4
    """Connections that are open for rollouts at once where they are not shared. A server that somebody else runs has
    one state, so "reset" keeps one connection to it."""
    phrases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tool name to request templates with `{argument}` placeholders."""
    argument_samplers: Mapping[str, ArgumentSampler] = field(default_factory=dict)
    """Tool name to a function that draws plausible arguments."""
    origin: str = ""
    """Who offers it; filled in at registration."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,100}", self.name):
            raise PluginError(f"A server's name is letters, digits, '-', '_' and '.', not {self.name!r}.")
        if self.isolation not in get_args(Isolation):
            raise PluginError(f"Server {self.name}: isolation is one of {get_args(Isolation)}, not {self.isolation!r}.")
        if (self.isolation == "reset") != (self.reset_tool is not None):
            raise PluginError(f'Server {self.name}: isolation "reset" and a reset_tool belong together.')
        if self.instances < 1:
            raise PluginError(f"Server {self.name}: instances is 1 or more, not {self.instances}.")
        if not self.transports:
            raise PluginError(f"Server {self.name} offers no transport.")
        for transport, params in self.transports.items():
            if transport != getattr(params, "transport", None):
                raise PluginError(f"Server {self.name}: the entry for transport {transport!r} is for another one.")

    @classmethod
    def from_script(cls, name: str, description: str, script: str, **fields: Any) -> "ToolServer":
        """A Python script that takes `--transport NAME --port PORT` and offers all three transports.

        `script` may hold the placeholder `{bundled}`. Endpoints are the SDK's: `/sse` and `/mcp` on 127.0.0.1.
        """

        def launch(*args: str) -> Launch:
            return Launch(command="{python}", args=(script, *args))

        transports: dict[str, ServerParams] = {
            "sse": SseServer(
                url="http://127.0.0.1:{port}/sse", launch=launch("--transport", "sse", "--port", "{port}")
            ),
            "stdio": StdioServer(command="{python}", args=(script, "--transport", "stdio")),
            "streamable-http": StreamableHttpServer(
                url="http://127.0.0.1:{port}/mcp", launch=launch("--transport", "streamable-http", "--port", "{port}")
            ),
        }
        return cls(name, description, transports, **fields)

    def params(self, transport: str | None = None) -> ServerParams:
        """How to reach the server by `transport`, by its default one where that is None. Raises PluginError."""
        if transport is None:
            return next(iter(self.transports.values()))
        if transport not in self.transports:
            offered = ", ".join(self.transports)
            raise PluginError(f"Server {self.name} has no transport {transport!r}; it offers {offered}.")
        return self.transports[transport]


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


def nearest(name: str, names: Sequence[str]) -> str:
    """A question with the nearest right name, or else the list of all names, for the end of an error."""
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(sorted(names))}." if names else "none is registered."
