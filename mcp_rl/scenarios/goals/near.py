"""Near misses: the answers of a solver who overlooks a part of the request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.answers import normalised
from mcp_rl.scenarios.goals.program import (
    ChosenThings,
    CountOf,
    Evaluated,
    ExtremeOf,
    FieldOf,
    Gap,
    GapAmong,
    IfAny,
    MoreOf,
    Program,
    ProgramAnswer,
    TotalOf,
    Unanswerable,
    View,
    evaluate,
    identity,
)
from mcp_rl.scenarios.goals.right_answer import answer_text

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from mcp_rl.explore.entities.world_model import WorldModel
    from mcp_rl.scenarios.goals.questions import Questions

_OPPOSITE: dict[str, Any] = {"above": "below", "below": "above", "has": "lacks", "lacks": "has"}


def near_answers(
    world: WorldModel, questions: Questions, program: Program, right: Evaluated, random: random.Random
) -> list[str]:
    """Return wrong answers in random order: those of similar programs, and the right one with a part changed."""
    known, found = View(world), dict[str, None]()
    for other in _near(program, world, random):
        try:
            found[answer_text(questions.spoken(evaluate(world, other, known)).answer)] = None
        except Unanswerable:
            continue
    for answer in _changed(right.answer):
        found[answer_text(answer)] = None
    wanted = _parts(right.answer)
    wrong = [text for text in found if text and _read(text) != wanted]
    return random.sample(wrong, len(wrong))


def _parts(answer: ProgramAnswer) -> list[str]:
    return _read(answer_text(answer))


def _read(text: str) -> list[str]:
    """Return the parts of an answer in a canonical order."""
    return sorted(normalised(part) for part in text.strip("[]").replace('"', "").split(","))


def _near(program: Program, world: WorldModel, random: random.Random) -> Iterator[Program]:
    if isinstance(program, Gap | GapAmong | MoreOf):
        return
    for things in _near_choices(program.things, world, random):
        yield replace(program, things=things)
    if isinstance(program, ExtremeOf):
        yield replace(program, most=not program.most)
    if isinstance(program, TotalOf):
        yield CountOf(program.things)
    if isinstance(program, FieldOf) and world.kinds[program.things.kind].single:
        for name in world.kinds[program.things.kind].fields:
            yield replace(program, field=name)
    elif isinstance(program, FieldOf | IfAny | ExtremeOf):
        others = [one for one in world.of_kind(program.things.kind) if program.field in one.facts]
        for one in random.sample(others, min(3, len(others))):
            yield FieldOf(ChosenThings(program.things.kind, identity(world, one)), program.field)


def _near_choices(things: ChosenThings, world: WorldModel, random: random.Random) -> Iterator[ChosenThings]:
    for at, condition in enumerate(things.conditions):
        rest = [*things.conditions[:at], *things.conditions[at + 1 :]]
        yield ChosenThings(things.kind, tuple(rest))
        if condition.relation in _OPPOSITE:
            opposite = replace(condition, relation=_OPPOSITE[condition.relation])
            yield ChosenThings(things.kind, (*rest, opposite))
        if condition.relation == "is" and not condition.through:
            values = [
                one.facts[condition.field].value for one in world.of_kind(things.kind) if condition.field in one.facts
            ]
            other = random.choice(values) if values else None
            if other is not None and other != condition.value:
                yield ChosenThings(things.kind, (*rest, replace(condition, value=other)))


def _changed(answer: ProgramAnswer) -> Iterator[ProgramAnswer]:
    """Yield the answer with one part changed: a number that is one higher, a missing item."""
    value = answer.value
    match answer.form:
        case "number" if isinstance(value, int | float):
            yield replace(answer, value=value + 1)
            yield replace(answer, value=value - 1)
        case "set" if isinstance(value, list) and len(value) > 1:
            yield replace(answer, value=value[1:])
            yield replace(answer, value=[*value, "another one"])
        case "pair" if isinstance(value, list) and isinstance(value[1], int | float):
            yield replace(answer, value=[value[0], value[1] + 1])
            yield replace(answer, value=["something else", value[1]])
