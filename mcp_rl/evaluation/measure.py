"""Means over episodes of the same kind, with their costs, and 95 % intervals of the shares."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, quantiles
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from mcp_rl.evaluation.statistics import mean_interval, pass_at_k, pass_hat_k, success_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mcp_rl.trajectory import CallRecord, Trajectory

PROMPT_TOKENS, COMPLETION_TOKENS, COST = "prompt_tokens", "completion_tokens", "cost_usd"
"""Metrics of a trajectory that a remote model's API reports: tokens and price of the episode."""


class Measure(BaseModel):
    """Means over one kind of rollout; None stands for what could not be measured."""

    model_config = ConfigDict(extra="forbid")

    rollouts: int
    success: float | None
    """Mean over scenarios of the share of successful rollouts, 0 to 1."""
    ci95: tuple[float, float] | None
    """95 % interval of `success` over scenarios of the same kind."""
    reward: float | None
    turns: float
    sampled_tokens: float
    """Tokens that the model sampled in an episode."""
    faults: int
    stop_reasons: dict[str, int]
    pass_at: dict[int, float] = {}
    """For each k the probability that at least one of k rollouts succeeds (Chen et al. 2021, unbiased estimator)."""
    pass_at_ci95: dict[int, tuple[float, float]] = {}
    pass_hat: dict[int, float] = {}
    """pass^k: for each k the probability that all of k rollouts succeed (Yao et al. 2024, unbiased estimator)."""
    pass_hat_ci95: dict[int, tuple[float, float]] = {}
    prompt_tokens: float | None = None
    """Tokens in an episode's requests; None for a model sampled on this machine."""
    calls: float | None = None
    """Tool calls in an episode, refused ones included."""
    tool_error_rate: float | None = None
    """Share of the sent calls that came back as errors of the tool."""
    invalid_call_rate: float | None = None
    """Share of the calls that never reached the server: unknown tool, unreadable JSON, arguments that do not fit."""
    seconds: float | None = None
    """Wall-clock time of an episode, waiting for others in flight included."""
    seconds_p95: float | None = None
    """95th percentile of the episodes' wall-clock time."""
    cost_per_1000: float | None = None
    """US dollars for 1,000 episodes; None unless every episode has a price."""


def shown(value: float | None, interval: Sequence[float] | None = None, digits: int = 3) -> str:
    """Format a number with its interval, `0.812 [0.730, 0.874]`; a dash if it was not measured."""
    if value is None:
        return "-"
    ends = "" if interval is None else f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
    return f"{value:.{digits}f}{ends}"


def measure(clusters: Sequence[Sequence[Trajectory]]) -> Measure:
    """Measure the rollouts of each scenario. Faults and timeouts are counted, and are in no mean."""
    every = [trajectory for cluster in clusters for trajectory in cluster]
    counted = [trajectory for trajectory in every if trajectory.stop_reason.trainable]
    outcomes = [found for cluster in clusters if (found := successes(cluster))]
    calls = [call for trajectory in counted for call in trajectory.calls]
    sent = [call for call in calls if call.sent]
    at, hat = _passes(outcomes, pass_at_k), _passes(outcomes, pass_hat_k)
    return Measure(
        rollouts=len(every),
        success=mean(fmean(found) for found in outcomes),
        ci95=success_interval(outcomes) if outcomes else None,
        reward=mean(t.reward for t in counted if t.reward is not None),
        turns=mean(t.turns for t in counted) or 0.0,
        sampled_tokens=mean(map(said_tokens, counted)) or 0.0,
        faults=len(every) - len(counted),
        stop_reasons=dict(sorted(Counter(t.stop_reason.value for t in every).items())),
        pass_at={k: fmean(values) for k, values in at.items()},
        pass_at_ci95={k: mean_interval(values) for k, values in at.items()},
        pass_hat={k: fmean(values) for k, values in hat.items()},
        pass_hat_ci95={k: mean_interval(values) for k, values in hat.items()},
        prompt_tokens=mean(t.metrics[PROMPT_TOKENS] for t in counted if PROMPT_TOKENS in t.metrics),
        calls=mean(len(t.calls) for t in counted),
        tool_error_rate=mean(float(call.is_error) for call in sent),
        invalid_call_rate=mean(float(_invalid(call)) for call in calls),
        seconds=mean(t.seconds for t in counted),
        seconds_p95=_p95([t.seconds for t in counted]),
        cost_per_1000=_cost(counted),
    )


def successes(trajectories: Iterable[Trajectory]) -> list[float]:
    """Return 1 or 0 for each rollout of a scenario that has a verdict, in order."""
    return [float(t.success) for t in trajectories if t.stop_reason.trainable and t.success is not None]


def said_tokens(trajectory: Trajectory) -> float:
    """Return the number of sampled tokens, counted here or by the model's API."""
    return trajectory.metrics.get(COMPLETION_TOKENS, float(trajectory.sampled_tokens))


def mean(values: Iterable[float]) -> float | None:
    """Return the mean; None without values."""
    listed = list(values)
    return fmean(listed) if listed else None


def _passes(outcomes: Sequence[Sequence[float]], estimator: Callable[[int, int, int], float]) -> dict[int, list[float]]:
    """Estimate for each scenario, for k = 1, 2, 4, … up to the number of rollouts that every scenario has."""
    fewest = min(map(len, outcomes), default=0)
    counts = [(len(found), round(sum(found))) for found in outcomes]
    return {2**power: [estimator(n, c, 2**power) for n, c in counts] for power in range(fewest.bit_length())}


def _invalid(call: CallRecord) -> bool:
    return call.is_error and not call.sent


def _p95(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=20, method="inclusive")[-1]


def _cost(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the cost; None unless every episode has a price, since a mean over some of them would be wrong."""
    prices = [t.metrics[COST] for t in trajectories if COST in t.metrics]
    return 1000 * fmean(prices) if prices and len(prices) == len(trajectories) else None
