"""The small evaluation: a fixed part of the held-out scenarios, played greedily every few steps between the full ones.

Its episodes are those that a full evaluation of the same policy plays of these scenarios, with the same random numbers.
Nothing is learned from it and nothing is saved for it but its own line and episodes, so a run without it has the same
weights.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from mcp_rl.evaluation.measure import measure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.config import EvaluationConfig, RunConfig
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import TrajectoryGroup

SPLIT = "val_subset"
"""Split of its lines in history.jsonl, and its folder of trajectories."""
_MOST_COST = 0.05
"""Episodes of small evaluations for each training rollout."""
_FEWEST_STEPS = 5
"""Steps between two small evaluations, or more: one takes a tenth to a third of a step's time on two cores."""


def choose_subset(val: Sequence[McpScenario], count: int, seed: int) -> list[McpScenario]:
    """Return the fixed part of the held-out scenarios, in their order: `count` of them, or all if there are fewer."""
    chosen = random.Random(f"subset {seed}").sample(range(len(val)), min(count, len(val)))
    return [val[index] for index in sorted(chosen)]


def steps_between(config: RunConfig, scenarios: int) -> int:
    """Return the steps between two small evaluations; 0 for none.

    By default there are enough of them for the training rollouts to be twenty times as many as the evaluation's.
    """
    if not scenarios or config.evaluation.subset_every is not None:
        return config.evaluation.subset_every or 0
    rollout = config.rollout
    fewest = rollout.groups_per_step * (min(rollout.probes, rollout.group_size) or rollout.group_size)
    return max(_FEWEST_STEPS, math.ceil(scenarios / (_MOST_COST * fewest)))


def samples_of(config: EvaluationConfig, *, between: bool) -> int:
    """Return the sampled episodes that an evaluation plays of each scenario; at least one where none is greedy."""
    wanted = config.samples if not between or config.samples_between is None else config.samples_between
    return max(wanted, int(not config.greedy))


def subset_metrics(groups: Iterable[TrajectoryGroup]) -> dict[str, Any]:
    """Return `subset_success` and so on of the groups' first rollouts, which are greedy; empty if none was scored."""
    first = [group.trajectories[:1] for group in groups]
    if not any(first):
        return {}
    found = measure(first)
    metrics = {"success": found.success, "ci95": found.ci95, "reward": found.reward, "scenarios": float(len(first))}
    return {f"subset_{name}": value for name, value in metrics.items() if value is not None}
