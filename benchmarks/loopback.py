"""Run an ASGI application on a free port of this machine for the duration of a block."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

_DEADLINE = 20.0
"""Seconds for the start, and for the end."""


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Yield the server's address, without a path. Raises RuntimeError if the server does not start in time.

    The server's thread ends with the block.
    """
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _DEADLINE
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the server on loopback did not start")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_DEADLINE)
