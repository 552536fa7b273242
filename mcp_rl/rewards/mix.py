"""The weighted sum of several rewards, which stay visible as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.trajectory import TrajectoryGroup


def mix_rewards(group: TrajectoryGroup, weights: Mapping[str, float]) -> TrajectoryGroup:
    """Set each reward to the weighted sum of metrics, for example {"verifier": 0.5, "ruler": 0.5}.

    Trajectories that must not be trained on keep the reward None. Raises ConfigError where a part is missing.
    """
    for trajectory in group:
        if not trajectory.stop_reason.trainable:
            continue
        missing = [name for name in weights if name not in trajectory.metrics]
        if missing:
            known = ", ".join(sorted(trajectory.metrics)) or "none"
            raise ConfigError(
                f"The reward cannot be mixed from {missing[0]!r}, which nothing has scored; available: {known}."
            )
        trajectory.reward = sum(weight * trajectory.metrics[name] for name, weight in weights.items())
    return group
