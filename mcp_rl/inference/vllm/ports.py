"""Free ports for a server."""

import secrets
import socket

from mcp_rl.errors import EngineStop

_PORTS = range(20000, 32000)
"""Below the ports of outgoing connections, so that none of them takes the port before vLLM binds it."""


def free_port() -> int:
    """Return a port on loopback that is free now. Raises EngineStop if there is none."""
    for _ in range(200):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EngineStop(f"No port of {_PORTS.start} to {_PORTS.stop - 1} is free on 127.0.0.1 for vLLM's server.")
