"""What is measured of a step and of an evaluation, as flat metrics for history.jsonl, and in words."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from mcp_rl.evaluate import EvaluationResult
from mcp_rl.inference.engine import Engine
from mcp_rl.model import group_metrics
from mcp_rl.rewards.agreement import agreement_metrics
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

_SHOWN = {
    "reward": "reward",
    "success": "success",
    "sampled_tokens_mean": "tokens",
    "turns": "turns",
    "groups_useful": "useful groups",
    "groups_refilled": "refilled",
    "refills_short": "not refilled",
    "entropy": "entropy",
    "grad_norm": "gradient",
    "staleness_mean": "staleness",
    "trajectories_stale": "too old",
}
"""Metrics in the line of a step, and how they are called there."""
_SHOWN_ABOVE_ZERO = {"groups_refilled", "refills_short", "staleness_mean", "trajectories_stale"}
_ACTIVITIES = ("sampling", "tools", "judging", "updating", "saving", "overhead")
_SHOWN_TIME_SHARE = 0.1


def rollout_metrics(groups: Sequence[TrajectoryGroup], parts: Iterable[str]) -> dict[str, float]:
    """Means over the rollouts, those of the `parts` of the reward among them."""
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
    """Tokens that the policy was given and did not sample."""
    return sum(len(segment.tokens) - sum(segment.sampled) for segment in trajectory.segments)


def faults(group: TrajectoryGroup) -> int:
    """Rollouts that the world ended, those that were played again included."""
    return len(group.exceptions) + sum(t.stop_reason is StopReason.FAULT for t in group)


def evaluation_metrics(result: EvaluationResult) -> dict[str, Any]:
    """`greedy_success`, `sampled_success` and the like; None where something could not be measured."""
    return {
        f"{kind}_{name}": getattr(measure, name)
        for kind, measure in (("greedy", result.greedy), ("sampled", result.sampled))
        if measure is not None
        for name in ("success", "ci95", "reward")
    }


def best_step(history: Iterable[Mapping[str, Any]]) -> int | None:
    """The step whose evaluation had most success, the greedy one's where there is one; the later one of equals.

    None where no evaluation measured success.
    """
    best: tuple[float, int] | None = None
    for line in history:
        if line.get("split") != "val":
            continue
        success = line.get("greedy_success", line.get("sampled_success"))
        if success is not None:
            best = max(best or (-1.0, -1), (success, line["step"]))
    return None if best is None else best[1]


class CachedTokens:
    """Given tokens that the engine did not compute, because it had them: counted from one `take` to the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = self._count()

    def _count(self) -> int | None:
        """None where the engine does not count them."""
        return getattr(getattr(self._engine, "stats", None), "cached_tokens", None)

    def take(self) -> dict[str, float]:
        """`cached_tokens` since the last time."""
        before, now = self._before or 0, self._count()
        self._before = now
        return {} if now is None else {"cached_tokens": float(now - before)}


def shown_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """What the line of a step shows, under the names that it has there."""
    return {
        name: metrics[key]
        for key, name in _SHOWN.items()
        if key in metrics and (metrics[key] > 0 or key not in _SHOWN_ABOVE_ZERO)
    }


def time_sentence(metrics: Mapping[str, float]) -> str:
    """`sampling 61 %, updating 25 %`: what most of a step's time went to; kinds of work overlap."""
    shares = {name: metrics.get(f"{name}_time_share", 0.0) for name in _ACTIVITIES}
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items() if share >= _SHOWN_TIME_SHARE)


def comparison_sentence(compared: Mapping[str, float]) -> str:
    """How judges see the base and the policy side by side."""
    return (
        f"judged side by side with the base: {compared['judge_before']:.3f} before, {compared['judge_after']:.3f} now; "
        f"better on {compared['judge_better']:.0%}, worse on {compared['judge_worse']:.0%} of "
        f"{compared['judge_compared']:.0f} scenarios."
    )


def evaluation_sentence(result: EvaluationResult) -> str:
    """`greedy success 0.812 [0.730, 0.874], sampled success … on 120 val scenarios.`"""
    parts = []
    for kind, measure in (("greedy", result.greedy), ("sampled", result.sampled)):
        if measure is None:
            continue
        if measure.success is None or measure.ci95 is None:
            parts.append(f"{kind} reward {measure.reward or 0.0:.3f}")
        else:
            low, high = measure.ci95
            parts.append(f"{kind} success {measure.success:.3f} [{low:.3f}, {high:.3f}]")
    return f"{', '.join(parts)} on {result.scenarios} val scenarios."
