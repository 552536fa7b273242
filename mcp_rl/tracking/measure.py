"""Means over episodes of the same kind, with what they cost, and how sure the shares among them are."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, quantiles

from pydantic import BaseModel, ConfigDict

from mcp_rl.tracking.statistics import mean_interval, pass_at_k, pass_hat_k, success_interval
from mcp_rl.trajectory import CallRecord, Trajectory

PROMPT_TOKENS, COMPLETION_TOKENS, COST = "prompt_tokens", "completion_tokens", "cost_usd"
"""Names, among a trajectory's metrics, of what a remote model says that an episode took."""


class Measure(BaseModel):
    """Means over one kind of rollout. None where nothing could be measured."""

    model_config = ConfigDict(extra="forbid")

    rollouts: int
    success: float | None
    """Share of successful rollouts, 0 to 1: the mean over scenarios of each one's share."""
    ci95: tuple[float, float] | None
    """95 % interval of `success`: how it could have come out on other scenarios of the same kind."""
    reward: float | None
    turns: float
    sampled_tokens: float
    """Tokens that the model said in an episode."""
    faults: int
    stop_reasons: dict[str, int]
    pass_at: dict[int, float] = {}
    """k to the chance that at least one of k rollouts succeeds (Chen et al. 2021, unbiased estimator)."""
    pass_at_ci95: dict[int, tuple[float, float]] = {}
    pass_hat: dict[int, float] = {}
    """k to the chance that all of k rollouts succeed: pass^k (Yao et al. 2024, unbiased estimator)."""
    pass_hat_ci95: dict[int, tuple[float, float]] = {}
    prompt_tokens: float | None = None
    """Tokens that an episode's requests held; None where the model was sampled here."""
    calls: float | None = None
    """Tool calls in an episode, those that were refused included."""
    tool_error_rate: float | None = None
    """Share of the calls that were sent which the tool itself reported as an error."""
    invalid_call_rate: float | None = None
    """Share of the calls that never reached the server: unknown tool, unreadable JSON, arguments that do not fit."""
    seconds: float | None = None
    """Wall-clock time of an episode, waiting for others in flight included."""
    seconds_p95: float | None = None
    """95 % of the episodes took no longer."""
    cost_per_1000: float | None = None
    """US dollars for 1,000 episodes; None where no price is known."""


def measure(clusters: Sequence[Sequence[Trajectory]]) -> Measure:
    """The means over the rollouts of each scenario. Faults and timeouts are counted, and are in no mean."""
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
    """1 and 0 for the rollouts of one scenario that have a verdict, in their order."""
    return [float(t.success) for t in trajectories if t.stop_reason.trainable and t.success is not None]


def said_tokens(trajectory: Trajectory) -> float:
    """Tokens that the model said, sampled here or counted by whoever serves it."""
    return trajectory.metrics.get(COMPLETION_TOKENS, float(trajectory.sampled_tokens))


def mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    listed = list(values)
    return fmean(listed) if listed else None


def _passes(outcomes: Sequence[Sequence[float]], estimator: Callable[[int, int, int], float]) -> dict[int, list[float]]:
    """The estimate for each scenario, for k = 1, 2, 4, … up to the rollouts that every scenario has."""
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
    """None unless every episode has a price: a mean over some of them would be wrong."""
    prices = [t.metrics[COST] for t in trajectories if COST in t.metrics]
    return 1000 * fmean(prices) if prices and len(prices) == len(trajectories) else None
