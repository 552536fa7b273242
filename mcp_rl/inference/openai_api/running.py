"""Run an application on a socket: within the limits on connections, and with signals left to the command."""

from __future__ import annotations

import contextlib
import resource
import socket
from typing import TYPE_CHECKING

import anyio
import uvicorn

from mcp_rl.errors import ConfigError
from mcp_rl.inference.openai_api.connections import ACCEPTED_AT_ONCE, limited_protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

_BACKLOG = 2048
"""Connections waiting to be accepted: uvicorn's own number."""
_MOST_CONNECTIONS = 1024
"""Open connections: twice the turns in flight."""
_OTHER_FILES = 128
"""Open files of this process that are no connections."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError where the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)  # two sockets may be bound to one port as long as neither listens
    except OSError as error:
        if error.errno == 98 or "in use" in str(error):
            raise ConfigError(
                f"The port {port} of {host} is taken; choose another with --port, or any free one with --port 0."
            ) from error
        raise ConfigError(f"Cannot serve on {host}, port {port}: {error.strerror or error}.") from error
    return bound


@contextlib.asynccontextmanager
async def running(app: ASGIApp, bound: socket.socket) -> AsyncIterator[int]:
    """Run the application on a socket. At the end, turns in flight have a second before they are cancelled."""
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
        http=limited_protocol(_most_connections()),
        backlog=ACCEPTED_AT_ONCE,
    )
    server = _Server(config)

    async def serve() -> None:
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[bound])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        while not server.started:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        bound.listen(_BACKLOG)
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True


def _most_connections() -> int:
    """Return the limit on open connections: so many that files are left for everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(_MOST_CONNECTIONS, (files - _OTHER_FILES) // 2))  # a request to vLLM needs one more


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield
