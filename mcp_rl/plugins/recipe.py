"""`Recipe`, the number and kinds of scenarios that a source is to make."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mcp_rl.config import MOST_STEPS, ScenarioConfig
from mcp_rl.errors import ConfigError

_LENGTHS = (60, 40, 24, 15, 10)
"""Weights of tasks of one step, two steps and so on: 60 % and 40 % for two lengths; 40, 27, 16, 10, 7 % for five."""


@dataclass(frozen=True)
class Recipe:
    """The scenarios to make. Shares are fractions of `count`, from 0 to 1. Raises ConfigError for invalid values."""

    count: int
    seed: int = 0
    max_steps: int = MOST_STEPS
    """Number of calls in the longest reference solutions."""
    unsolvable: float = 0.05
    """Share of tasks that cannot be done, where the right answer is to say so."""
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
    def of(cls, config: ScenarioConfig, seed: int) -> Recipe:
        """Return the recipe of a run's settings."""
        return cls(config.count, seed, config.max_steps, config.unsolvable, config.without_tools)

    @property
    def solvable(self) -> int:
        """Number of scenarios that have a solution with tools."""
        return self.count - round(self.count * self.unsolvable) - round(self.count * self.without_tools)

    def lengths(self, count: int) -> Counter[int]:
        """Return the number of tasks of each length, `count` in all; rounding favours the short ones."""
        weights = _LENGTHS[: self.max_steps]
        longer = {steps: count * weights[steps - 1] // sum(weights) for steps in range(2, self.max_steps + 1)}
        return Counter({1: count - sum(longer.values()), **longer})
