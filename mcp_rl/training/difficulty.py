"""How hard each scenario of a run turned out to be: difficulty.jsonl in the run's folder, and its use afterwards.

Measured, not claimed. A training scenario has what the policy did on it when it was last played; a held-out one has
what the base model did on it before the first step. The file says the same as state.json and is written after it, so
it never tells of a step that is not whole.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario, text_lines
from mcp_rl.training.curriculum import Curriculum, Pool

DIFFICULTY = "difficulty.jsonl"


class ScenarioDifficulty(BaseModel):
    """A line of difficulty.jsonl."""

    model_config = ConfigDict(extra="forbid")

    id: str
    """Of the scenario in train.jsonl or val.jsonl."""
    split: Literal["train", "val"]
    pool: Pool
    pass_rate: float | None = Field(default=None, ge=0, le=1)
    """Share of its rollouts that succeeded: of the last visit, or by the base model; None where it was never played."""
    of: int = 0
    """Rollouts of which `pass_rate` is the share. Where its first ones all succeed, a scenario is played no further."""
    step: int = 0
    """When that was: 0 is the base model."""
    visits: int = 0
    """Training steps that played it."""
    passed_ever: int = 0
    """Successes over all visits."""
    of_ever: int = 0


def measured_difficulty(
    curriculum: Curriculum, train: Sequence[McpScenario], before: Mapping[str, Any] | None
) -> Iterator[ScenarioDifficulty]:
    """Of every training scenario, and of the held-out ones once the base was evaluated (`before`, as in state.json)."""
    for scenario in train:
        pool, found = curriculum.pool(scenario.id), curriculum.measured(scenario.id)
        if found is None:
            yield ScenarioDifficulty(id=scenario.id, split="train", pool=pool)
            continue
        yield ScenarioDifficulty(
            id=scenario.id,
            split="train",
            pool=pool,
            pass_rate=found.pass_rate,
            of=found.of,
            step=found.step,
            visits=found.visits,
            passed_ever=found.passed_ever,
            of_ever=found.of_ever,
        )
    for name, outcomes in ((before or {}).get("outcomes") or {}).items():
        rate = sum(outcomes) / len(outcomes) if outcomes else None
        yield ScenarioDifficulty(id=name, split="val", pool=curriculum.pool_of(rate), pass_rate=rate, of=len(outcomes))


def read_difficulty(folder: Path) -> dict[str, float]:
    """Scenario id to pass rate, of those in a folder's difficulty.jsonl that were played; empty without such a file.

    Raises ScenarioError that names the line which cannot be read.
    """
    path = folder / DIFFICULTY
    if not path.is_file():
        return {}
    found: dict[str, float] = {}
    for number, line in text_lines(path.read_text(encoding="utf-8", errors="replace")):
        try:
            entry = ScenarioDifficulty.model_validate(json.loads(line))
        except (ValueError, ValidationError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ScenarioError(
                f"{path}, line {number}: {reason}; correct it, or remove the file to go without measured difficulty."
            ) from error
        if entry.pass_rate is not None:
            found[entry.id] = entry.pass_rate
    return found


def with_difficulty(scenarios: Sequence[McpScenario], pass_rates: Mapping[str, float]) -> list[McpScenario]:
    """The scenarios with the measured failure rate of those that have none of their own."""
    return [
        scenario.model_copy(update={"difficulty": 1 - pass_rates[scenario.id]})
        if scenario.difficulty is None and scenario.id in pass_rates
        else scenario
        for scenario in scenarios
    ]
