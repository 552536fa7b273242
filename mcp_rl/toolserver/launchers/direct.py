"""Starts servers without their launchers: each launcher is asked once what it would start.

A start by `npx` costs half a second of processor time for npm alone, every time. What was found is kept while this
process runs and its files are there. A command of another kind, or one that its launcher does not explain, is started
as it is.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from mcp_rl.scenario import Launch, OneServer, ServerGroup, ServerParams, StdioServer
from mcp_rl.system.notices import notice
from mcp_rl.toolserver.connection.launch import minimal_environment, working_folder
from mcp_rl.toolserver.launchers import container, node, python
from mcp_rl.toolserver.launchers.asking import Asking
from mcp_rl.toolserver.launchers.words import named_by, read_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.toolserver.launchers.package import Direct, Package
    from mcp_rl.toolserver.launchers.words import Asked

_FETCHING = (
    "npm_config_", "NPM_", "NODE_", "BUN_", "PNPM_", "UV_", "PIP_", "PIPX_", "DOCKER_", "SSL_CERT_", "HTTP_PROXY",
    "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "REQUESTS_CA_BUNDLE",
    "XDG_",
)  # fmt: skip
"""Prefixes of variables that say where packages come from. Launchers get them, servers do not."""


@dataclass
class _Known:
    direct: Direct | None
    package: Package | None


_known: dict[str, _Known] = {}
_with_mcp_1: set[str] = set()
_locks: dict[str, anyio.Lock] = {}


async def direct(params: OneServer, *, server: str) -> OneServer:
    """Return the parameters that start the server without its launcher, or `params` themselves.

    `server` begins errors. Raises ServerError if the launcher is not there, or says that there is no such package or no
    way to fetch it.
    """
    launch = params if isinstance(params, StdioServer) else params.launch
    asked = read_words(launch.command, launch.args) if launch is not None else None
    if launch is None or asked is None or shutil.which(launch.command) is None:
        return params
    key = _key(launch)
    async with _locks.setdefault(key, anyio.Lock()):
        known = _known.get(key)
        if known is None or (known.direct and not all(file.is_file() for file in known.direct.files)):
            known = _known[key] = await _look(launch, asked, server)
    if (found := known.direct) is None:
        return params
    path = launch.env.get("PATH") or os.environ.get("PATH", os.defpath)
    fields = {
        "command": found.command,
        "args": found.args,
        "env": {**launch.env, "PATH": os.pathsep.join(filter(None, (found.folder, path)))},
    }
    if isinstance(params, StdioServer):
        return params.model_copy(update=fields)
    return params.model_copy(update={"launch": launch.model_copy(update=fields)})


def start_with_mcp_1(params: OneServer) -> bool:
    """Start a server beside version 1 of the Python package mcp from now on, and tell the user; return False where its
    launcher cannot do that."""
    launch = params if isinstance(params, StdioServer) else params.launch
    asked = read_words(launch.command, launch.args) if launch is not None else None
    if launch is None or asked is None or asked.family not in ("uv", "pipx"):
        return False
    if any(named_by(other) == "mcp" for other in asked.others):
        return False
    if (key := _key(launch)) not in _with_mcp_1:
        _with_mcp_1.add(key)
        _known.pop(key, None)
        notice(
            f"{asked.spec} was written for version 1 of the Python package mcp, so it is started by {asked.label} "
            "--with 'mcp<2'."
        )
    return True


def packages(params: ServerParams, *, name: str) -> dict[str, Package]:
    """Return the packages of the servers that were started so far by launchers, by the servers' names."""
    return {
        one: known.package
        for one, launch in _launches(params, name)
        if (known := _known.get(_key(launch))) and known.package
    }


def _launches(params: ServerParams, name: str) -> Iterator[tuple[str, Launch]]:
    members = params.servers.items() if isinstance(params, ServerGroup) else [(name, params)]
    for member, one in members:
        launch = one if isinstance(one, StdioServer) else one.launch
        if launch is not None:
            yield member, launch


def _key(launch: Launch) -> str:
    return repr((launch.command, launch.args, sorted(launch.env.items()), launch.cwd))


async def _look(launch: Launch, asked: Asked, server: str) -> _Known:
    fetching = {name: value for name, value in os.environ.items() if name.startswith(_FETCHING)}
    environment = fetching | minimal_environment(launch, server=server)
    asking = Asking(server, environment, working_folder(launch, server=server))
    if _key(launch) in _with_mcp_1:
        asked = replace(asked, options=(*asked.options, "--with", "mcp<2"))
    match asked.family:
        case "npm":
            found = await node.npm(asked, [launch.command, *launch.args], asking)
        case "bun" | "pnpm":
            found = await node.bun_or_pnpm(asked, asking)
        case "uv":
            found = await python.uv(asked, asking)
        case "pipx":
            found = await python.pipx(asked, asking)
        case _:
            return _Known(None, await container.image(asked, asking))
    return _Known(found, found.package if found else None)
