"""Every hook that a plugin may implement. Built-in parts use the same ones.

The first six are called once, when the plugin is loaded, with a function `register` that checks what it is given; the
others are called as a run goes on, and what they raise is reported and changes nothing. `docs/plugins.md` has a whole
plugin for each.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from mcp_rl.plugins.parts import MakeBackend, MakeTracker, ScenarioSource
    from mcp_rl.plugins.server import ToolServer
    from mcp_rl.rewards.verdict import RewardFunction, VerifierFunction
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory

hookspec = pluggy.HookspecMarker("mcp_rl")
hookimpl = pluggy.HookimplMarker("mcp_rl")


@hookspec
def register_servers(register: "Callable[[ToolServer], None]") -> None:
    """Offer tool servers for `--server NAME`: call `register(server)` for each."""


@hookspec
def register_scenario_sources(register: "Callable[[str, ScenarioSource], None]") -> None:
    """Offer ways to make tasks for `scenarios.source`: call `register(name, function)` for each."""


@hookspec
def register_verifiers(register: "Callable[[str, VerifierFunction], None]") -> None:
    """Offer ways to check an answer for scenarios to name: call `register(kind, function)` for each."""


@hookspec
def register_rewards(register: "Callable[[str, RewardFunction], None]") -> None:
    """Offer parts of a reward for `reward.weights`: call `register(name, function)` for each."""


@hookspec
def register_backends(register: "Callable[[str, MakeBackend], None]") -> None:
    """Offer what trains and samples for `backend`: call `register(name, factory)` for each."""


@hookspec
def register_trackers(register: "Callable[[str, MakeTracker], None]") -> None:
    """Offer what shows a run's metrics for `trackers`: call `register(name, factory)` for each."""


@hookspec
def rollout_finished(scenario: "McpScenario", trajectory: "Trajectory") -> None:
    """Observe a training rollout, scored, once its step has been played."""


@hookspec
def step_finished(step: int, metrics: dict[str, float]) -> None:
    """Observe a training step: its number, counted from 1, and its metrics."""


@hookspec
def checkpoint_saved(step: int, path: Path) -> None:
    """Observe a checkpoint that is whole on disk."""
