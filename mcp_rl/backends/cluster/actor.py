"""The base of all actors: their environment, their place, and a pulse that answers whatever else they do."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import TYPE_CHECKING

from mcp_rl.backends.cluster.about import About, versions
from mcp_rl.system.processes.held_folder import HeldFolder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PULSE = "pulse"
"""The concurrency group of `pulse`, which has an event loop of its own."""
_SCRATCH = "mcp_rl_ray_"


class ClusterActor:
    """An actor that keeps nothing which it cannot be told again: Ray may run `__init__` at any time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` holds the variables that must be set before torch is imported."""
        os.environ.update(environment)
        self.incarnation = secrets.token_hex(4)
        self._opening = asyncio.Lock()
        self._held: HeldFolder | None = None

    @property
    def scratch(self) -> Path:
        """A folder of this actor, which its next start on this machine removes if it cannot."""
        if self._held is None:
            self._held = HeldFolder(_SCRATCH)
        return self._held.path

    async def about(self) -> About:
        """Return the actor's place and versions."""
        import ray

        context = ray.get_runtime_context()
        return About(
            node=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            incarnation=self.incarnation,
            versions=versions(),
        )

    async def pulse(self) -> str:
        """Return the incarnation, which says that the actor lives and if it has forgotten everything."""
        return self.incarnation

    def tidy(self) -> None:
        """Remove the scratch folder."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
