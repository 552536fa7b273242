"""`ToolServer`, the description of a tool server from a plugin, a client's file or the command line."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from mcp_rl.config import Elicitation, Isolation, SandboxKind, ToolsConfig
from mcp_rl.errors import PluginError
from mcp_rl.scenario import Launch, ServerGroup, ServerParams, SseServer, StdioServer, StreamableHttpServer

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.toolserver.elicitation import FillIn
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.seats import Seats
    from mcp_rl.toolserver.state import MeasuredState

ArgumentSampler = Callable[[random.Random], dict[str, Any]]
Reset = Callable[["Link", dict[str, Any]], Awaitable[None]]
"""Resets a server's state, given a link to it and the scenario's `initial_state`."""
STEPS = ("spawn", "initialize", "list", "call", "close")
OFFERED = ("resources", "prompts")
BETWEEN = "__"
"""Separates a server's name from a tool's if several servers are offered together."""


@dataclass(frozen=True)
class ToolServer:
    """A tool server: how to reach it, how to isolate episodes on it, and hints for generating requests for its tools.

    Raises PluginError for an invalid field.
    """

    name: str
    """The name for `--server`: letters, digits, `-`, `_`, `+` and `.`."""
    description: str
    """A description of one line."""
    transports: Mapping[str, ServerParams]
    """Transport name to connection parameters. The first is the default."""
    isolation: Isolation | None = None
    """"shared": calls leave no trace, so all rollouts may use one server. "layer": a server in a sandbox keeps its
    state in files, and what it wrote is thrown away before each rollout. "reset": the state is reset before each
    rollout, and rollouts on one connection take turns. "per-rollout": each rollout gets its own connection, and a new
    process if we start the server. None: "reset" if there is a reset; else "per-rollout" if any tool is annotated as
    destructive or as not read-only, and "shared" otherwise."""
    reset_tool: str | None = None
    """The server's own name of the tool that resets its state. It is called with the scenario's `initial_state` as
    arguments, and no model sees it."""
    reset: Reset | None = None
    """A function that resets the state, called after `reset_tool` if both are given."""
    instances: int | None = None
    """Maximum number of open connections if they are not shared; None: as many as the processors and the memory allow.
    A server that others run has a single state, so "reset" keeps one connection to it."""
    sandbox: SandboxKind | None = None
    """The sandbox of a server that we start: "files" keeps what it writes in a layer of its own, "network" also leaves
    it no network but its own loopback, "off" runs it as it is. None: "files"."""
    phrases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tool name to request templates with `{argument}` placeholders."""
    argument_samplers: Mapping[str, ArgumentSampler] = field(default_factory=dict)
    """Tool name to a function that draws plausible arguments."""
    deadlines: Mapping[str, float] = field(default_factory=dict)
    """Step ("spawn", "initialize", "list", "call", "close") to seconds, to override the defaults."""
    tool_deadlines: Mapping[str, float] = field(default_factory=dict)
    """Tool to the seconds for one call of it."""
    elicitation: Elicitation | FillIn = "decline"
    """Answer to a server that asks its user for input: "decline", "defaults" (of the form; declines if one is missing),
    or a function of a Question that returns the form's values, or None to decline."""
    offer: tuple[str, ...] = ()
    """Other capabilities to offer the model as tools: "resources", "prompts"."""
    start: tuple[str, ...] = ()
    """Addresses or paths where exploring begins; none: the paths in the command."""
    system_prompt: str | None = None
    """The system prompt of each rollout."""
    scenarios: str | Path | None = None
    """The default file of scenarios (JSON Lines); may contain `{bundled}`."""
    source: str | None = None
    """The scenario source where none is named and there is no file; None: `explore`."""
    verifiers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Kind to function, as for the hook `register_verifiers`."""
    seats: Seats | None = None
    """How several players take turns in one episode, for games; None: an episode has one player."""
    members: tuple[ToolServer, ...] = ()
    """The servers of a group; filled in by `together`."""
    origin: str = ""
    """The plugin or file that offers it; filled in at registration."""
    by_plugin: bool = False
    """True if a plugin offers it, whose word holds without being measured; filled in at registration."""
    measured: MeasuredState | None = None
    """Its state, measured where no isolation is declared; filled in at first contact."""
    avoided: frozenset[str] = frozenset()
    """Tools that exploring does not call any more, since they ended the server."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]{1,100}", self.name):
            raise PluginError(f"A server's name must be letters, digits, '-', '_', '+' and '.', not {self.name!r}.")
        if self.isolation not in (None, *get_args(Isolation)):
            raise PluginError(
                f"Server {self.name}: isolation must be one of {get_args(Isolation)}, not {self.isolation!r}."
            )
        if self.sandbox not in (None, *get_args(SandboxKind)):
            raise PluginError(
                f"Server {self.name}: sandbox must be one of {get_args(SandboxKind)}, not {self.sandbox!r}."
            )
        resets = self.reset_tool is not None or self.reset is not None
        if self.isolation is None and resets:
            object.__setattr__(self, "isolation", "reset")
        if (self.isolation == "reset") != resets:
            raise PluginError(f'Server {self.name}: isolation "reset" and a reset_tool or reset belong together.')
        for step, seconds in self.deadlines.items():
            if step not in STEPS or not seconds > 0:
                raise PluginError(
                    f"Server {self.name}: deadlines are seconds above 0 for {', '.join(STEPS)}, not {step}: {seconds}."
                )
        for tool, seconds in self.tool_deadlines.items():
            if not seconds > 0:
                raise PluginError(f"Server {self.name}: the deadline of {tool} must be above 0 s, not {seconds}.")
        if self.elicitation not in get_args(Elicitation) and not callable(self.elicitation):
            raise PluginError(
                f"Server {self.name}: elicitation must be one of {get_args(Elicitation)} or a function, not "
                f"{self.elicitation!r}."
            )
        for what in self.offer:
            if what not in OFFERED:
                raise PluginError(f"Server {self.name} can offer {' and '.join(OFFERED)}, not {what!r}.")
        if self.instances is not None and self.instances < 1:
            raise PluginError(f"Server {self.name}: instances must be 1 or more, not {self.instances}.")
        if not self.transports:
            raise PluginError(f"Server {self.name} offers no transport.")
        for transport, params in self.transports.items():
            if transport != getattr(params, "transport", None):
                raise PluginError(
                    f"Server {self.name}: the entry for transport {transport!r} holds parameters of another one."
                )

    @classmethod
    def from_script(
        cls, name: str, description: str, script: str, *, default: str = "stdio", **fields: Any
    ) -> ToolServer:
        """Describe a Python script that takes `--transport NAME --port PORT` and offers all three transports.

        `script` may contain the placeholder `{bundled}`. The endpoints are the SDK's: `/sse` and `/mcp` on 127.0.0.1.
        `default` is the transport where none is asked for. Raises PluginError for another one than these three.
        """

        def launch(*args: str) -> Launch:
            return Launch(command="{python}", args=(script, *args))

        transports: dict[str, ServerParams] = {
            "stdio": StdioServer(command="{python}", args=(script, "--transport", "stdio")),
            "sse": SseServer(
                url="http://127.0.0.1:{port}/sse", launch=launch("--transport", "sse", "--port", "{port}")
            ),
            "streamable-http": StreamableHttpServer(
                url="http://127.0.0.1:{port}/mcp", launch=launch("--transport", "streamable-http", "--port", "{port}")
            ),
        }
        if default not in transports:
            raise PluginError(
                f"Server {name}: the default transport must be one of {', '.join(transports)}, not {default!r}."
            )
        return cls(name, description, {default: transports[default]} | transports, **fields)

    @classmethod
    def together(cls, servers: Sequence[ToolServer]) -> ToolServer:
        """Make a group of several servers, with tools named `server__tool`. Raises PluginError for ambiguous names."""
        names = [server.name for server in servers]
        for server in servers:
            if server.toolless:
                raise PluginError(f"--server {server.name} means that there is no server; leave it out beside others.")
        for name in names:
            if names.count(name) > 1:
                raise PluginError(f"The server {name!r} is named twice; name each server once.")
            if any(other.startswith(f"{name}{BETWEEN}") for other in names):
                raise PluginError(
                    f"Next to the server {name}, no server may be called {name}{BETWEEN}…: names would be ambiguous."
                )
        prompts = [f"{server.name}: {server.system_prompt}" for server in servers if server.system_prompt]
        return cls(
            name="+".join(names),
            description=" ".join(server.description for server in servers),
            transports={"group": ServerGroup(servers={server.name: _one(server.params()) for server in servers})},
            phrases={key: phrases for server in servers for key, phrases in _prefixed(server, server.phrases)},
            argument_samplers={
                key: sampler for server in servers for key, sampler in _prefixed(server, server.argument_samplers)
            },
            system_prompt="\n\n".join(prompts) or None,
            verifiers={kind: function for server in servers for kind, function in server.verifiers.items()},
            members=tuple(servers),
            origin=", ".join(dict.fromkeys(server.origin for server in servers)),
        )

    def configured(self, tools: ToolsConfig) -> ToolServer:
        """Return this server with the user's settings, which override its declarations. Raises PluginError."""
        if self.members:
            return replace(self, members=tuple(m.configured(t) for m, t in self._for_members(tools)))
        if self.toolless and (meant := _about_tools(tools)):
            raise PluginError(f"There are no tools without a server (--server {self.name}); leave out {meant}.")
        changes: dict[str, Any] = {
            "offer": tuple(dict.fromkeys((*self.offer, *tools.offer))),
            "start": tuple(dict.fromkeys((*self.start, *tools.start))),
        }
        if tools.reset_tool is not None:
            changes |= {"isolation": "reset", "reset_tool": tools.reset_tool}
        elif tools.isolation not in (None, "reset"):
            changes |= {"isolation": tools.isolation, "reset_tool": None, "reset": None}
        elif tools.isolation == "reset" and self.isolation != "reset":
            raise PluginError(
                f"The isolation reset needs a tool that resets the server {self.name}; set tools.reset_tool too."
            )
        if tools.sandbox is not None:
            changes["sandbox"] = tools.sandbox
        if tools.elicitation is not None:
            changes["elicitation"] = tools.elicitation
        if tools.max_servers is not None:
            changes["instances"] = tools.max_servers
        return replace(self, **changes)

    def _for_members(self, tools: ToolsConfig) -> Iterator[tuple[ToolServer, ToolsConfig]]:
        """Yield each member with its settings: the reset tool belongs to a single server."""
        if tools.reset_tool is None:
            yield from ((member, tools) for member in self.members)
            return
        names = [member.name for member in self.members]
        owner = next((name for name in names if tools.reset_tool.startswith(f"{name}{BETWEEN}")), None)
        if owner is None:
            raise PluginError(
                f"tools.reset_tool is {tools.reset_tool!r}; with several servers, name the tool's server too, such as "
                f"{names[0]}{BETWEEN}{tools.reset_tool}."
            )
        theirs = tools.model_copy(update={"isolation": None, "reset_tool": None})
        own = tools.model_copy(update={"reset_tool": tools.reset_tool.removeprefix(f"{owner}{BETWEEN}")})
        yield from ((member, own if member.name == owner else theirs) for member in self.members)

    @property
    def toolless(self) -> bool:
        """True for `--server none`: there is no server, and the model has no tools."""
        return not self.members and self.transports == _NO_SERVER

    @property
    def filled_anew(self) -> bool:
        """True if calls fill each process of a server anew, so that ids and times differ from process to process."""
        return any(one.measured is not None and one.measured.filled_anew for one in self.members or (self,))

    @property
    def stateful(self) -> bool:
        """True if the server, or a member of the group, declares that each episode has its own state."""
        return any(member.stateful for member in self.members) or self.isolation in ("layer", "reset", "per-rollout")

    def with_state(self, measured: MeasuredState) -> ToolServer:
        """Return this server with the isolation that its measured state needs, in a sandbox like the one of then."""
        return replace(self, isolation=measured.isolation, measured=measured, sandbox=self.sandbox or "files")

    def avoiding(self, tools: Iterable[str]) -> ToolServer:
        """Return this server with more tools that exploring does not call."""
        return replace(self, avoided=self.avoided | set(tools))

    def owner_of(self, tool: str) -> tuple[ToolServer, str]:
        """Return the server of a tool, a member of a group, and the tool's name there."""
        for member in self.members:
            if tool.startswith(f"{member.name}{BETWEEN}"):
                return member, tool.removeprefix(f"{member.name}{BETWEEN}")
        return self, tool

    def declared_isolation(self, tool: str) -> Isolation:
        """Return the isolation that the server of a tool declares; "shared" if it declares none."""
        owner, _ = self.owner_of(tool)
        return owner.isolation or "shared"

    def params(self, transport: str | None = None) -> ServerParams:
        """Return the connection parameters for `transport`, by default the first one. Raises PluginError."""
        if self.members:
            return ServerGroup(servers={server.name: _one(server.params(transport)) for server in self.members})
        if transport is None:
            return next(iter(self.transports.values()))
        if transport not in self.transports:
            offered = ", ".join(self.transports)
            raise PluginError(f"Server {self.name} has no transport {transport!r}; it offers {offered}.")
        return self.transports[transport]


_NO_SERVER: Mapping[str, ServerParams] = {"group": ServerGroup(servers={})}
NO_SERVER = ToolServer("none", "No server and no tools: the model answers in words.", _NO_SERVER)
"""The server of `--server none`: a group without members, so it has no tools, and nothing is started."""


def _about_tools(tools: ToolsConfig) -> str | None:
    """Return the first setting of `tools` that needs a server to mean something; None if there is none."""
    needing = ("isolation", "reset_tool", "sandbox", "include", "exclude", "offer", "start", "elicitation", "deadlines")
    return next((f"tools.{name}" for name in needing if getattr(tools, name)), None)


def _one(params: ServerParams) -> StdioServer | SseServer | StreamableHttpServer:
    if isinstance(params, ServerGroup):
        raise PluginError("A group of servers cannot be part of another group.")
    return params


def _prefixed(server: ToolServer, by_tool: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for tool, value in by_tool.items():
        yield f"{server.name}{BETWEEN}{tool}", value


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of an error: a question with the nearest valid name, or the list of all names."""
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose one of {', '.join(sorted(names))}." if names else "none is registered."
