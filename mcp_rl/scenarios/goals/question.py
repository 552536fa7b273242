"""A question over a world: a program in words, with its level and the calls that answer it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.program import (
    ChosenThings,
    Evaluated,
    ExtremeOf,
    FieldOf,
    Gap,
    GapAmong,
    MoreOf,
    Program,
    ProgramAnswer,
    kind_of,
)

if TYPE_CHECKING:
    from pydantic import JsonValue

    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.words import English


@dataclass(frozen=True)
class GoalQuestion:
    """A program in words."""

    text: str
    outcome: str
    evaluated: Evaluated
    level: Level
    lookups: tuple[int, ...]
    """Indices of the observations that a solution makes, in order."""
    given: tuple[JsonValue, ...]
    """The values in the request."""

    @property
    def answer(self) -> ProgramAnswer:
        return self.evaluated.answer

    @property
    def apart(self) -> tuple[str, ...]:
        """Traces that a question in another split must not have: the choice of things, and the fact asked for."""
        program = self.evaluated.program
        traces = [f"program {program!r}"]
        if (things := choice_of(program)) is not None and things.conditions:
            traces.append(f"things {things!r}")
        if isinstance(program, FieldOf | ExtremeOf) and len(self.evaluated.chosen) == 1:
            traces.append(f"fact {self.evaluated.chosen[0]} {program.field}")
        return tuple(traces)


def choice_of(program: Program) -> ChosenThings | None:
    """Return the choice of things that a program asks about; None for comparisons of two."""
    return None if isinstance(program, Gap | GapAmong | MoreOf) else program.things


def given_values(program: Program, english: English) -> tuple[JsonValue, ...]:
    """Return the values that a request for a program states, as it states them; the sides of a comparison first."""
    if isinstance(program, Gap):
        return program.one, program.other
    kind = kind_of(program)
    if isinstance(program, GapAmong):
        sides = [english.spoken(kind, program.named_by, value) for value in (program.one, program.other)]
        return (*sides, *(english.spoken(kind, each.field, each.value) for each in program.things.conditions))
    if isinstance(program, MoreOf):
        name = program.condition.field
        return english.spoken(kind, name, program.condition.value), english.spoken(kind, name, program.other)
    return tuple(
        english.spoken(kind, each.field, each.value) if not each.through else each.value
        for each in program.things.conditions
        if not isinstance(each.value, bool)
    )
