"""Reward shaping: the price of needless turns, tool errors and tokens. Off unless a price is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_rl.config import RewardConfig
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory


def shape(trajectory: Trajectory, scenario: McpScenario, config: RewardConfig) -> None:
    """Set metrics["efficiency"], 0 or less, and add it to the reward unless the rollout failed.

    A failure loses for its length alone, since a model that fails anyway would learn to fail fast. The loss is limited,
    so that every success stays above every failure. `success` does not change.
    """
    if not trajectory.trainable:
        return
    long = _overlong(trajectory, config)
    loss = trajectory.metrics["efficiency"] = -min(_loss(trajectory, scenario, config) + long, config.shaping_limit)
    if trajectory.reward is not None:
        trajectory.reward += loss if trajectory.success is not False else -long


def _overlong(trajectory: Trajectory, config: RewardConfig) -> float:
    """Return the soft penalty for length (Yu et al., DAPO, 2025, equation 13), from 0 to the limit of all costs."""
    if config.overlong_from is None:
        return 0.0
    beyond = max(0, trajectory.sampled_tokens - config.overlong_from)
    return config.shaping_limit * min(1.0, beyond / config.overlong_span)


def _loss(trajectory: Trajectory, scenario: McpScenario, config: RewardConfig) -> float:
    needless = max(0, trajectory.turns - len(scenario.reference) - 1) if scenario.reference else trajectory.turns - 1
    errors = sum(call.is_error for call in trajectory.calls)
    loss = config.turn_cost * max(0, needless) + config.error_cost * errors
    return loss + (config.token_cost * trajectory.sampled_tokens / 100 if config.token_cost else 0.0)
