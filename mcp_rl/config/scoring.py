"""What an episode is worth, and how success is measured."""

from pathlib import Path

from pydantic import Field

from mcp_rl.config.section import Section
from mcp_rl.errors import ConfigError


class JudgeConfig(Section):
    """Scoring groups by a language model (RULER) through LiteLLM. Its key is read from the environment."""

    model: str | None = None
    """LiteLLM name of the judge; none: the scenario's verifier scores."""
    base_url: str | None = None
    """Address of an OpenAI-compatible judge of your own."""
    panel: tuple[str, ...] = ()
    """Further judges: every one scores each group, and the mean counts."""
    rubric: str | None = None
    """Your own words for what is good; none: reaching the task's goal."""
    rubric_file: Path | None = None
    """A file with these words, where they are many."""
    deadline: float = Field(default=120.0, gt=0)
    """Seconds for one verdict: a reasoning judge is slow."""
    retries: int = Field(default=3, ge=0)
    """New tries after an unusable verdict before the group is a fault."""
    concurrency: int = Field(default=8, ge=1)
    """Verdicts asked for at once: all groups of a step."""
    token_budget: int = Field(default=24_000, ge=500)
    """Tokens of a prompt, about: long trajectories are cut, and what is left fits every judge of today."""
    repeat: float = Field(default=0.05, ge=0, le=1)
    """Share of groups that are judged twice, in another order: the judge's noise is known for 5 % more."""
    patience: float = Field(default=600.0, ge=0)
    """Seconds to wait for a judge that is down before the run stops: most outages are over by then."""
    max_cost: float | None = None
    """US dollars that the judges of a run may cost, all sessions together; none: no limit."""
    price: tuple[float, float] | None = None
    """US dollars for a million prompt and completion tokens; none: what LiteLLM knows."""
    cache: bool = True
    """Keep verdicts in the run's folder: a step that is played again costs nothing."""

    @property
    def models(self) -> tuple[str, ...]:
        """All judges."""
        return () if self.model is None else (self.model, *self.panel)

    def rubric_text(self) -> str | None:
        """The rubric, from its file where it has one. Raises ConfigError where that cannot be read."""
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
    """What a reward is made of. Every part is a metric of its own."""

    weights: dict[str, float] = Field(default={})
    """Part to weight, 1 in all: `verifier`, `ruler`, or a verifier of your own; none: one part, the judge if any."""
    turn_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for each turn more than the reference needs: off, success is what is wanted."""
    error_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for each failed call: off, trying again is a skill."""
    token_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for every 100 sampled tokens: off, thinking may pay."""
    shaping_limit: float = Field(default=0.5, ge=0, lt=1)
    """Most that the three take off together: a success stays well above a failure."""

    @property
    def shapes(self) -> bool:
        """Whether anything is taken off."""
        return bool(self.turn_cost or self.error_cost or self.token_cost)


class EvaluationConfig(Section):
    """How success is measured on the held-out scenarios, before and after."""

    samples: int = Field(default=4, ge=1)
    """Sampled episodes of each scenario: steadies pass@1, gives pass@4."""
    greedy: bool = True
    """One greedy episode of each scenario too: what a user will run."""
    every: int = Field(default=0, ge=0)
    """Evaluate after every so many steps; 0: only before and after."""
