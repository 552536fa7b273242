"""What a page is made of, whether it shows a training run or an evaluation.

A training run is shown as the evaluation that it holds, the base model against what it became, with its history beside.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_rl.evaluation.result import EvaluationReport
from mcp_rl.report.tokens import Spelling
from mcp_rl.trajectory import TrajectoryGroup


@dataclass(frozen=True)
class Source:
    """One file of episodes."""

    label: str
    """What played them, as tables call it; for training, the step."""
    split: str
    """`val` or `train`; `evaluation` where models were only evaluated."""
    step: int | None
    """Of the policy; None where the model has none."""
    groups: Callable[[], Iterable[TrajectoryGroup]]
    """Reads the file, or as much of it as a page may need."""
    episodes: int
    """That the file holds."""
    spelling: Callable[[], Spelling | None]
    """Finds the tokenizer that spells its tokens; None where there is none."""
    greedy: bool = False
    """Whether the first of each group was played greedily."""
    advantage: dict[str, bool] | None = None
    """How advantages were computed (`learning/advantage.py`); None where nothing was learned from the episodes."""


@dataclass(frozen=True)
class Findings:
    """Everything that the page shows."""

    folder: Path
    title: str
    subtitle: str
    measured: EvaluationReport
    """With no models where nothing has been measured yet."""
    sources: list[Source]
    """What may be chosen from, the most telling first."""
    unread: int = 0
    """Episodes of the run in files that were not chosen to be read."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The lines of history.jsonl; none for an evaluation."""
    pass_rates: dict[str, float] = field(default_factory=dict)
    """Training scenario to the share of its newest group that succeeded."""
    facts: list[tuple[str, str]] = field(default_factory=list)
    """Names and values for the end of the page."""
    unfinished: str | None = None
    """One sentence, where the run is not done."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know beside the numbers, one sentence each."""
