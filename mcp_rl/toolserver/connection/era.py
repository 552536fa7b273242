"""The two eras of the protocol, and which of them a server speaks.

Revisions up to 2025-11-25 begin with a handshake (`initialize`) and have a session. From 2026-07-28 on there is
neither: every request says in its own `_meta` which revision it is of, and `server/discover` tells what the server
speaks. Its answer decides. Over SSE, a transport of the older era, a connection begins with the handshake instead, as
it does on servers that needed it before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import anyio
from mcp import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp.types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    KNOWN_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from mcp_rl.system.version import own_version

if TYPE_CHECKING:
    from mcp_rl.toolserver.tools.listing import Tool

PROBE_SECONDS = 10.0
"""Seconds for the answer to the first question. A server of the older era may ignore what it does not know."""
TASKS = "io.modelcontextprotocol/tasks"
"""The extension of calls that are answered later (https://github.com/modelcontextprotocol/ext-tasks)."""
_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}}
_NAMES = {**NAME_BEARING_METHODS, "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
_MOST_SHOWN = 5

Send = Callable[[str, dict[str, Any], Any], Awaitable[dict[str, Any]]]
"""Sends a request (method, parameters, the SDK's options) and returns the raw result."""

_handshake_needed: set[str] = set()
"""Servers that were found to need the handshake, so that no further connection of this process asks again."""


class EraError(Exception):
    """A server that speaks another revision than it says, or none that is spoken here; the text continues its name."""


class EndedAtProbe(Exception):
    """A server that ended the connection when it was asked for the newer era."""


@dataclass(frozen=True)
class Agreement:
    """The agreed protocol revision, and the server's description of itself."""

    revision: str
    server_info: dict[str, str] = field(default_factory=dict)
    """Its name and version; empty if it does not say."""
    capabilities: dict[str, Any] = field(default_factory=dict)

    @property
    def modern(self) -> bool:
        """True if every request stands for itself, False if a handshake began a session."""
        return self.revision in MODERN_PROTOCOL_VERSIONS

    @property
    def announces_tools(self) -> bool:
        """True if the server tells when its tools change."""
        tools = self.capabilities.get("tools")
        return isinstance(tools, dict) and tools.get("listChanged") is True


class Envelope:
    """Adds the metadata that each request needs in the era that is spoken."""

    def __init__(self, agreement: Agreement | None = None) -> None:
        self._agreement = agreement
        self._headers: dict[str, dict[tuple[str, ...], str]] = {}

    def around(self, method: str, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters to send, and the SDK's options of sending them."""
        if self._agreement is None:
            return params, {}
        if not self._agreement.modern:
            return params, {"headers": {MCP_PROTOCOL_VERSION_HEADER: self._agreement.revision}}
        return _modern(method, params, self._agreement.revision, self._headers.get(str(params.get("name")), {}))

    def learn(self, tools: list[Tool]) -> tuple[list[Tool], list[str]]:
        """Return the tools that can be called, and a warning for each other one.

        A tool may want arguments repeated in HTTP headers (2026-07-28, `x-mcp-header`); one that asks for impossible
        headers must not be called.
        """
        if self._agreement is None or not self._agreement.modern:
            return tools, []
        wrong = {tool.name: why for tool in tools if (why := find_invalid_x_mcp_header(tool.input_schema)) is not None}
        kept = [tool for tool in tools if tool.name not in wrong]
        self._headers = {tool.name: found for tool in kept if (found := x_mcp_header_map(tool.input_schema))}
        return kept, [f"Tool {name[:80]!r} was left out: {str(why)[:200]}." for name, why in wrong.items()]


def _modern(
    method: str, params: dict[str, Any], revision: str, wanted: dict[tuple[str, ...], str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    meta = {
        **(params.get("_meta") or {}),
        PROTOCOL_VERSION_META_KEY: revision,
        CLIENT_INFO_META_KEY: _us(),
        CLIENT_CAPABILITIES_META_KEY: {**_CAPABILITIES, "extensions": {TASKS: {}}},
    }
    headers = {MCP_PROTOCOL_VERSION_HEADER: revision, MCP_METHOD_HEADER: method}
    if isinstance(name := params.get(_NAMES.get(method, "")), str):
        headers[MCP_NAME_HEADER] = encode_header_value(name)
    if method == "tools/call" and wanted:
        headers |= mcp_param_headers(wanted, params.get("arguments") or {})
    options: dict[str, Any] = {"headers": headers}
    if method == "server/discover":
        options["cancel_on_abandon"] = False  # the specification forbids it
    return {**params, "_meta": meta}, options


def begins_with_handshake(server: str) -> bool:
    """Return whether a server was found to need the handshake; `server` is whatever stands for it in this process."""
    return server in _handshake_needed


def remember(server: str, agreement: Agreement) -> None:
    """Remember the era of a server for its further connections."""
    if agreement.modern:
        _handshake_needed.discard(server)
    else:
        _handshake_needed.add(server)


async def negotiate(
    send: Send, notify: Callable[[str, dict[str, Any]], Awaitable[None]], *, handshake: bool
) -> Agreement:
    """Find out what the server speaks, with the handshake first if `handshake`.

    Raises MCPError if the server refuses the handshake,
    EraError if it speaks no known revision, EndedAtProbe.
    """
    if not handshake and (agreement := await _probe(send)) is not None:
        return agreement
    try:
        agreement = await _shake_hands(send)
    except MCPError as error:
        if (revision := _newer(error)) is None:
            raise
        return await _discover(send, revision)
    await notify("notifications/initialized", {"headers": {MCP_PROTOCOL_VERSION_HEADER: agreement.revision}})
    return agreement


async def _probe(send: Send) -> Agreement | None:
    """Ask for the newer era; return None if the server does not speak it."""
    revision = LATEST_MODERN_VERSION
    for _ in range(2):  # the second time with a revision that the server names
        try:
            with anyio.move_on_after(PROBE_SECONDS):
                return _discovered(await send("server/discover", *_modern("server/discover", {}, revision, {})))
            return None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and error.message.startswith("Connection closed"):
                raise EndedAtProbe from error
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                return None
            named = _named(error)
            if named and not _known(named):
                raise EraError(_none_in_common(named)) from error
            newer = _newer(error)
            if newer is None:
                return None
            revision = newer
    return None


async def _discover(send: Send, revision: str) -> Agreement:
    """Ask a server that refused the handshake, naming this revision."""
    agreement = _discovered(await send("server/discover", *_modern("server/discover", {}, revision, {})))
    if agreement is None:
        raise EraError(f"refuses the handshake for the protocol revision {revision}, and does not speak that one")
    return agreement


def _discovered(raw: dict[str, Any]) -> Agreement | None:
    """Read the answer to `server/discover`; return None if it is none, or names no revision without a handshake."""
    named = raw.get("supportedVersions")
    if not isinstance(named, list) or not named:
        return None
    newer = [revision for revision in MODERN_PROTOCOL_VERSIONS if revision in named]
    if not newer:
        if not _known(named):
            raise EraError(_none_in_common(named))
        return None
    meta = raw.get("_meta")
    info = meta.get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None
    return Agreement(newer[-1], _identity(info), _object(raw.get("capabilities")))


async def _shake_hands(send: Send) -> Agreement:
    params = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": _CAPABILITIES, "clientInfo": _us()}
    raw = await send("initialize", params, {"cancel_on_abandon": False})
    revision = raw.get("protocolVersion")
    if revision in MODERN_PROTOCOL_VERSIONS:
        raise EraError(f"answered the handshake with the protocol revision {revision}, which has no handshake")
    if revision not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise EraError(_none_in_common([revision]))
    return Agreement(str(revision), _identity(raw.get("serverInfo")), _object(raw.get("capabilities")))


def _newer(error: MCPError) -> str | None:
    """Return the newest revision without a handshake that an error names; None if it names none that is known."""
    if error.code != UNSUPPORTED_PROTOCOL_VERSION:
        return None
    return next((revision for revision in reversed(MODERN_PROTOCOL_VERSIONS) if revision in _named(error)), None)


def _named(error: MCPError) -> list[Any]:
    data = error.error.data
    named = data.get("supported") if isinstance(data, dict) else None
    return named if isinstance(named, list) else []


def _known(named: list[Any]) -> bool:
    return any(revision in named for revision in KNOWN_PROTOCOL_VERSIONS)


def _none_in_common(named: list[Any]) -> str:
    shown = ", ".join(str(revision)[:40] for revision in named[:_MOST_SHOWN])
    return f"speaks the protocol revision {shown}; known are {', '.join(KNOWN_PROTOCOL_VERSIONS)}"


@cache
def _us() -> dict[str, str]:
    return {"name": "mcp-rl", "version": own_version() or "0"}


def _identity(info: Any) -> dict[str, str]:
    if not isinstance(info, dict) or not isinstance(info.get("name"), str):
        return {}
    return {"name": info["name"], "version": str(info.get("version", ""))}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
