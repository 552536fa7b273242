"""The first contact with a server that declares no isolation: its state is measured, and remembered.

What was measured is kept in the user's cache (`$XDG_CACHE_HOME/mcp_rl/servers`), a file for each way of starting a
server. It holds no secret: the parameters are only in the file's name, as a hash.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic import ValidationError

from mcp_rl.config import Isolation
from mcp_rl.errors import ServerFault
from mcp_rl.explore.measuring.measure import measure_state
from mcp_rl.scenario import ServerGroup
from mcp_rl.system.durable import write_atomically
from mcp_rl.system.measured import cache_folder
from mcp_rl.system.notices import notice
from mcp_rl.toolserver.choice import ToolChoice
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.sandbox.sandbox import Sandbox
from mcp_rl.toolserver.state import Kept, MeasuredState
from mcp_rl.toolserver.tools.offered import offering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcp_rl.config import ToolsConfig
    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.sandbox.layer import Layer
    from mcp_rl.toolserver.tool_server import ToolServer

log = logging.getLogger(__name__)

_ENOUGH: dict[Kept, tuple[Isolation, ...]] = {
    "nothing": get_args(Isolation),
    "unsure": get_args(Isolation),
    "files": ("layer", "reset", "per-rollout"),
    "process": ("reset", "per-rollout"),
    "elsewhere": ("reset",),
}
"""The isolations that keep episodes apart, by where the state is kept."""
_VERSION = 11
"""Part of a file's name; raised when what is measured changes its meaning."""


async def understood(
    server: ToolServer, transport: str | None, tools: ToolsConfig, *, anew: bool = False
) -> ToolServer:
    """Return the server with its measured state, where nothing is declared and it can be measured.

    A plugin is a declaration. A server can be measured if we start it, in a sandbox. With `anew`, what is remembered
    does not count. If calls are replayed, nothing is started, and only what is remembered counts. Raises ServerError
    where it does not start.
    """
    if server.members:
        members = [await understood(one, transport, tools, anew=anew) for one in server.members]
        return replace(server, members=tuple(members))
    contact = _contact(server, transport, tools)
    if contact is None:
        return server
    known = None if anew else contact.remembered()
    if known is None and tools.replay is None and contact.sandboxed:
        known = await contact.measured()
        if known is not None:
            contact.remember(known)
    for call in known.fatal if known is not None else ():
        notice(call.sentence(server.name))
    return server if known is None else server.with_state(known)


def recalled(server: ToolServer, transport: str | None, tools: ToolsConfig) -> ToolServer:
    """Return the server with its measured state if that is remembered; nothing is started."""
    if server.members:
        return replace(server, members=tuple(recalled(one, transport, tools) for one in server.members))
    contact = _contact(server, transport, tools)
    known = contact.remembered() if contact else None
    return server if known is None else server.with_state(known)


def will_measure(server: ToolServer, transport: str | None, tools: ToolsConfig) -> bool:
    """Return whether `understood` would measure the state of one server, which is not remembered."""
    contact = _contact(server, transport, tools)
    return contact is not None and contact.sandboxed


def _contact(server: ToolServer, transport: str | None, tools: ToolsConfig) -> _Contact | None:
    """Return the contact with a server whose state is undeclared and can be measured; None for any other."""
    params = server.params(transport)
    if server.by_plugin or server.isolation is not None or isinstance(params, ServerGroup) or not params.ours_to_start:
        return None
    return _Contact(server, params, tools)


def contradictions(server: ToolServer, transport: str | None, tools: ToolsConfig) -> list[str]:
    """Return a sentence for each server whose declared isolation does not fit the state that is remembered of it."""
    found = []
    for one in server.members or (server,):
        params = one.params(transport)
        if one.measured is not None or one.isolation is None or isinstance(params, ServerGroup):
            continue
        known = _Contact(one, params, tools).remembered()
        if known is not None and one.isolation not in _ENOUGH[known.kept]:
            found.append(
                f"{one.name} is declared {one.isolation}, but calls showed that {known.finding}; {known.isolation} "
                "would fit."
            )
    return found


def with_states(server: ToolServer, states: Mapping[str, MeasuredState]) -> ToolServer:
    """Return the server with states that were measured before, by the names of the servers."""
    if server.members:
        return replace(server, members=tuple(with_states(one, states) for one in server.members))
    known = states.get(server.name)
    return server if known is None or server.isolation is not None else server.with_state(known)


def states_of(server: ToolServer) -> dict[str, MeasuredState]:
    """Return the measured states of a server, or of the members of a group, by their names."""
    return {one.name: one.measured for one in server.members or (server,) if one.measured is not None}


class _Contact:
    """A server, started in one way: its parameters, sandbox and isolation."""

    def __init__(self, server: ToolServer, params: OneServer, tools: ToolsConfig) -> None:
        self._server, self._params, self._tools = server, params, tools
        self._sandbox = Sandbox(tools.sandbox or server.sandbox or "files")
        place = str(Path.cwd())  # relative paths in a command mean something else elsewhere
        kind = self._sandbox.kind
        parts = [_VERSION, params.model_dump_json(), place, kind, server.offer, tools.include, tools.exclude]
        parts += [server.start] if server.start else []
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
        self._file = cache_folder() / "servers" / f"{digest}.json"

    @property
    def sandboxed(self) -> bool:
        """True if servers get layers on this machine, and this one is to get one."""
        return self._sandbox.kind != "off" and obstacle() is None

    def remembered(self) -> MeasuredState | None:
        """Return what the cache holds of this server, or None."""
        try:
            return MeasuredState.model_validate_json(self._file.read_bytes())
        except (OSError, ValidationError):
            return None

    def remember(self, measured: MeasuredState) -> None:
        """Keep the state in the cache, unless it cannot be written: then it is measured again next time."""
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._file, measured.model_dump_json(indent=2).encode())

    async def measured(self) -> MeasuredState | None:
        """Start the server several times and measure its state; None if that fails. Raises ServerError."""
        choice = ToolChoice(self._server.name, self._tools, reset_tool=None, in_group=True)
        try:
            start = self._server.start
            return await measure_state(
                self._params, lambda link: choice.session("", link).offered, self._place, start=start
            )
        except _NoLayer:
            return None
        except ServerFault as fault:  # it ended, or hung, and no call made alone does that: then annotations decide
            log.info("The state of %s was not measured: %s", self._server.name, fault)
            return None

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[_LivePlace]:
        opening = connect(
            self._params, deadlines=Deadlines().of_steps(self._server.deadlines), name=self._server.name, stateful=True,
            allow_schema_change=True, sandbox=self._sandbox,
        )  # fmt: skip
        async with opening as connection:
            if connection.layer is None:  # a program that starts a container
                raise _NoLayer
            yield _LivePlace(await offering(connection, self._server.offer), connection.layer)


class _NoLayer(Exception):
    """A server that runs in no sandbox after all."""


class _LivePlace:
    """A server in a sandbox of its own."""

    def __init__(self, link: Link, layer: Layer) -> None:
        self.link, self._layer = link, layer

    async def mark(self) -> None:
        await self._layer.mark()

    async def throw_away(self) -> None:
        await self._layer.throw_away()

    async def packed(self) -> bytes | None:
        return await self._layer.packed()

    async def unpack(self, packed: bytes) -> None:
        await self._layer.unpack(packed)
