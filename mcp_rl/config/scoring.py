"""Settings of rewards, of the judge and of evaluation."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from mcp_rl.config.section import CARRIED, Role, Section
from mcp_rl.errors import ConfigError


class JudgeConfig(Section):
    """Scoring of groups by a language model (RULER) through LiteLLM, whose key comes from the environment."""

    model: str | None = None
    """LiteLLM name of the judge; none: the scenario's verifier scores."""
    base_url: Annotated[str | None, Role(identity=False)] = None
    """Address of your own OpenAI-compatible judge."""
    panel: tuple[str, ...] = ()
    """Further judges: each scores every group, and the mean counts."""
    rubric: str | None = None
    """Your own description of a good episode; none: it reaches the task's goal."""
    rubric_file: Annotated[Path | None, Role(identity=False)] = None
    """A file with a longer rubric."""
    deadline: Annotated[float, CARRIED] = Field(default=120.0, gt=0)
    """Seconds for one verdict: a reasoning judge is slow."""
    retries: Annotated[int, CARRIED] = Field(default=3, ge=0)
    """Retries after an unusable verdict before the group counts as a fault."""
    concurrency: Annotated[int, Role(identity=False, carried=True, measured=False)] = Field(default=8, ge=1)
    """Verdicts requested at once: all groups of a step."""
    token_budget: int = Field(default=24_000, ge=500)
    """Approximate tokens of a prompt: long trajectories are cut, so that the prompt fits every judge of today."""
    repeat: float = Field(default=0.05, ge=0, le=1)
    """Share of groups that are judged twice, in another order: measures the judge's noise for 5 % more."""
    patience: Annotated[float, CARRIED] = Field(default=600.0, ge=0)
    """Seconds to wait for a judge that is down before the run stops: most outages are over by then."""
    max_cost: Annotated[float | None, CARRIED] = None
    """Spending limit for the judges over all sessions of a run, in US dollars; none: no limit."""
    price: Annotated[tuple[float, float] | None, CARRIED] = None
    """US dollars for a million prompt tokens and for a million completion tokens; none: LiteLLM's prices."""
    cache: Annotated[bool, Role(identity=False, measured=False)] = True
    """Keep verdicts in the run's folder: a step that is played again costs nothing."""

    @property
    def models(self) -> tuple[str, ...]:
        """The LiteLLM names of all judges."""
        return () if self.model is None else (self.model, *self.panel)

    def rubric_text(self) -> str | None:
        """Return the rubric, from its file if it has one. Raises ConfigError if the file cannot be read or is empty."""
        if self.rubric_file is None:
            return self.rubric
        try:
            text = self.rubric_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"Cannot read the judge's rubric {self.rubric_file}: {reason}.") from error
        if not text:
            raise ConfigError(f"The judge's rubric {self.rubric_file} is empty.")
        return text


class RewardConfig(Section):
    """The parts of a reward, each of which is a metric too."""

    weights: dict[str, float] = Field(default={})
    """Weights of the reward's parts, 1 in all: `verifier`, `ruler`, or your own verifier; none: one part, the judge
    if there is one."""
    turn_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for each turn beyond the reference's: off, as success is what is wanted."""
    error_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for each failed call: off, as trying again is a skill."""
    token_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for every 100 sampled tokens: off, as thinking may pay."""
    overlong_from: int | None = Field(default=None, ge=1)
    """Sampled tokens above which an episode is penalised, whether it succeeds or fails; the penalty reaches
    `shaping_limit` after `overlong_span` more (DAPO's soft penalty); none: never, as masking cut-off episodes is the
    milder cure."""
    overlong_span: int = Field(default=1024, ge=1)
    """Tokens over which that penalty grows: a quarter of a large model's episode, as in DAPO."""
    shaping_limit: float = Field(default=0.5, ge=0, lt=1)
    """Limit on the sum of these penalties: a success stays well above a failure."""

    @property
    def shapes(self) -> bool:
        """True if anything is taken off."""
        return bool(self.turn_cost or self.error_cost or self.token_cost or self.overlong_from)


class EvaluationConfig(Section):
    """Measurement of success on the held-out scenarios, before and after training."""

    samples: int = Field(default=4, ge=1)
    """Sampled episodes of each scenario: steadies pass@1, gives pass@4."""
    greedy: bool = True
    """Play one greedy episode of each scenario too: what a user will run."""
    every: Annotated[int, Role(identity=False, carried=True, fixed="")] = Field(default=0, ge=0)
    """Steps between evaluations; 0: only before and after."""
    samples_between: Annotated[int | None, Role(identity=False, carried=True, fixed="")] = Field(default=None, ge=0)
    """Sampled episodes of each scenario in those between; 0: the greedy one alone; none: as before and after."""
    subset: Annotated[int, Role(identity=False, carried=True, fixed="")] = Field(default=24, ge=0)
    """Held-out scenarios of a small, greedy evaluation between the full ones, which shows the course of learning; 0:
    none."""
    subset_every: Annotated[int | None, Role(identity=False, carried=True, fixed="")] = Field(default=None, ge=1)
    """Steps between small evaluations; none: 5, or more where they would play over 5 % of the episodes."""
