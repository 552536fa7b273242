"""What an evaluation found: the object that report.json holds."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mcp_rl.evaluate import EvaluationResult

Kind = Literal["base", "checkpoint", "chat", "scripted"]


class ModelReport(BaseModel):
    """How one model did."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    """As it was named, or shorter where that says as much."""
    kind: Kind
    base_model: str | None = None
    checkpoint: str | None = None
    """Folder of the adapter that was sampled; None for the base itself."""
    result: EvaluationResult
    episodes: str
    """File beside report.json with every episode, one scenario on a line."""
    trained_on: int = 0
    """Scenarios of this evaluation that share a call or a request with what the model was trained on."""
    seconds: float
    """Wall-clock time of all its episodes together."""


class Comparison(BaseModel):
    """Two models on the same scenarios: `difference` is `model` minus `against`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    against: str
    kind: Literal["greedy", "sampled"]
    scenarios: int
    """That both have played."""
    difference: float
    """Of success, -1 to 1."""
    ci95: tuple[float, float]
    p_value: float
    """Two-sided, of the sign-flip test over scenarios."""
    p_adjusted: float
    """The same, for all comparisons of this kind together (Holm)."""
    wins: int
    """Scenarios on which `model` was better; the rest of `scenarios` are ties."""
    losses: int


class JudgedPair(BaseModel):
    """Two models' first episodes of each scenario, each pair scored by the judge in one verdict.

    A judge's scores of different verdicts do not compare, so this, and no mean of rewards, tells models apart.
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


class Bin(BaseModel):
    """Episodes whose judged score lies from `low` to `high`."""

    model_config = ConfigDict(extra="forbid")

    low: float
    high: float
    episodes: int
    judged: float | None
    """Mean score of the judge."""
    verified: float | None
    """Share of them that the verifier passed."""


class JudgeAgreement(BaseModel):
    """How far a judge's ranking of the episodes of one scenario is the verifier's."""

    model_config = ConfigDict(extra="forbid")

    judge: str | None
    groups: int
    """Groups in which the verifier told episodes apart."""
    pairs: int
    """Pairs of episodes of one group, one passed and one failed by the verifier."""
    agreement: float | None
    """Share of a scenario's pairs in which the judge scores the passed one higher, the mean over scenarios; equal
    scores count half."""
    ci95: tuple[float, float] | None
    ties: int
    """Pairs with equal scores."""
    rank_correlation: float | None
    """Mean over groups of Kendall's tau-b between judge and verifier; 0 where the judge scores all alike. A judge that
    tells more apart than passed and failed stays below 1 even where it is always right."""
    mean_passed: float | None
    """The judge's mean score of episodes that the verifier passed."""
    mean_failed: float | None
    bins: list[Bin]
    """Calibration: the judge's scores in fifths against what the verifier says."""


class EvaluationReport(BaseModel):
    """`report.json` of an evaluation."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["evaluation"] = "evaluation"
    path: str
    """The folder that holds it."""
    server: str
    schema_hash: str
    scenarios: int
    scenarios_from: str
    """Where they come from, in words."""
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
    """The judge against the verifier, where both have scored."""

    def json_line(self) -> str:
        """What `--json` prints: everything but the outcome of each single scenario."""
        return self.model_dump_json(exclude={"models": {"__all__": {"result": {"outcomes"}}}})
