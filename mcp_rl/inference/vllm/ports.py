"""Where a server may listen."""

import secrets
import socket

from mcp_rl.errors import EngineError

_PORTS = range(20000, 32000)
"""Below those that systems give to outgoing connections, so that none takes ours while vLLM gets up to binding it."""


def free_port() -> int:
    """A port on loopback that nobody listens on now. Raises EngineError where there is none."""
    for _ in range(200):
        if is_free("127.0.0.1", port := secrets.choice(_PORTS)):
            return port
    raise EngineError(f"No port of {_PORTS.start} to {_PORTS.stop - 1} is free on 127.0.0.1 for vLLM's server.")


def is_free(host: str, port: int) -> bool:
    """Whether a server may listen there now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError:
        return False
    return True


def reached_at(host: str) -> str:
    """What we connect to where a server listens at `host`."""
    if host in ("0.0.0.0", "", "localhost"):
        return "127.0.0.1"
    return "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
