"""The contents of a page, for a training run and for an evaluation alike.

A training run is shown as the evaluation that it holds, the base model against the trained one, with its history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mcp_rl.evaluation.page.tokens import Spelling
    from mcp_rl.evaluation.result import EvaluationReport
    from mcp_rl.trajectory import TrajectoryGroup


@dataclass(frozen=True)
class EpisodeSource:
    """A file of episodes."""

    label: str
    """Name of the model that played, or for training the step."""
    split: str
    """`val` or `train`; `evaluation` if models were only evaluated."""
    step: int | None
    """Training step of the policy; None if the model has none."""
    groups: Callable[[], Iterable[TrajectoryGroup]]
    """Reads the file, or as much of it as a page may need."""
    episodes: int
    """Number of episodes in the file."""
    spelling: Callable[[], Spelling | None]
    """Finds the tokenizer that decodes its tokens; None if there is none."""
    greedy: bool = False
    """True if the first episode of each group was played greedily."""
    advantage: dict[str, bool] | None = None
    """Options of the advantages (`learning/advantage.py`); None if nothing was learned from the episodes."""


@dataclass(frozen=True)
class Findings:
    """Everything that the page shows."""

    folder: Path
    title: str
    subtitle: str
    measured: EvaluationReport
    """The evaluation; without models if nothing has been measured yet."""
    sources: list[EpisodeSource]
    """Files of episodes to select from, the most informative first."""
    unread: int = 0
    """Number of the run's episodes in files that are not read."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The lines of history.jsonl; empty for an evaluation."""
    pass_rates: dict[str, float] = field(default_factory=dict)
    """For each training scenario the share of its newest group that succeeded."""
    facts: list[tuple[str, str]] = field(default_factory=list)
    """Names and values for the end of the page."""
    unfinished: str | None = None
    """A sentence if the run is not finished."""
    notes: list[str] = field(default_factory=list)
    """Sentences that a reader of the numbers must know."""
