"""A tool server as a plugin offers it, or as the command line names it."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, get_args

from mcp_rl.errors import PluginError
from mcp_rl.scenario import Launch, ServerParams, SseServer, StdioServer, StreamableHttpServer

Transport = Literal["sse", "stdio", "streamable-http"]
Isolation = Literal["shared", "reset", "per-rollout"]
ArgumentSampler = Callable[[random.Random], dict[str, Any]]


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


def nearest(name: str, names: Sequence[str]) -> str:
    """A question with the nearest right name, or else the list of all names, for the end of an error."""
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(sorted(names))}." if names else "none is registered."
