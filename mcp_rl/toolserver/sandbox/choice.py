"""Choice of a server's sandbox: the user's, else the plugin's, else "files"; none where it is not started here."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

from mcp_rl.errors import ServerError
from mcp_rl.scenario import OneServer, StdioServer
from mcp_rl.toolserver.connection.launch import folder_of, own_folder
from mcp_rl.toolserver.sandbox.copied_paths import CopiedPaths
from mcp_rl.toolserver.sandbox.layer import Layer
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.sandbox.private import privately
from mcp_rl.toolserver.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.config import SandboxKind, ToolsConfig
    from mcp_rl.toolserver.tool_server import ToolServer

_DEFAULT: SandboxKind = "files"
_CONTAINERS = {"docker", "nerdctl", "podman"}
"""Programs that run a server in a container: it writes there, and the program itself needs what a sandbox forbids."""


def sandbox_of(server: ToolServer | None, tools: ToolsConfig | None = None, *, private: bool = False) -> Sandbox:
    """Return the sandbox of a server by the user's settings and its own declaration."""
    kind = (tools.sandbox if tools else None) or (server.sandbox if server else None) or _DEFAULT
    return Sandbox(kind, private=private)


@dataclass(frozen=True)
class ServerSurroundings:
    """The command, layer and copies of files that one process of a server is started with."""

    params: OneServer
    layer: Layer | None = None
    """The layer of its sandbox; None if it runs in none."""
    paths: CopiedPaths = field(default_factory=CopiedPaths)
    """The copies that it works on where this machine has no sandbox."""


@contextmanager
def surroundings(params: OneServer, sandbox: Sandbox, *, server: str) -> Iterator[ServerSurroundings]:
    """Give the surroundings of a server's next process.

    The layer is None if the server runs in no sandbox. Where this machine has none, the process gets copies instead.
    Raises ServerError for a network server that would be alone in its network.
    """
    launch = params if isinstance(params, StdioServer) else params.launch
    if sandbox.kind == "off" or launch is None or PurePath(launch.command).name in _CONTAINERS:
        with own_folder(params, wanted=sandbox.private) as expanded:
            yield ServerSurroundings(expanded)
        return
    if sandbox.kind == "network" and not isinstance(params, StdioServer):
        raise ServerError(
            f"{server} listens on a port, which --sandbox network keeps to itself; use --transport stdio or --sandbox "
            "files."
        )
    if (why := obstacle()) is not None:
        with own_folder(params, wanted=True) as expanded:
            copied, paths = privately(expanded, folder_of(expanded), server=server, why=why)
            yield ServerSurroundings(copied, paths=paths)
        return
    with own_folder(params, wanted=sandbox.private) as expanded:
        layer = Layer(sandbox, server)
        try:
            yield ServerSurroundings(expanded, layer)
        finally:
            layer.close()
