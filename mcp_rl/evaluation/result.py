"""The report of an evaluation, as report.json holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from mcp_rl.evaluation.evaluate import EvaluationResult

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["base", "checkpoint", "chat", "scripted"]
REPORTED_LIMITS = ("max_turns", "max_turn_tokens", "max_tokens", "max_tool_calls", "max_result_tokens")
"""Limits of a rollout that a report names."""


class ModelReport(BaseModel):
    """Results of one model."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    """The model's name as given, or shorter if that says as much."""
    kind: Kind
    base_model: str | None = None
    checkpoint: str | None = None
    """Folder of the sampled adapter; None for the base itself."""
    result: EvaluationResult
    episodes: str
    """File beside report.json with every episode, one scenario on a line."""
    trained_on: int = 0
    """Scenarios that share a call or a request with the model's training scenarios."""
    seconds: float
    """Wall-clock time of all episodes together."""


class Comparison(BaseModel):
    """Two models on the same scenarios: `difference` is `model` minus `against`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    against: str
    kind: Literal["greedy", "sampled"]
    scenarios: int
    """Scenarios that both models played."""
    difference: float
    """Difference in success, -1 to 1."""
    ci95: tuple[float, float]
    p_value: float
    """Two-sided p-value of the sign-flip test over scenarios."""
    p_adjusted: float
    """The p-value adjusted for all comparisons of this kind (Holm)."""
    wins: int
    """Scenarios on which `model` was better; the rest of `scenarios` are ties."""
    losses: int


class JudgedPair(BaseModel):
    """Two models' first episodes of each scenario, each pair scored by the judge in one verdict.

    A judge's scores from different verdicts do not compare, so this tells models apart, and no mean of rewards does.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    against: str
    scenarios: int
    score: float
    """Mean score of `model`, 0 to 1."""
    score_against: float
    better: float
    """Share of the scenarios on which `model` scores higher."""
    worse: float

    @classmethod
    def from_scores(cls, model: str, against: str, scores: Mapping[str, float]) -> JudgedPair | None:
        """Make a pair from the judge's metrics, `judge_before` and so on; None if the judge compared nothing."""
        if not scores.get("judge_compared"):
            return None
        return cls(
            model=model,
            against=against,
            scenarios=int(scores["judge_compared"]),
            score=scores["judge_after"],
            score_against=scores["judge_before"],
            better=scores["judge_better"],
            worse=scores["judge_worse"],
        )


class Bin(BaseModel):
    """The episodes with a judged score from `low` to `high`."""

    model_config = ConfigDict(extra="forbid")

    low: float
    high: float
    episodes: int
    judged: float | None
    """Mean score of the judge."""
    verified: float | None
    """Share of these episodes that the verifier passed."""


class JudgeAgreement(BaseModel):
    """Agreement of a judge's ranking of the episodes of one scenario with the verifier's."""

    model_config = ConfigDict(extra="forbid")

    judge: str | None
    groups: int
    """Groups in which the verifier passed some episodes and failed others."""
    pairs: int
    """Pairs of episodes of a group, one passed and one failed by the verifier."""
    agreement: float | None
    """Mean over scenarios of the share of pairs in which the judge scores the passed episode higher; equal scores
    count half."""
    ci95: tuple[float, float] | None
    ties: int
    """Pairs with equal scores."""
    rank_correlation: float | None
    """Mean over groups of Kendall's tau-b between judge and verifier; 0 for a group that the judge scores all alike. A
    judge with finer scores than passed and failed stays below 1 even if it is always right."""
    mean_passed: float | None
    """The judge's mean score of episodes that the verifier passed."""
    mean_failed: float | None
    bins: list[Bin]
    """Calibration: the judge's scores in fifths, with the verifier's pass rate in each."""


class EvaluationReport(BaseModel):
    """`report.json` of an evaluation."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["evaluation"] = "evaluation"
    path: str
    """Folder of the report."""
    server: str
    schema_hash: str
    scenarios: int
    scenarios_from: str
    """Origin of the scenarios, in words."""
    samples: int
    """Sampled episodes of each scenario."""
    temperature: float
    seed: int
    limits: dict[str, Any]
    seconds: float
    models: list[ModelReport]
    comparisons: list[Comparison] = []
    judged: list[JudgedPair] = []
    judge: JudgeAgreement | None = None
    """The judge against the verifier; None if no episode was scored by both."""

    def json_line(self) -> str:
        """Return the line that `--json` prints: everything but the outcomes of single scenarios."""
        return self.model_dump_json(exclude={"models": {"__all__": {"result": {"outcomes"}}}})
