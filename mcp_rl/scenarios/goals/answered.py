"""Proofs of questions on the live server.

The calls of a solution are made in two episodes and say the same as when the world was seen. Searches with the values
of the request are tried as well: they give shorter solutions, and show where one call alone states the answer. Other
solutions, and the answer in other words, must be accepted; refusals, guesses and a dump of everything must not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from mcp_rl.explore.entities.parameters import SEARCH
from mcp_rl.explore.words import words_of
from mcp_rl.scenario import GoalProof, Level, ToolCall
from mcp_rl.scenarios.goals.balance import best_guesses, guess_group, unguessable
from mcp_rl.scenarios.goals.lookups import states
from mcp_rl.scenarios.goals.program import Condition, Evaluated, Unanswerable, kind_of
from mcp_rl.scenarios.goals.question import GoalQuestion, choice_of
from mcp_rl.scenarios.goals.questions import Questions
from mcp_rl.scenarios.goals.right_answer import answer_as_shown, answer_text, say_otherwise, verifier_of
from mcp_rl.scenarios.goals.task import REFUSAL, GoalTask, accepted, longest, results_hash
from mcp_rl.scenarios.goals.words import is_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import WorldModel
    from mcp_rl.scenarios.goals.twice import ReadingCall, Twice

_CONSTANTS = ("0", "1", "yes", "no", "true", "I do not know.", "")
"""Answers that need no tool."""
_WAYS = 3
"""Other solutions tried for one question."""
_MOST_SEARCHES = 150
_EXTRA = 1.3
"""Questions drawn for one that is wanted, since some do not hold."""
_MORE = {"looked-up": 6}
"""Spare questions drawn per level, by default two: a search often answers a looked-up question directly."""


@dataclass(frozen=True)
class _Solved:
    """A question with the calls that solve it, and other calls that do."""

    question: GoalQuestion
    calls: tuple[ReadingCall, ...]
    others: tuple[tuple[ReadingCall, ...], ...]


class AnsweredQuestions:
    """Draws questions over a world and proves them on the live server."""

    def __init__(self, world: WorldModel, tools: Sequence[str], twice: Twice, seed: int) -> None:
        self._world, self._twice = world, twice
        self._questions = Questions(world, tools, seed)
        self._random = random.Random(f"{seed}:answered")
        self._slots = list(dict.fromkeys((slot.tool, slot.parameter, slot.kind) for slot in world.slots))
        self._readers = {seen.tool for seen in world.observations}

    async def tasks(self, wanted: Mapping[Level, int]) -> list[GoalTask]:
        """Return up to so many proven tasks of each level."""
        drawn, needed, searches = await anyio.to_thread.run_sync(self._draw, wanted)
        plain = [(seen.tool, seen.arguments) for seen in self._world.observations]
        await self._twice.make([*needed, *plain, *searches])
        solved: dict[str, _Solved] = {}
        for one in drawn:
            await checkpoint()
            if (found := self._solve(one)) is not None:
                solved[found.question.text] = found
        room = dict(wanted)
        some: list[GoalQuestion] = []
        for question in (one.question for one in solved.values()):
            if room.get(question.level, 0) > 0:
                room[question.level] -= 1
                some.append(question)
        kept = [solved[question.text] for question in unguessable(some)]
        guesses = best_guesses([one.question for one in kept])
        tasks = [self._task(one, guess, kept) for one, guess in zip(kept, guesses, strict=True)]
        return [task for task in tasks if task is not None]

    def _draw(self, wanted: Mapping[Level, int]) -> tuple[list[GoalQuestion], list[ReadingCall], list[ReadingCall]]:
        """Return questions, the calls that answer them, and the searches that may; takes seconds."""
        drawn = self._questions.draw(
            {level: round(_EXTRA * count + _MORE.get(level, 2)) for level, count in wanted.items()}
        )
        searches = list({repr(s): s for q in drawn for s in self._searches(q)}.values())[:_MOST_SEARCHES]
        lookups = self._questions.lookups
        return drawn, [call for q in drawn for call in lookups.calls(q.lookups, q.given)], searches

    def _solve(self, question: GoalQuestion) -> _Solved | None:
        """Return the question with its shortest solution that holds; None where none does."""
        ways = [way for way in self._ways(question) if all(self._twice[call] is not None for call in way)]
        ways = list({repr(way): way for way in ways}.values())
        if not ways:
            return None
        best = min(ways, key=len)
        if (len(best) == 1 and question.level == "looked-up") or (
            len(best) == 1 and best[0] in self._searches(question) and question.outcome in ("names", "if any")
        ):
            question = replace(question, level="told")
        stated = self._stated_by_search(question)
        if stated is not None:
            if question.level == "worked-out":
                return None
            question, best = replace(question, level="told"), (stated,)
        return _Solved(question, best, tuple(way for way in ways if way != best)[:_WAYS])

    def _ways(self, question: GoalQuestion) -> list[tuple[ReadingCall, ...]]:
        lookups, given = self._questions.lookups, question.given
        found = [question.lookups]
        for _ in range(_WAYS):
            if (other := lookups.another(question.evaluated, given, self._random)) is not None:
                found.append(tuple(other))
        ways = [tuple(lookups.calls(way, given)) for way in found if self._same_as_seen(way, given)]
        return [*ways, *self._ways_by_search(question)]

    def _same_as_seen(self, way: Sequence[int], given: Sequence[JsonValue]) -> bool:
        """Return whether the live server says now what it said when the world was seen."""
        calls = self._questions.lookups.calls(way, given)
        return all(
            self._twice[call] == self._twice.settled(self._world.observations[index].text)
            for index, call in zip(way, calls, strict=True)
        )

    # Searching with the values of the request

    def _condition(self, question: GoalQuestion) -> Condition | None:
        things = choice_of(question.evaluated.program)
        if things is None or len(things.conditions) != 1 or self._world.kinds[things.kind].within:
            return None
        condition = things.conditions[0]
        searched = condition.relation in ("holds", "has", "is", "ends") and not condition.through
        return condition if searched and isinstance(condition.value, str) else None

    def _searches(self, question: GoalQuestion) -> list[ReadingCall]:
        """Return reading calls with the value of the request's condition, by tools that take values of such fields."""
        condition = self._condition(question)
        if condition is None:
            return []
        return [
            (tool, {parameter: condition.value})
            for tool, parameter, _ in self._slots
            if (tool in self._readers or (tool, parameter) in self._searching)
            and (is_address(condition.value) or (tool, parameter) not in self._addressed)
        ]

    @cached_property
    def _addressed(self) -> set[tuple[str, str]]:
        """The parameters that take addresses, which no search for anything else can use."""
        seen = self._world.observations
        return {(one.tool, name) for one in seen for name, value in one.arguments.items() if is_address(value)}

    @property
    def _searching(self) -> set[tuple[str, str]]:
        effects = {effect.tool for effect in self._world.effects}
        return {(tool, parameter) for tool, parameter, _ in self._slots if tool not in effects}

    def _stated_by_search(self, question: GoalQuestion) -> ReadingCall | None:
        answer, given = question.answer.value, question.given
        if question.answer.form == "none":
            return None
        for search in self._searches(question):
            text = self._twice[search]
            # A result that holds things of other choices too does not state which ones are meant.
            if text is not None and states(text, answer, given) and self._selects(text, question):
                return search
        return None

    def _selects(self, text: str, question: GoalQuestion) -> bool:
        """Return whether a result names the chosen things and no others."""
        things = choice_of(question.evaluated.program)
        if things is None:
            return False
        chosen = set(question.evaluated.chosen)
        return all((_names(text, str(one.key)) == (str(one.key) in chosen)) for one in self._world.of_kind(things.kind))

    def _ways_by_search(self, question: GoalQuestion) -> list[tuple[ReadingCall, ...]]:
        """Return ways that begin with a search which finds exactly the chosen things."""
        condition = self._condition(question)
        if condition is None or not question.evaluated.chosen:
            return []
        evaluated = question.evaluated
        left = tuple(fact for fact in evaluated.facts if fact[2] != condition.field and fact[1] in evaluated.chosen)
        ways: list[tuple[ReadingCall, ...]] = []
        for search in self._searches(question):
            text = self._twice[search]
            if text is None or not self._looks_for(search, condition, kind_of(evaluated.program)):
                continue
            if not self._selects(text, question):
                continue
            unseen = tuple(fact for fact in left if not self._shows(text, fact))
            if not unseen:
                ways.append((search,))
                continue
            try:
                rest = self._questions.lookups.least(
                    Evaluated(evaluated.program, evaluated.answer, unseen, ()), [*question.given, *evaluated.chosen]
                )
            except Unanswerable:
                continue
            if self._same_as_seen(rest, question.given):
                ways.append((search, *self._questions.lookups.calls(rest, question.given)))
        return ways

    def _looks_for(self, search: ReadingCall, condition: Condition, kind: str) -> bool:
        """Return whether a search is for things of a kind by the condition's field: its parameter takes values of that
        field, or is named as that of a search. The card of 'chair' may name the notes about chairs by chance."""
        tool, arguments = search
        return any(
            (slot.kind == kind and slot.field == condition.field) or SEARCH.search(words_of(slot.parameter))
            for slot in self._world.slots
            if slot.tool == tool and slot.parameter in arguments
        )

    def _shows(self, text: str, fact: tuple[str, str, str]) -> bool:
        kind, key, name = fact
        entity = next((one for one in self._world.of_kind(kind) if str(one.key) == key), None)
        return entity is not None and states(text, entity.facts[name].value, [key])

    # Judging

    def _task(self, solved: _Solved, guess: float, others: Sequence[_Solved]) -> GoalTask | None:
        question = solved.question
        beside = self._questions.other_answers(question.evaluated)
        verifier = verifier_of(question.given, question.answer, beside)
        calls = _as_calls(solved.calls)
        answer = answer_text(question.answer)
        if not accepted(verifier, answer, calls):
            return None
        ways = [_as_calls(way) for way in solved.others] or [calls]
        said = list(say_otherwise(question.answer, self._random))
        if not all(accepted(verifier, words, way) for way in ways for words in said):
            return None
        texts = [text for call in solved.calls if (text := self._twice[call]) is not None]
        group = guess_group(question)
        wrong = [
            answer_text(other.question.answer)
            for other in others
            if guess_group(other.question) == group and answer_text(other.question.answer) != answer
        ]
        refused = [("", ()), (REFUSAL, ()), (REFUSAL, calls), (answer, ()), *((word, calls) for word in _CONSTANTS)]
        refused += [(other, calls) for other in wrong[:5]] + [("\n".join(texts), calls)] * (len(texts) > 1)
        if any(accepted(verifier, words, made) for words, made in refused):
            return None
        proof = GoalProof(
            program=repr(question.evaluated.program),
            executed=2,
            results=results_hash(texts),
            longest_result=longest(texts),
            ways=len(solved.others),
            refused=len(refused),
            guess=round(guess, 4),
            apart=question.apart,
        )
        tags = (question.level, question.outcome.replace(" ", "-"))
        shown_answer = answer_as_shown(question.answer, texts)
        return GoalTask(question.text, question.level, calls, shown_answer, verifier, proof, tags)


def _names(text: str, key: str) -> bool:
    """Return whether a text holds a key that no letter or digit continues."""
    at = text.find(key)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(key) : at + len(key) + 1]
        if not before.isalnum() and not after.isalnum():
            return True
        at = text.find(key, at + 1)
    return False


def _as_calls(way: Sequence[ReadingCall]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(tool=tool, arguments=dict(arguments)) for tool, arguments in way)
