"""Every hook that a plugin may implement. Built-in parts use the same ones."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from mcp_rl.plugins.server import ToolServer
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory

hookspec = pluggy.HookspecMarker("mcp_rl")
hookimpl = pluggy.HookimplMarker("mcp_rl")


@hookspec
def register_servers(register: "Callable[[ToolServer], None]") -> None:
    """Offer tool servers: call `register(server)` for each."""


@hookspec
def register_verifiers(register: Callable[[str, Callable[..., Any]], None]) -> None:
    """Offer ways to check an answer: call `register(kind, function)` for each."""


@hookspec
def rollout_finished(scenario: "McpScenario", trajectory: "Trajectory") -> None:
    """Observe a training rollout, scored, once its step has been played."""


@hookspec
def step_finished(step: int, metrics: dict[str, float]) -> None:
    """Observe a training step: its number, counted from 1, and its metrics."""


@hookspec
def checkpoint_saved(step: int, path: Path) -> None:
    """Observe a checkpoint that is whole on disk."""
