"""Questions drawn over a world, each worth asking and at its level."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_rl.rewards.answers import normalised
from mcp_rl.scenarios.goals.balance import Balance, unguessable
from mcp_rl.scenarios.goals.lookups import Lookups
from mcp_rl.scenarios.goals.program import (
    Commonest,
    Condition,
    CountOf,
    Evaluated,
    ExtremeOf,
    FieldOf,
    Gap,
    GapAmong,
    MoreOf,
    NamesOf,
    PlacesOf,
    Program,
    ProgramAnswer,
    TotalOf,
    Unanswerable,
    View,
    evaluate,
    kind_of,
)
from mcp_rl.scenarios.goals.propose import ProgramDrawer, alternating, proposals
from mcp_rl.scenarios.goals.question import GoalQuestion, choice_of, given_values
from mcp_rl.scenarios.goals.requests import Requests, ToolNames
from mcp_rl.scenarios.goals.right_answer import answer_text, tells
from mcp_rl.scenarios.goals.rows.drawer import RowDrawer
from mcp_rl.scenarios.goals.singles import SingleDrawer, values_beside
from mcp_rl.scenarios.goals.values import shown, without_zone_name
from mcp_rl.scenarios.goals.words import English, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Entity, WorldModel
    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.program import AnswerForm

_MOST_ITEMS, _MOST_WORDS = 8, 60
"""Limits on the items, and on the words, of an answer that a message can be expected to hold."""
_MOST_OTHERS = 12
"""Most other answers that a message must not list beside the right one; to list more of them takes too many words."""
_TRIES = 60
"""Most draws for one question that is wanted."""
_MOST_IDLE = 400
"""Draws in a row that give no new question, after which the world has no more to offer."""


class Questions:
    """Draws questions over one world, from the names of its server's tools and a seed."""

    def __init__(self, world: WorldModel, tools: Sequence[str], seed: int) -> None:
        self._world = world
        self._random = random.Random(f"{seed}:questions")
        self.english = English(world, self._random)
        self._requests = Requests(self.english, ToolNames(tools))
        self._drawer = ProgramDrawer(self.english, self._random)
        self._row_drawer = RowDrawer(self.english, self._random)
        self._single_drawer = SingleDrawer(self.english, random.Random(f"{seed}:singles"))
        self._view = View(world)
        self.lookups = Lookups(world)

    def draw(self, wanted: Mapping[Level, int]) -> list[GoalQuestion]:
        """Return up to so many questions of each level, in a balance in which no answer is a good guess."""
        chosen, idle = Balance(wanted), 0
        tries = _TRIES * sum(wanted.values())
        drawn = alternating(proposals(self._drawer, tries), self._row_drawer.proposals(tries))
        drawn = alternating(drawn, self._single_drawer.proposals())
        for outcome, program in drawn:
            if chosen.full or idle > _MOST_IDLE:
                break
            idle += 1
            question = self.question(outcome, program) if chosen.has_room(outcome, program) else None
            if question is not None and chosen.missing("told") > chosen.missing("looked-up"):
                question = self._in_named_table(question) or self._on_named_page(question) or question
            if question is not None and chosen.add(question):
                idle = 0
        return unguessable(chosen.chosen)

    def question(self, outcome: str, program: Program) -> GoalQuestion | None:
        """Return the question of a program; None where it makes no task."""
        try:
            evaluated = self.spoken(evaluate(self._world, program, self._view))
            if not self._worth_asking(evaluated):
                return None
            given = given_values(program, self.english)
            found = self.lookups.least(evaluated, given)
        except Unanswerable:
            return None
        level = self._level(evaluated, found, given)
        if level is None or (text := self._requests.of(program)) is None or tells(text, evaluated.answer):
            return None
        calls = (found[-1],) if level == "told" and len(found) > 1 else tuple(found)
        if level == "told" and not self._within(program):
            stated = self.lookups.stated(evaluated.answer.value, given)
            if isinstance(program, NamesOf):
                stated = self._listing_of(evaluated, given)
            calls = (stated,) if stated is not None else calls
        return GoalQuestion(text, outcome, evaluated, level, calls, given)

    def _in_named_table(self, question: GoalQuestion) -> GoalQuestion | None:
        """Return a question with the name of the table that shows its answer, if one query of that answers it."""
        if question.level != "looked-up" or (table := self.lookups.table_read_by(question.lookups[-1])) is None:
            return None
        where = self.english.pick([f"Look in the table {quoted(table)}.", f"It is in the table {quoted(table)}."])
        return self._with_place(question, table, where)

    def _on_named_page(self, question: GoalQuestion) -> GoalQuestion | None:
        """Return a question with the address of the page that answers it, if that one page does."""
        if question.level != "looked-up" or (page := self.lookups.page_shown_by(question.lookups[-1])) is None:
            return None
        if self._within(question.evaluated.program):
            return self._with_address(question, page)
        where = self.english.pick([f"It is on the page {quoted(page)}.", f"The page {quoted(page)} says it."])
        return self._with_place(question, page, where)

    def _with_address(self, question: GoalQuestion, page: str) -> GoalQuestion | None:
        """Return a question about rows of one named page with the address of that, so that no other page is needed."""
        kind, evaluated = kind_of(question.evaluated.program), question.evaluated
        if self._within(evaluated.program) not in {each.field for each in self._conditions(evaluated.program)}:
            return None
        shown = tuple(fact for fact in evaluated.facts if fact[0] == kind)
        there = replace(question, evaluated=replace(evaluated, facts=shown))
        return self._with_place(there, page, f"The address of that page is {quoted(page)}.")

    def _within(self, program: Program) -> str:
        """Return the field that says where the rows stand that a program is about; empty for any other things."""
        return self._world.kinds[kind_of(program)].within

    def _with_place(self, question: GoalQuestion, place: str, where: str) -> GoalQuestion | None:
        """Return a question that says where its answer stands; None if more than one call is needed still."""
        given = (*question.given, place)
        try:
            found = self.lookups.least(question.evaluated, given)
        except Unanswerable:
            return None
        text = f"{question.text} {where}"
        if len(found) != 1 or tells(text, question.answer):
            return None
        return replace(question, text=text, level="told", lookups=tuple(found), given=given)

    def other_answers(self, evaluated: Evaluated) -> list[JsonValue]:
        """Return the few other values that the field asked for has, which a message could list all at once."""
        program, kind = evaluated.program, kind_of(evaluated.program)
        if self._world.kinds[kind].single:
            beside = values_beside(self.english, kind, self._answered_field(program))
            return [*beside[:_MOST_OTHERS]]
        if isinstance(program, FieldOf) and program.through:
            kind = next(r.to for r in self._world.references if (r.kind, r.field) == (kind, program.through))
        name = self.english.name_field(kind) if isinstance(program, NamesOf) else self._answered_field(program)
        rows = bool(self._within(program))
        things = self._rows_beside(program) if rows else self._world.of_kind(kind)
        values = [one.facts[name].value for one in things if name in one.facts]
        said = dict.fromkeys(shown(self.english.spoken(kind, name, one)) for one in values)
        others = [one for one in said if normalised(one) and one != answer_text(evaluated.answer)]
        others = others[:_MOST_OTHERS] if rows else others
        return list(others) if len(others) <= _MOST_OTHERS and all(len(one) <= 80 for one in others) else []

    def _rows_beside(self, program: Program) -> list[Entity]:
        """Return all rows, those of the same page or the same name as the chosen ones first."""
        about, rows = self._world.kinds[kind_of(program)], self._world.of_kind(kind_of(program))
        said = [one for one in self._conditions(program) if one.field in (about.within, about.key)]
        return sorted(rows, key=lambda one: any(one.facts[each.field].value != each.value for each in said))

    def spoken(self, evaluated: Evaluated) -> Evaluated:
        """Return an answered program with the answer as people say it: names instead of keys of what is referred to."""
        program, answer = evaluated.program, evaluated.answer
        name = self._answered_field(program)
        if isinstance(program, FieldOf) and program.through:
            return evaluated
        parts = answer.value if isinstance(answer.value, list) else [answer.value]
        said = [self.english.spoken(kind_of(program), name, part) for part in parts]
        if answer.form == "pair":
            said[1:] = parts[1:]
        if answer.form == "time":
            said = [without_zone_name(part) for part in said]
        value = said if isinstance(answer.value, list) else said[0]
        facts = [fact for part in parts if (fact := self.english.named_by(kind_of(program), name, part)) is not None]
        for each in self._conditions(program):
            if not each.through and (fact := self.english.named_by(kind_of(program), each.field, each.value)):
                facts.append(fact)
        seen = tuple(dict.fromkeys((*evaluated.facts, *facts)))
        form: AnswerForm = "text" if answer.form == "number" and isinstance(value, str) else answer.form
        return replace(evaluated, answer=ProgramAnswer(value, form), facts=seen)

    def _answered_field(self, program: Program) -> str:
        """Return the field whose values the answer holds; empty for names and numbers."""
        match program:
            case MoreOf():
                return program.condition.field
            case GapAmong():
                return program.named_by
            case PlacesOf():
                return self._world.kinds[program.things.kind].within
        return getattr(program, "field", "")

    def _conditions(self, program: Program) -> Sequence[Condition]:
        """Return the conditions of a program's choice; of a comparison of rows, those of its sides too."""
        match program:
            case GapAmong(things, named_by, one, other):
                return (*things.conditions, *(Condition(named_by, "is", value) for value in (one, other)))
            case MoreOf(kind, condition, other) if self._world.kinds[kind].within:
                return condition, replace(condition, value=other)
        chosen = choice_of(program)
        return chosen.conditions if chosen is not None else ()

    def _worth_asking(self, evaluated: Evaluated) -> bool:
        """Return whether an answer fits a message, and other things could be taken for those asked for."""
        program, answer = evaluated.program, evaluated.answer
        every, chosen = len(self._world.of_kind(kind_of(program))), len(evaluated.chosen)
        if isinstance(answer.value, list) and not 1 <= len(answer.value) <= _MOST_ITEMS:
            return False
        if len(answer_text(answer).split()) > _MOST_WORDS or len(answer_text(answer)) > 8 * _MOST_WORDS:
            return False
        if answer.form in ("text", "time", "set") and not normalised(answer_text(answer)):
            return False
        things = choice_of(program)
        if things is None:
            return every > 2
        if (
            isinstance(program, TotalOf | Commonest | ExtremeOf)
            and len(View(self._world, self._view).select(program.things)) < 2
        ):
            return False
        if isinstance(program, CountOf) and (chosen < 1 or (things.conditions and chosen == every)):
            return False
        if isinstance(program, CountOf) and self._within(program) and chosen < 2:  # 1 needs no tool
            return False
        if isinstance(program, NamesOf) and chosen == every:
            return False
        return not things.conditions or chosen < every

    def _level(self, evaluated: Evaluated, found: Sequence[int], given: Sequence[JsonValue]) -> Level | None:
        """Return the level of a question; None where one call states what should have to be worked out."""
        program = evaluated.program
        if self._within(program):  # only the page of a row states what it says
            shortest: Level = "told" if len(found) == 1 else "looked-up"
            return shortest if isinstance(program, FieldOf) else "worked-out"
        stated = self._one_call_states(program, evaluated.answer, given)
        if isinstance(program, FieldOf):
            stated = stated and not program.through  # a row of what is referred to may hold the same number
            return "told" if stated or len(found) == 1 else "looked-up"
        if isinstance(program, NamesOf) and self._listing_of(evaluated, given) is not None:
            return "told"
        return None if stated else "worked-out"

    def _listing_of(self, evaluated: Evaluated, given: Sequence[JsonValue]) -> int | None:
        """Return an observation, whose arguments the request gives, that names the chosen things and no others."""
        kind = kind_of(evaluated.program)
        name = self.english.name_field(kind)
        named = [(str(one.key) in evaluated.chosen, one.facts.get(name)) for one in self._world.of_kind(kind)]
        if any(fact is None for _, fact in named):
            return None
        names = [str(fact.value) for chosen, fact in named if chosen and fact is not None]
        others = [str(fact.value) for chosen, fact in named if not chosen and fact is not None]
        return self.lookups.lists_just(names, others, given)

    def _one_call_states(self, program: Program, answer: ProgramAnswer, given: Sequence[JsonValue]) -> bool:
        things = choice_of(program)
        compared = things is not None and any(c.relation in ("above", "below", "lacks") for c in things.conditions)
        if compared or answer.form == "none":
            return False
        if isinstance(program, Gap | GapAmong | MoreOf):
            return self.lookups.stated(answer.value, given) is not None
        if isinstance(program, ExtremeOf) and not given:
            return self.lookups.stated(answer.value, ()) is not None
        return self.lookups.stated(answer.value, given) is not None
