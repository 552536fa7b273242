"""Where a server may listen."""

import secrets
import socket

from mcp_rl.errors import EngineStop

_PORTS = range(20000, 32000)
"""Below those that systems give to outgoing connections, so that none takes ours while vLLM gets up to binding it."""


def free_port() -> int:
    """A port on loopback that nobody listens on now. Raises EngineStop where there is none."""
    for _ in range(200):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EngineStop(f"No port of {_PORTS.start} to {_PORTS.stop - 1} is free on 127.0.0.1 for vLLM's server.")
