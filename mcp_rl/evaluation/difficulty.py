"""difficulty.jsonl: the rate at which a run's policy solved each of its scenarios."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario, text_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DIFFICULTY = "difficulty.jsonl"


class DifficultyPool(StrEnum):
    """The pools that scenarios are sorted into, by how often the policy solves them."""

    UNSEEN = "unseen"
    """Never played."""
    TOO_HARD = "too_hard"
    """Never or hardly ever solved."""
    RIGHT = "right"
    """Sometimes solved, so that its groups have variance."""
    SOLVED = "solved"
    """Always or nearly always solved."""


class ScenarioDifficulty(BaseModel):
    """A line of difficulty.jsonl."""

    model_config = ConfigDict(extra="forbid")

    id: str
    """The scenario's id in train.jsonl or val.jsonl."""
    split: Literal["train", "val"]
    pool: DifficultyPool
    pass_rate: float | None = Field(default=None, ge=0, le=1)
    """Share of rollouts that succeeded on the last visit, or by the base model; None if never played."""
    of: int = 0
    """Rollouts behind `pass_rate`; fewer than a whole group if the first ones all succeeded."""
    step: int = 0
    """Step of the last visit; 0 is the base model."""
    visits: int = 0
    """Training steps that played the scenario."""
    passed_ever: int = 0
    """Successes over all visits."""
    of_ever: int = 0
    """Rollouts over all visits."""


def read_difficulty(folder: Path) -> dict[str, float]:
    """Read a folder's difficulty.jsonl: scenario id to pass rate, for those that were played; empty without the file.

    Raises ScenarioError with the number of a line that cannot be read.
    """
    path = folder / DIFFICULTY
    if not path.is_file():
        return {}
    found: dict[str, float] = {}
    for number, line in text_lines(path.read_text(encoding="utf-8", errors="replace")):
        try:
            entry = ScenarioDifficulty.model_validate(json.loads(line))
        except (ValueError, RecursionError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ScenarioError(
                f"{path}, line {number}: {reason}; correct it, or remove the file to go without measured difficulty."
            ) from error
        if entry.pass_rate is not None:
            found[entry.id] = entry.pass_rate
    return found


def with_difficulty(scenarios: Sequence[McpScenario], pass_rates: Mapping[str, float]) -> list[McpScenario]:
    """Return the scenarios, with the measured failure rate as the difficulty of those that have none."""
    return [
        scenario.model_copy(update={"difficulty": 1 - pass_rates[scenario.id]})
        if scenario.difficulty is None and scenario.id in pass_rates
        else scenario
        for scenario in scenarios
    ]
