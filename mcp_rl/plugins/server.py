"""A tool server as a plugin offers it, or as the command line names it."""

import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mcp_rl.config import Isolation, ToolsConfig
from mcp_rl.errors import PluginError
from mcp_rl.scenario import Launch, ServerGroup, ServerParams, SseServer, StdioServer, StreamableHttpServer

if TYPE_CHECKING:
    from mcp_rl.toolserver.link import Link

ArgumentSampler = Callable[[random.Random], dict[str, Any]]
Reset = Callable[["Link", dict[str, Any]], Awaitable[None]]
"""Puts a server's state back, given a link to it and the scenario's `initial_state`."""
STEPS = ("spawn", "initialize", "list", "call", "close")
OFFERED = ("resources", "prompts")
BETWEEN = "__"
"""Between a server's name and a tool's, where several servers are offered together."""


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
    isolation: Isolation | None = None
    """"shared": calls leave no trace, so all rollouts may use one server. "reset": the state is put back before each
    rollout, and rollouts on one connection take turns. "per-rollout": each rollout gets a connection of its own, and a
    new process where the server is ours to start. None: "reset" where there is a reset; else "per-rollout" where any
    tool is annotated as destructive or as not read-only, and "shared" where none is."""
    reset_tool: str | None = None
    """The server's own name of the tool that puts its state back to the beginning. It is called with the scenario's
    `initial_state` as arguments, and no model sees it."""
    reset: Reset | None = None
    """A function that puts the state back, after `reset_tool` where there is one."""
    instances: int = 4
    """Connections that are open for rollouts at once where they are not shared. A server that somebody else runs has
    one state, so "reset" keeps one connection to it."""
    phrases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tool name to request templates with `{argument}` placeholders."""
    argument_samplers: Mapping[str, ArgumentSampler] = field(default_factory=dict)
    """Tool name to a function that draws plausible arguments."""
    deadlines: Mapping[str, float] = field(default_factory=dict)
    """Step ("spawn", "initialize", "list", "call", "close") to seconds, where the defaults do not fit."""
    tool_deadlines: Mapping[str, float] = field(default_factory=dict)
    """Tool to seconds for one call of it."""
    offer: tuple[str, ...] = ()
    """What else becomes tools for the model: "resources", "prompts"."""
    system_prompt: str | None = None
    """What the model is told before each task."""
    scenarios: str | Path | None = None
    """A file of scenarios (JSON Lines) that is used where the user names none; may hold `{bundled}`."""
    verifiers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Kind to function, as the hook `register_verifiers` takes them."""
    members: tuple["ToolServer", ...] = ()
    """The servers that are offered together here; made by `together`."""
    origin: str = ""
    """Who offers it; filled in at registration."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]{1,100}", self.name):
            raise PluginError(f"A server's name is letters, digits, '-', '_', '+' and '.', not {self.name!r}.")
        if self.isolation not in (None, *get_args(Isolation)):
            raise PluginError(f"Server {self.name}: isolation is one of {get_args(Isolation)}, not {self.isolation!r}.")
        resets = self.reset_tool is not None or self.reset is not None
        if self.isolation is None and resets:
            object.__setattr__(self, "isolation", "reset")
        if (self.isolation == "reset") != resets:
            raise PluginError(f'Server {self.name}: isolation "reset" and a reset_tool or reset belong together.')
        for step, seconds in self.deadlines.items():
            if step not in STEPS or not seconds > 0:
                raise PluginError(
                    f"Server {self.name}: deadlines are seconds above 0 for {', '.join(STEPS)}; not {step}: {seconds}."
                )
        for tool, seconds in self.tool_deadlines.items():
            if not seconds > 0:
                raise PluginError(f"Server {self.name}: the deadline of {tool} is {seconds}; give seconds above 0.")
        for what in self.offer:
            if what not in OFFERED:
                raise PluginError(f"Server {self.name} can offer {' and '.join(OFFERED)}, not {what!r}.")
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

    @classmethod
    def together(cls, servers: Sequence["ToolServer"]) -> "ToolServer":
        """Several servers as one, whose tools are called `server__tool`. Raises PluginError for two of one name."""
        names = [server.name for server in servers]
        for name in names:
            if names.count(name) > 1:
                raise PluginError(f"The server {name!r} is named twice; name each of several servers once.")
            if any(other.startswith(f"{name}{BETWEEN}") for other in names):
                raise PluginError(
                    f"Beside the server {name} none may be called {name}{BETWEEN}…: whose tools are whose?"
                )
        told = [f"{server.name}: {server.system_prompt}" for server in servers if server.system_prompt]
        return cls(
            name="+".join(names),
            description=" ".join(server.description for server in servers),
            transports={"group": ServerGroup(servers={server.name: _one(server.params()) for server in servers})},
            phrases={key: phrases for server in servers for key, phrases in _prefixed(server, server.phrases)},
            argument_samplers={
                key: sampler for server in servers for key, sampler in _prefixed(server, server.argument_samplers)
            },
            system_prompt="\n\n".join(told) or None,
            verifiers={kind: function for server in servers for kind, function in server.verifiers.items()},
            members=tuple(servers),
            origin=", ".join(dict.fromkeys(server.origin for server in servers)),
        )

    def configured(self, tools: ToolsConfig) -> "ToolServer":
        """This server where the user's settings win over what its plugin declares. Raises PluginError."""
        if self.members:
            return replace(self, members=tuple(m.configured(t) for m, t in self._for_members(tools)))
        changes: dict[str, Any] = {"offer": tuple(dict.fromkeys((*self.offer, *tools.offer)))}
        if tools.reset_tool is not None:
            changes |= {"isolation": "reset", "reset_tool": tools.reset_tool}
        elif tools.isolation not in (None, "reset"):
            changes |= {"isolation": tools.isolation, "reset_tool": None, "reset": None}
        elif tools.isolation == "reset" and self.isolation != "reset":
            raise PluginError(
                f"The isolation reset needs a tool that resets the server {self.name}: set tools.reset_tool too."
            )
        if tools.max_servers is not None:
            changes["instances"] = tools.max_servers
        return replace(self, **changes)

    def _for_members(self, tools: ToolsConfig) -> Iterator[tuple["ToolServer", ToolsConfig]]:
        """Each of several servers, with the settings that are for it: a reset tool is one server's."""
        if tools.reset_tool is None:
            yield from ((member, tools) for member in self.members)
            return
        names = [member.name for member in self.members]
        whose = next((name for name in names if tools.reset_tool.startswith(f"{name}{BETWEEN}")), None)
        if whose is None:
            raise PluginError(
                f"tools.reset_tool is {tools.reset_tool!r}: of several servers, say whose tool that is, as in "
                f"{names[0]}{BETWEEN}{tools.reset_tool}."
            )
        theirs = tools.model_copy(update={"isolation": None, "reset_tool": None})
        own = tools.model_copy(update={"reset_tool": tools.reset_tool.removeprefix(f"{whose}{BETWEEN}")})
        yield from ((member, own if member.name == whose else theirs) for member in self.members)

    @property
    def stateful(self) -> bool:
        """Whether episodes are declared to have a state of their own, on any of the servers."""
        return any(member.stateful for member in self.members) or self.isolation in ("reset", "per-rollout")

    def isolation_of(self, tool: str) -> Isolation:
        """How episodes are declared to be kept apart on the server of a tool; "shared" where nobody declared it."""
        for member in self.members:
            if tool.startswith(f"{member.name}{BETWEEN}"):
                return member.isolation_of(tool.removeprefix(f"{member.name}{BETWEEN}"))
        return self.isolation or "shared"

    def params(self, transport: str | None = None) -> ServerParams:
        """How to reach the server by `transport`, by its default one where that is None. Raises PluginError."""
        if self.members:
            return ServerGroup(servers={server.name: _one(server.params(transport)) for server in self.members})
        if transport is None:
            return next(iter(self.transports.values()))
        if transport not in self.transports:
            offered = ", ".join(self.transports)
            raise PluginError(f"Server {self.name} has no transport {transport!r}; it offers {offered}.")
        return self.transports[transport]


def _one(params: ServerParams) -> StdioServer | SseServer | StreamableHttpServer:
    if isinstance(params, ServerGroup):
        raise PluginError("A group of servers cannot be part of another group.")
    return params


def _prefixed(server: ToolServer, by_tool: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for tool, value in by_tool.items():
        yield f"{server.name}{BETWEEN}{tool}", value


def nearest(name: str, names: Sequence[str]) -> str:
    """A question with the nearest right name, or else the list of all names, for the end of an error."""
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(sorted(names))}." if names else "none is registered."
