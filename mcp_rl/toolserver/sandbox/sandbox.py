"""`Sandbox`: what a server that we start runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.system.processes.memory import machine_memory

if TYPE_CHECKING:
    from mcp_rl.config import SandboxKind

_SHARE_OF_MEMORY = 16
_LEAST_BYTES, _MOST_BYTES = 2**26, 2**30


@dataclass(frozen=True)
class Sandbox:
    """The sandbox that a server is to run in."""

    kind: SandboxKind = "files"
    """"files": what it writes goes into its layer. "network": it also has no network but its own loopback. "off": it
    runs as it is."""
    private: bool = False
    """Give it a temporary directory (TMPDIR) of its own too."""


def layer_bytes() -> int:
    """Return the most that a layer may hold: a sixteenth of the memory, from 64 MB to 1 GB."""
    total, _ = machine_memory()
    return max(_LEAST_BYTES, min(_MOST_BYTES, total // _SHARE_OF_MEMORY))
