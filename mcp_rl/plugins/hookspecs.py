"""The hooks that a plugin may implement. Built-in parts use the same hooks.

The `register_…` hooks are called once, when the plugin is loaded, with a function `register` that checks its arguments.
The other hooks observe a run; their errors are reported and do not affect it. `docs/plugins.md` has a complete plugin
for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcp_rl.plugins.parts import MakeBackend, MakeTracker, ScenarioSource
    from mcp_rl.rewards.verdict import RewardFunction, VerifierFunction
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.trajectory import Trajectory

hookspec = pluggy.HookspecMarker("mcp_rl")
hookimpl = pluggy.HookimplMarker("mcp_rl")
"""Decorator that marks a function of a plugin as the implementation of the hook of its name."""


@hookspec
def register_servers(register: Callable[[ToolServer], None]) -> None:
    """Offer tool servers for `--server NAME`: call `register(server)` for each."""


@hookspec
def register_scenario_sources(register: Callable[[str, ScenarioSource], None]) -> None:
    """Offer sources of tasks for `scenarios.source`: call `register(name, function)` for each."""


@hookspec
def register_verifiers(register: Callable[[str, VerifierFunction], None]) -> None:
    """Offer verifiers, which check answers, for scenarios to name: call `register(kind, function)` for each."""


@hookspec
def register_rewards(register: Callable[[str, RewardFunction], None]) -> None:
    """Offer parts of a reward for `reward.weights`: call `register(name, function)` for each."""


@hookspec
def register_backends(register: Callable[[str, MakeBackend], None]) -> None:
    """Offer backends, which train and sample, for `backend`: call `register(name, factory)` for each."""


@hookspec
def register_trackers(register: Callable[[str, MakeTracker], None]) -> None:
    """Offer trackers of metrics and episodes for `trackers`: call `register(name, factory)` for each."""


@hookspec
def rollout_finished(scenario: McpScenario, trajectory: Trajectory) -> None:
    """Observe a scored training rollout, after all rollouts of its step have finished."""


@hookspec
def step_finished(step: int, metrics: dict[str, float]) -> None:
    """Observe a training step: its number, counted from 1, and its metrics."""


@hookspec
def checkpoint_saved(step: int, path: Path) -> None:
    """Observe a checkpoint that is complete on disk."""
