"""The result of a run: its outcome on held-out scenarios, and the reasons if it learned nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from mcp_rl.evaluation.statistics import difference_interval
from mcp_rl.runs.steps.alike import advice, count_causes, limits_met

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from mcp_rl.trajectory import TrajectoryGroup

_FEW_USEFUL = 0.5
"""Share of useful groups below which a run without a clear change names the causes of the others."""


class Learned(BaseModel):
    """The outcome of a run, in words and for scripts."""

    model_config = ConfigDict(extra="forbid")

    outcome: Literal["better", "worse", "no_clear_change", "nothing", "unmeasured"]
    """Held-out success after training against before; "nothing": no token was trained on; "unmeasured": only a judge
    scores, whose scores have no threshold."""
    groups: int
    """Groups played in all training steps."""
    useful_groups: int
    """Groups whose rewards differed."""
    alike: dict[str, int] = {}
    """Number of groups whose rewards were alike, by cause (docs/running.md lists them)."""
    refused_references: int = 0
    """Scenarios whose verifier refuses their own reference solution; counted if no try succeeded."""
    difference_ci95: tuple[float, float] | None = None
    """95 % interval of held-out success after training minus before, on the same scenarios."""
    sentences: list[str] = []
    """The outcome, its causes, and what would help."""

    @classmethod
    def of(
        cls,
        history: Iterable[Mapping[str, Any]],
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        trained_tokens: int,
        evidence: Evidence,
    ) -> Self:
        """Judge a run by its history and by the evaluations before and after, as JSON."""
        lines = [line for line in history if line.get("split") == "train"]
        counts = count_causes(lines)
        interval = _difference(before, after)
        found = cls(
            outcome="nothing" if not trained_tokens else _outcome(interval),
            groups=int(sum(line.get("groups", 0) for line in lines)),
            useful_groups=int(sum(line.get("groups_useful", 0) for line in lines)),
            alike={cause.value: count for cause, count in counts.items() if count},
            refused_references=evidence.refused,
            difference_ci95=interval,
        )
        found.sentences = list(found._say(lines, before, after, evidence))
        return found

    def _say(
        self,
        lines: Sequence[Mapping[str, float]],
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        evidence: Evidence,
    ) -> Iterator[str]:
        if not lines:
            yield "No training step was taken."
            return
        was, now = (_success(side) for side in (before, after))
        moved = "" if was is None or now is None else f"Held-out success went from {was:.3f} to {now:.3f}"
        if moved and self.difference_ci95:
            low, high = self.difference_ci95
            moved += f" (95 % interval of the difference {low:+.3f} to {high:+.3f})"
        match self.outcome:
            case "nothing":
                yield (
                    f"Nothing was learned: no token was trained on, and {self.useful_groups} of {self.groups} groups "
                    "had tries with different rewards."
                )
            case "no_clear_change":
                yield f"{moved}: no clear change."
            case "better" | "worse":
                yield f"{moved}: {self.outcome}."
        if imitated := sum("demonstrations" in line for line in lines):
            also = ", and imitated what they did not solve" if any("imitated" in line for line in lines) else ""
            steps = f"{imitated} of {len(lines)} steps"
            yield f"{steps} imitated reference solutions, the others learned from rewards{also}."
        if was == 0 and not now:
            yield "The model solves none of the held-out tasks, neither before nor after."
        few = self.useful_groups < _FEW_USEFUL * self.groups
        if self.outcome == "nothing" or (self.outcome != "better" and few):
            yield from explain(lines, evidence)


class Evidence(BaseModel):
    """Facts about a run that its history does not hold."""

    server: str
    """The words after `--server`."""
    reason: str = ""
    """The first fault, or the first failure to score, of a step without a useful group."""
    refused: int = 0
    """Scenarios whose verifier refuses their own reference solution."""
    checked: int = 0
    """Scenarios whose reference solution could be checked."""


def explain(lines: Sequence[Mapping[str, float]], evidence: Evidence) -> Iterator[str]:
    """Yield why groups of these steps taught nothing, and what would help."""
    groups = int(sum(line.get("groups", 0) for line in lines))
    if evidence.refused:
        yield (
            f"The verifier refuses the reference solution of {evidence.refused} of {evidence.checked} scenarios, so "
            f"that no try can succeed there: check them with mcp-rl generate --server {evidence.server} --check FILE."
        )
    yield from advice(count_causes(lines), groups, limits_met(lines), server=evidence.server, reason=evidence.reason)


def warning(streak: Sequence[Mapping[str, float]], evidence: Evidence) -> str:
    """Return the warning after steps in a row without a useful group."""
    return " ".join([f"{len(streak)} steps in a row have taught nothing.", *explain(streak, evidence)])


def first_reason(groups: Iterable[TrajectoryGroup]) -> str:
    """Return the first fault or exception of some groups, one line; empty if there is none."""
    for group in groups:
        for sentence in [*group.exceptions, *(trajectory.fault or "" for trajectory in group)]:
            if sentence:
                return sentence.splitlines()[0][:300]
    return ""


def _outcome(interval: tuple[float, float] | None) -> Literal["better", "worse", "no_clear_change", "unmeasured"]:
    if interval is None:
        return "unmeasured"
    return "better" if interval[0] > 0 else "worse" if interval[1] < 0 else "no_clear_change"


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the interval of the difference in headline success; None if it was not measured."""
    if _success(before) is None or _success(after) is None:
        return None
    greedy = bool(before.get("greedy")) and bool(after.get("greedy"))
    sides = [before.get("outcomes", {}), after.get("outcomes", {})]
    shared = [name for name in sides[0] if sides[0][name] and sides[1].get(name)]
    if not shared:
        return None
    first, second = ([side[name][:1] if greedy else side[name] for name in shared] for side in sides)
    return difference_interval(first, second)


def _success(side: Mapping[str, Any]) -> float | None:
    measure = side.get("greedy") or side.get("sampled") or {}
    success: float | None = measure.get("success")
    return success
