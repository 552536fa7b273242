"""Groups whose rewards are all alike, which teach nothing: count them by their cause, and say what would help."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mcp_rl.trajectory import StopReason, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

STEPS_BEFORE_WARNING = 3
"""Steps in a row without a useful group after which a run says so."""
_SHARE_WORTH_NAMING = 0.1
_METRIC = "alike_"
_LIMITS = {
    StopReason.MAX_TURNS: "rollout.max_turns",
    StopReason.MAX_TURN_TOKENS: "rollout.max_turn_tokens",
    StopReason.MAX_TOKENS: "rollout.max_tokens",
    StopReason.MAX_TOOL_CALLS: "rollout.max_tool_calls",
    StopReason.CONTEXT_FULL: "the model's context",
}


class Cause(StrEnum):
    """A reason why the rewards of a group are alike."""

    FAILED = "failed"
    """Every rollout failed."""
    SOLVED = "solved"
    """Every rollout succeeded."""
    CUT_OFF = "cut_off"
    """Every rollout failed at a limit on turns, tokens or calls."""
    TOOL_ERRORS = "tool_errors"
    """Every rollout failed, and every call that reached the server came back as an error."""
    FAULTS = "faults"
    """Most rollouts did not end properly: the server, the machine or a verifier failed."""
    UNSCORED = "unscored"
    """Rollouts ended properly, but none got a score."""
    JUDGE_TIES = "judge_ties"
    """A judge gave every rollout the same score."""
    EQUAL_SCORES = "equal_scores"
    """The score is the same although it is neither failure nor success, or some succeeded and others failed."""


def cause_of(group: TrajectoryGroup) -> Cause | None:
    """Return why the rewards of a group are alike; None if they differ."""
    if group.has_variance:
        return None
    ended = [trajectory for trajectory in group if trajectory.stop_reason.trainable]
    if 2 * len(ended) <= len(group):
        return Cause.FAULTS
    scored = [trajectory for trajectory in ended if trajectory.reward is not None]
    if not scored:
        return Cause.UNSCORED
    if any("ruler" in trajectory.metrics for trajectory in scored):
        return Cause.JUDGE_TIES
    if all(trajectory.success for trajectory in scored):
        return Cause.SOLVED
    if any(trajectory.success is not False for trajectory in scored):
        return Cause.EQUAL_SCORES
    if all(trajectory.stop_reason in _LIMITS for trajectory in scored):
        return Cause.CUT_OFF
    sent = [call for trajectory in scored for call in trajectory.calls if call.sent]
    return Cause.TOOL_ERRORS if sent and all(call.is_error for call in sent) else Cause.FAILED


def alike_metrics(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """Return `alike_failed` and so on: the number of groups whose rewards are alike, by cause, where above 0."""
    causes = (cause_of(group) for group in groups if not group.demonstrates)
    counts = Counter(cause for cause in causes if cause is not None)
    return {f"{_METRIC}{cause.value}": float(counts[cause]) for cause in Cause if counts[cause]}


def count_causes(lines: Iterable[Mapping[str, float]]) -> dict[Cause, int]:
    """Sum the metrics of several steps by cause, the most frequent first."""
    counts: Counter[Cause] = Counter()
    for line in lines:
        counts += Counter({cause: int(line.get(f"{_METRIC}{cause.value}", 0)) for cause in Cause})
    return dict(counts.most_common())


def limits_met(lines: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the settings at whose limits rollouts ended, the most frequent first."""
    shares: Counter[str] = Counter()
    for line in lines:
        for reason, setting in _LIMITS.items():
            shares[setting] += line.get(f"stop_{reason.value}", 0.0)  # type: ignore[assignment]
    return [setting for setting, share in shares.most_common() if share]


def barren_streak(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the training steps at the end of a history if just now they are enough in a row without a useful group,
    for the first time in the run; else an empty list."""
    steps = [line for line in history if line.get("split") == "train" and "demonstrations" not in line]
    barren = [not line.get("groups_useful", 0.0) for line in steps]
    n = STEPS_BEFORE_WARNING
    first = next((at for at in range(n, len(steps) + 1) if all(barren[at - n : at])), None)
    return steps[-n:] if first == len(steps) else []


def advice(
    counts: Mapping[Cause, int], groups: int, limits: Sequence[str], *, server: str, reason: str = ""
) -> Iterator[str]:
    """Yield for each frequent cause one sentence: how many groups it kept from teaching anything, and what would help.

    `groups` is the number of all groups, `limits` the settings whose limits were met, `reason` the first fault or the
    first failure to score.
    """
    because = f" ({reason.rstrip('.')})" if reason else ""
    met = " or ".join(limits) or "the limits of rollout.*"
    said = {
        Cause.FAILED: "every try failed, so none was better than another: take easier or shorter tasks "
        "(mcp-rl generate --max-steps 1), show the model how first (mcp-rl sft), begin with a larger model "
        "(--base-model), or give each task more tries (rollout.group_size=32)",
        Cause.SOLVED: "every try succeeded, so there was nothing to learn: take harder or longer tasks "
        "(mcp-rl generate --max-steps 5)",
        Cause.CUT_OFF: f"every try was cut off at a limit: raise {met}, or take shorter tasks",
        Cause.TOOL_ERRORS: f"every tool call came back as an error: look at them with mcp-rl servers check {server}",
        Cause.FAULTS: f"most tries ended in a fault of the server, the verifier or the machine{because}: see logs/ in "
        f"the run's folder, and try mcp-rl servers check {server}",
        Cause.UNSCORED: f"no try got a score{because}: the judge or the reward failed; see judge/calls.jsonl in the "
        "run's folder",
        Cause.JUDGE_TIES: "the judge gave every try the same score: take another judge (--judge-model) or rubric "
        "(--judge-rubric), or tasks with a verifier",
        Cause.EQUAL_SCORES: "every try got the same score, though it was neither a failure nor a success of them all: "
        "make the reward tell better tries from worse ones (reward.weights)",
    }
    for cause, count in counts.items():
        if count >= _SHARE_WORTH_NAMING * groups and count:
            yield f"In {count} of {groups} groups {said[cause]}."
