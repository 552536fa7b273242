"""Metrics of a step and of an evaluation: flat, for history.jsonl, and in words."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from mcp_rl.evaluation.agreement import agreement_metrics
from mcp_rl.model import group_metrics
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_rl.evaluation.evaluate import EvaluationResult
    from mcp_rl.inference.engine import Engine

_SHOWN = {
    "reward": "reward",
    "success": "success",
    "sampled_tokens_mean": "tokens",
    "turns": "turns",
    "groups_useful": "useful groups",
    "demonstrations": "demonstrations",
    "imitated": "imitated",
    "imitation_loss": "loss",
    "groups_refilled": "refilled",
    "refills_short": "not refilled",
    "entropy": "entropy",
    "grad_norm": "gradient",
    "staleness_mean": "staleness",
    "trajectories_stale": "too old",
}
"""For each metric in the line of a step its name there."""
_SHOWN_ABOVE_ZERO = {"groups_refilled", "refills_short", "staleness_mean", "trajectories_stale"}
_ACTIVITIES = ("sampling", "tools", "judging", "updating", "saving", "overhead")
_SHOWN_TIME_SHARE = 0.1
_TOKENS_AS_DEAR = 500
"""Given tokens that make each sampled one cost the built-in model as much again: most are the listing's, which it
attends to, and results go through its layers too."""


def rollout_metrics(groups: Sequence[TrajectoryGroup], parts: Iterable[str]) -> dict[str, float]:
    """Return means over the rollouts, including the named `parts` of the reward."""
    groups = [group for group in groups if not group.demonstrates]
    metrics = group_metrics(groups) | agreement_metrics(groups)
    scores = {name: [t.metrics[name] for group in groups for t in group if name in t.metrics] for name in parts}
    metrics |= {f"part_{name}": fmean(values) for name, values in scores.items() if values}
    useful = sum(group.has_variance for group in groups)
    return metrics | {
        "groups_useful": float(useful),
        "groups_useful_share": useful / max(1, len(groups)),
        "sampled_tokens_mean": metrics["sampled_tokens"] / max(1.0, metrics["rollouts"]),
        "prompt_tokens": float(sum(_given_tokens(t) for group in groups for t in group)),
        "faults": float(sum(faults(group) for group in groups)),
    }


def _given_tokens(trajectory: Trajectory) -> int:
    """Count the tokens that the policy read and did not sample."""
    return sum(len(segment.tokens) - sum(segment.sampled) for segment in trajectory.segments)


def faults(group: TrajectoryGroup) -> int:
    """Count the rollouts that the world ended, including those that were played again."""
    return len(group.exceptions) + sum(t.stop_reason is StopReason.FAULT for t in group)


def evaluation_metrics(result: EvaluationResult) -> dict[str, Any]:
    """Return `greedy_success`, `sampled_success` and so on; None for what could not be measured."""
    return {
        f"{kind}_{name}": getattr(measure, name)
        for kind, measure in (("greedy", result.greedy), ("sampled", result.sampled))
        if measure is not None
        for name in ("success", "ci95", "reward")
    }


def best_step(history: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the step with the most success in evaluation, greedy if measured; of equal steps the later one.

    None if no evaluation measured success.
    """
    best: tuple[float, int] | None = None
    for line in history:
        if line.get("split") != "val":
            continue
        success = line.get("greedy_success", line.get("sampled_success"))
        if success is not None:
            best = max(best or (-1.0, -1), (success, line["step"]))
    return None if best is None else best[1]


def episode_tokens(history: Iterable[Mapping[str, Any]], step: int) -> float:
    """Return the cost of an episode: its sampled tokens, weighted by the length of its prompts.

    Measured in the last training step up to `step` that sampled, or, before the first one, in the evaluation of the
    initial policy. 0 if `history` has neither.
    """
    measured = [line for line in history if line.get("step", 0) <= step and "sampled_tokens_mean" in line]
    trained = [line for line in measured if line.get("split") == "train"]
    before = [line for line in measured if line.get("split") == "val" and line["step"] == 0]
    line = max(trained, key=lambda line: line["step"], default=before[0] if before else {})
    given = float(line.get("prompt_tokens", 0.0)) / max(1.0, float(line.get("rollouts", 1.0)))
    return float(line.get("sampled_tokens_mean", 0.0)) * (1 + given / _TOKENS_AS_DEAR)


class CachedTokens:
    """Counts prompt tokens that the engine took from its cache, from one `take` to the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = self._count()

    def _count(self) -> int | None:
        """Return the engine's count; None if it does not count them."""
        return getattr(getattr(self._engine, "stats", None), "cached_tokens", None)

    def take(self) -> dict[str, float]:
        """Return `cached_tokens` since the last call."""
        before, now = self._before or 0, self._count()
        self._before = now
        return {} if now is None else {"cached_tokens": float(now - before)}


def shown_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that the line of a step shows, under their names there."""
    return {
        name: metrics[key]
        for key, name in _SHOWN.items()
        if key in metrics and (metrics[key] > 0 or key not in _SHOWN_ABOVE_ZERO)
    }


def time_sentence(metrics: Mapping[str, float]) -> str:
    """Return `sampling 61 %, updating 25 %`: the main kinds of work in a step's time; they overlap."""
    shares = {name: metrics.get(f"{name}_time_share", 0.0) for name in _ACTIVITIES}
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items() if share >= _SHOWN_TIME_SHARE)


def comparison_sentence(compared: Mapping[str, float]) -> str:
    """Describe the judges' comparison of the base and the policy."""
    return (
        f"judged side by side with the base: {compared['judge_before']:.3f} before, {compared['judge_after']:.3f} now; "
        f"better on {compared['judge_better']:.0%}, worse on {compared['judge_worse']:.0%} of "
        f"{compared['judge_compared']:.0f} scenarios."
    )
