"""`Recipe`, the number and kinds of scenarios that a source is to make."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from mcp_rl.config import MOST_STEPS, ScenarioConfig, level_shares
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
    levels: str = "spelled"
    """Shares of the levels of tasks, such as `told=0.4,looked-up=0.6`, or `mixed`, or `auto`."""
    knowledge: bool = True
    """True if a task may need what neither request nor server says, such as the time zone of a city."""

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

        try:
            level_shares(self.levels)
        except ValueError as error:
            end = "" if str(error).endswith("?") else "."
            raise ConfigError(f"The levels {self.levels!r} cannot be made: {error}{end}") from error

    @property
    def goals(self) -> dict[str, int]:
        """Number of wanted goal tasks by level, of those that have a solution with tools."""
        shares = level_shares(self.levels)
        return {level: round(self.solvable * share) for level, share in shares.items() if level != "spelled"}

    def without_goals(self, made: int) -> Recipe | None:
        """Return the recipe for the rest, once so many goal tasks are made; None where nothing else is wanted.

        Tasks that are spelled out stand in for missing goal tasks, unless the levels do not name them.
        """
        others = self.count - self.solvable
        spelled = max(0, self.solvable - made) if self.spells_out else 0
        rest = spelled + others
        if not spelled:
            return None
        return replace(
            self,
            count=rest,
            unsolvable=self.unsolvable * self.count / rest if others else 0.0,
            without_tools=self.without_tools * self.count / rest if others else 0.0,
            levels="spelled",
        )

    @property
    def spells_out(self) -> bool:
        """True if tasks that are spelled out are wanted, and may stand in for goal tasks that cannot be made."""
        return "spelled" in level_shares(self.levels)

    @classmethod
    def of(cls, config: ScenarioConfig, seed: int, *, worded: bool) -> Recipe:
        """Return the recipe of a run's settings. `worded`: a plugin has phrases for the tools."""
        return cls(
            config.wanted(worded=worded),
            seed,
            config.max_steps,
            config.unsolvable,
            config.without_tools,
            config.levels,
            config.knowledge,
        )

    @property
    def solvable(self) -> int:
        """Number of scenarios that have a solution with tools."""
        return self.count - round(self.count * self.unsolvable) - round(self.count * self.without_tools)

    def lengths(self, count: int) -> Counter[int]:
        """Return the number of tasks of each length, `count` in all; rounding favours the short ones."""
        weights = _LENGTHS[: self.max_steps]
        longer = {steps: count * weights[steps - 1] // sum(weights) for steps in range(2, self.max_steps + 1)}
        return Counter({1: count - sum(longer.values()), **longer})
