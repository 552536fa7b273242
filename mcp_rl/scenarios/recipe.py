"""What an exploration is to make: how many scenarios, how long, and how many that have no solution."""

from collections import Counter
from dataclasses import dataclass

from mcp_rl.config import MOST_STEPS, ScenarioConfig
from mcp_rl.errors import ConfigError

_LENGTHS = (60, 40, 24, 15, 10)
"""Weights of tasks of one step, two steps and so on: of two kinds 60 % and 40 %, of five 40, 27, 16, 10 and 7 %."""


@dataclass(frozen=True)
class Recipe:
    """Shares are from 0 to 1 of `count`. Raises ConfigError for values that make no sense."""

    count: int
    seed: int = 0
    max_steps: int = MOST_STEPS
    """Calls in the longest reference solutions."""
    unsolvable: float = 0.05
    """Share of tasks that cannot be done, where the right thing is to say so."""
    without_tools: float = 0.05
    """Share of requests that need no tool."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"{self.count} scenarios cannot be made; ask for 1 or more.")
        if not 1 <= self.max_steps <= MOST_STEPS:
            raise ConfigError(f"Tasks of {self.max_steps} steps cannot be made; 1 to {MOST_STEPS} are possible.")
        if not (self.unsolvable >= 0 and self.without_tools >= 0 and self.unsolvable + self.without_tools < 1):
            raise ConfigError(
                f"The shares of unsolvable tasks ({self.unsolvable:g}) and of those without tools "
                f"({self.without_tools:g}) must be 0 or more and leave something to solve."
            )

    @classmethod
    def of(cls, config: ScenarioConfig, seed: int) -> "Recipe":
        """The recipe that a run's settings ask for."""
        return cls(config.count, seed, config.max_steps, config.unsolvable, config.without_tools)

    @property
    def solvable(self) -> int:
        """How many scenarios have a solution with tools."""
        return self.count - round(self.count * self.unsolvable) - round(self.count * self.without_tools)

    def lengths(self, count: int) -> Counter[int]:
        """How many of `count` tasks have how many steps; rounding goes to the short ones."""
        weights = _LENGTHS[: self.max_steps]
        longer = {steps: count * weights[steps - 1] // sum(weights) for steps in range(2, self.max_steps + 1)}
        return Counter({1: count - sum(longer.values()), **longer})
