"""Questions among which no answer is a good guess, and that are not too much alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.program import FieldOf, Program, kind_of
from mcp_rl.scenarios.goals.question import GoalQuestion, choice_of
from mcp_rl.scenarios.goals.right_answer import answer_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.scenario import Level

_GUESSED = 0.08
"""Largest share of questions that the best guess gets right."""
_SAME_ANSWER = 3
"""Most questions of one kind with the same answer."""
_OUTCOME_SHARE = 0.2
"""Largest share of one outcome among the questions that must be worked out."""
_SAME_CHOICE = 3
"""Most questions about the same choice of things."""


class Balance:
    """Takes questions in, up to so many of each level, and none that is too much like the others."""

    def __init__(self, wanted: Mapping[Level, int]) -> None:
        self._wanted = wanted
        self.chosen: list[GoalQuestion] = []
        self._levels: Counter[Level] = Counter()
        self._choices: Counter[str] = Counter()
        self._answers: dict[str, Counter[str]] = defaultdict(Counter)
        self._outcomes: Counter[tuple[Level, str]] = Counter()
        self._texts: set[str] = set()

    @property
    def full(self) -> bool:
        return not any(map(self._lacks, self._wanted))

    def room(self, level: Level) -> int:
        """Return the number of questions of a level that are still wanted."""
        return self._wanted.get(level, 0) - self._levels[level]

    def missing(self, level: Level) -> float:
        """Return the share of the questions of a level that are still wanted."""
        return self.room(level) / max(1, self._wanted.get(level, 0))

    def _lacks(self, level: Level) -> bool:
        return self.room(level) > 0

    def has_room(self, outcome: str, program: Program) -> bool:
        """Return whether a question of a program could be taken in, before its calls are looked for."""
        things = _choice(program)
        if things != "None" and self._choices[things] >= _SAME_CHOICE + sum(self._wanted.values()) // 60:
            return False
        if isinstance(program, FieldOf):
            return self._lacks("told") or self._lacks("looked-up")
        most = max(1, _OUTCOME_SHARE * self._wanted.get("worked-out", 0))
        return self._lacks("worked-out") and self._outcomes["worked-out", outcome] < most

    def add(self, question: GoalQuestion) -> bool:
        """Take a question in and return True, unless it is too much like those that are there."""
        group, answer = guess_group(question), answer_text(question.answer)
        if (
            not self._lacks(question.level)
            or question.text in self._texts
            or self._answers[group][answer] >= _SAME_ANSWER
        ):
            return False
        self._texts.add(question.text)
        self._choices[_choice(question.evaluated.program)] += 1
        self._answers[group][answer] += 1
        self._outcomes[question.level, question.outcome] += 1
        self._levels[question.level] += 1
        self.chosen.append(question)
        return True


def _choice(program: Program) -> str:
    """Return the key under which questions about the same things are limited; of a single record, the program."""
    alone = isinstance(program, FieldOf) and not program.things.conditions
    return repr(program if alone else choice_of(program))


def guess_group(question: GoalQuestion) -> str:
    """Return the kind of question by which a guesser who has seen the others would guess."""
    asked = getattr(question.evaluated.program, "field", "")
    if isinstance(question.evaluated.program, FieldOf) and not question.evaluated.program.things.conditions:
        return f"alone {question.answer.form}"
    return f"{question.outcome} {kind_of(question.evaluated.program)} {asked} {question.answer.form}"


def best_guesses(questions: Sequence[GoalQuestion]) -> list[float]:
    """Return for each question how likely the commonest answer to questions of its kind is right.

    Of equally common answers one is taken at random. Where no answer occurs twice there is nothing to guess by.
    """
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        groups[guess_group(question)][answer_text(question.answer)] += 1
    return [_guess(groups[guess_group(question)], answer_text(question.answer)) for question in questions]


def _guess(answers: Counter[str], right: str) -> float:
    most = max(answers.values())
    best = [answer for answer, count in answers.items() if count == most]
    return 1 / len(best) if most > 1 and right in best else 0.0


def unguessable(questions: Sequence[GoalQuestion]) -> list[GoalQuestion]:
    """Return the questions without those that make guessing pay: at most one guess in twelve is right."""
    kept = list(questions)
    while kept and sum(guesses := best_guesses(kept)) > _GUESSED * len(kept):
        kept.pop(max(range(len(kept)), key=lambda index: (guesses[index], index)))
    return kept
