"""Tasks for calculating tools: the request holds the values and says in ordinary words what is wanted.

Tools are recognised by probing: a tool gets the words of an operation, or of the clocks of two cities, only if its
results are right.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from mcp_rl.explore.answer import read_answer
from mcp_rl.explore.words import words_of
from mcp_rl.scenario import GoalProof, Level, ToolCall, Verifier
from mcp_rl.scenarios.goals.clocks import clocks_of, shows_clock
from mcp_rl.scenarios.goals.program import ProgramAnswer
from mcp_rl.scenarios.goals.requests import ToolNames
from mcp_rl.scenarios.goals.right_answer import answer_text, say_otherwise, verifier_of
from mcp_rl.scenarios.goals.stories import STORIES, Operator, Sum, ToldStory
from mcp_rl.scenarios.goals.task import REFUSAL, GoalTask, accepted, longest, results_hash
from mcp_rl.scenarios.goals.values import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mcp_rl.scenarios.goals.clocks import ClockQuestion
    from mcp_rl.scenarios.goals.twice import ReadingCall, Twice
    from mcp_rl.toolserver.tools.listing import Tool

_TOLERANCE = 1e-9
_DRAWS = 30
"""Draws for one task that is wanted."""
_SAME_ANSWER = 2
"""Maximum number of tasks of one kind with the same answer."""
_HINTS: dict[Operator, str] = {
    "+": r"\badd|\bsum|plus", "-": r"subtract|minus|difference", "*": r"multipl|product|times",
    "/": r"divi|quotient", "%": r"modul|remainder|\bmod\b", "**": r"power|exponent",
}  # fmt: skip
_EXPRESSION = re.compile(r"\b(?:expression|expr|formula|equation|calculation|calc)\b")
_CONSTANTS = ("0", "1", "yes", "no", "I do not know.", "")


@dataclass(frozen=True)
class _Reckoning:
    """A request, with the calls that solve it and the result expected of each."""

    text: str
    outcome: str
    level: Level
    calls: tuple[ReadingCall, ...]
    shows: tuple[float | str, ...]
    """A number, or a time of day such as 15:35."""
    answer: ProgramAnswer
    others: tuple[str, ...] = ()
    """For a comparison: the names with the smaller amount."""


class Reckoned:
    """Draws tasks for a server's tools that calculate with numbers, expressions or the clocks of cities."""

    def __init__(
        self, tools: Sequence[Tool], names: Sequence[str], twice: Twice, seed: int, *, knowledge: bool = True
    ) -> None:
        """With `knowledge`, requests may name cities instead of their time zones."""
        self._tools, self._twice, self._names, self._knowledge = tools, twice, ToolNames(names), knowledge
        self._random = random.Random(f"{seed}:reckoned")

    async def tasks(self, wanted: Mapping[Level, int]) -> list[GoalTask]:
        """Return up to so many proven tasks of the levels "told" and "worked-out"."""
        makers = await self._makers()
        made: list[GoalTask] = []
        for level in ("told", "worked-out"):
            count = wanted.get(level, 0)
            drawn = await anyio.to_thread.run_sync(self._drawn, level, count, makers) if makers and count > 0 else []
            await self._twice.make([call for one in drawn for call in one.calls])
            holding = [one for one in drawn if self._holds(one)][:count]
            answers: dict[str, Counter[str]] = {}
            for one in holding:
                answers.setdefault(one.outcome, Counter())[answer_text(one.answer)] += 1
            tasks = [self._task(one, _guess(answers[one.outcome], answer_text(one.answer))) for one in holding]
            made += [task for task in tasks if task is not None]
        return made

    def _drawn(
        self, level: Level, count: int, makers: Sequence[Callable[[random.Random], _Reckoning | None]]
    ) -> list[_Reckoning]:
        """Draw requests of a level, some more than wanted."""
        found: dict[str, _Reckoning] = {}
        answers: Counter[tuple[str, str]] = Counter()
        for _ in range(_DRAWS * count * len(makers)):
            if len(found) >= count + count // 5 + 2:
                break
            one = self._random.choice(makers)(self._random)
            if one is None or one.level != level or one.text in found or self._names.in_text(one.text):
                continue
            answer = one.outcome, answer_text(one.answer)
            if answers[answer] < _SAME_ANSWER and not _stands_in(one):
                answers[answer] += 1
                found[one.text] = one
        return list(found.values())

    async def _makers(self) -> list[Callable[[random.Random], _Reckoning | None]]:
        """Return the sources of requests for these tools, one for each way of calculating."""
        reckoners: list[_Reckoner] = [*self._expressions(), *self._two_numbers()]
        trials = [(one, sample) for one in reckoners for sample in one.samples()]
        await self._twice.make([call for _, (calls, _) in trials for call in calls])
        fit: dict[Operator, _Reckoner] = {}
        for one, (calls, values) in trials:
            if all(self._shows(call, value) for call, value in zip(calls, values, strict=True)):
                for operator in one.operators:
                    fit.setdefault(operator, one)
        makers: list[Callable[[random.Random], _Reckoning | None]] = []
        makers += [lambda draw: _of_story(draw, fit)] if fit else []
        clocks = [found for tool in self._tools for found in clocks_of(tool)]
        await self._twice.make([call for found in clocks for call, _ in found.samples()])
        right = [found for found in clocks if all(self._shows(call, clock) for call, clock in found.samples())]
        return [*makers, *[lambda draw: _of_clock(right[0].question(draw, knowledge=self._knowledge))][: len(right)]]

    def _two_numbers(self) -> Iterator[_TwoNumbers]:
        for tool in self._tools:
            pair = _number_pair(tool)
            about = f"{words_of(tool.name)} {tool.title or ''} {tool.description}".lower()
            for operator, hints in _HINTS.items() if pair else ():
                if pair and re.search(hints, about):
                    yield _TwoNumbers(tool.name, pair, operator)

    def _expressions(self) -> Iterator[_Expressions]:
        for tool in self._tools:
            properties, required = tool.input_schema.get("properties") or {}, tool.input_schema.get("required") or []
            for name in required if len(required) == 1 else ():
                inner = properties.get(name)
                about = f"{words_of(name)} {inner.get('description') or ''}".lower() if isinstance(inner, dict) else ""
                if isinstance(inner, dict) and inner.get("type") == "string" and _EXPRESSION.search(about[:1000]):
                    yield from (_Expressions(tool.name, name, power) for power in ("**", "^", ""))

    def _shows(self, call: ReadingCall, wanted: float | str) -> bool:
        text = self._twice[call]
        if text is None:
            return False
        if isinstance(wanted, str):
            return shows_clock(text, wanted)
        answer = read_answer(text, dict(call[1]))
        value = answer.value if answer is not None else None
        return isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=_TOLERANCE)

    def _holds(self, one: _Reckoning) -> bool:
        return all(self._shows(call, value) for call, value in zip(one.calls, one.shows, strict=True))

    def _task(self, one: _Reckoning, guess: float) -> GoalTask | None:
        calls = tuple(ToolCall(tool=tool, arguments=dict(arguments)) for tool, arguments in one.calls)
        said = answer_text(one.answer)
        verifier = verifier_of(one.others, one.answer)
        if one.others:
            verifier = Verifier(kind="parts", expected=one.answer.value, options={"others": list(one.others)})
        wrong = [("", calls), (REFUSAL, calls), (said, ()), *((word, calls) for word in _CONSTANTS)]
        right = [said, f"The answer is {said}.", *say_otherwise(one.answer, self._random)]
        if not all(accepted(verifier, words, calls) for words in right):
            return None
        if any(accepted(verifier, *each) for each in wrong):
            return None
        texts = [text for call in one.calls if (text := self._twice[call]) is not None]
        values = sorted(str(value) for _, arguments in one.calls[:1] for value in arguments.values())
        proof = GoalProof(
            program=f"{one.outcome} {[*one.calls]!r}", executed=2, results=results_hash(texts),
            longest_result=longest(texts), refused=len(wrong), guess=round(guess, 4), apart=(f"values {values}",),
        )  # fmt: skip
        return GoalTask(one.text, one.level, calls, said, verifier, proof, (one.level, "reckoned"))


def _guess(answers: Counter[str], right: str) -> float:
    most = max(answers.values())
    best = [answer for answer, count in answers.items() if count == most]
    return 1 / len(best) if most > 1 and right in best else 0.0


def _stands_in(one: _Reckoning) -> bool:
    """Return whether a request states its own answer."""
    value = one.answer.value[-1] if isinstance(one.answer.value, list) else one.answer.value
    return re.search(rf"(?<![\w.:]){re.escape(shown(value))}(?![\w:]|\.\d)", one.text) is not None


# Numbers


@dataclass(frozen=True)
class _TwoNumbers:
    """A tool that takes two numbers and does one operation."""

    tool: str
    parameters: tuple[str, str]
    operator: Operator

    @property
    def operators(self) -> tuple[Operator, ...]:
        return (self.operator,)

    def call(self, one: float, other: float) -> ReadingCall:
        """Return the call for these operands."""
        return self.tool, {self.parameters[0]: one, self.parameters[1]: other}

    def samples(self) -> list[tuple[list[ReadingCall], list[float]]]:
        """Return probe calls for the operation, with the expected results."""
        sums = [Sum(self.operator, 84, 6), Sum(self.operator, 105, 3), Sum(self.operator, 47, 5)]
        found = [(self.call(int(one.one), int(one.other)), one.value) for one in sums if isinstance(one.one, int)
                 and isinstance(one.other, int) and one.value is not None]  # fmt: skip
        return [([call for call, _ in found], [value for _, value in found])] if len(found) else []


@dataclass(frozen=True)
class _Expressions:
    """A tool that takes an arithmetic expression."""

    tool: str
    parameter: str
    power: str
    """Operator for powers; empty if the tool has none."""

    @property
    def operators(self) -> tuple[Operator, ...]:
        return ("+", "-", "*", "/", *(("**",) if self.power else ()))

    def call(self, whole: Sum) -> ReadingCall:
        return self.tool, {self.parameter: whole.written(self.power)}

    def samples(self) -> list[tuple[list[ReadingCall], list[float]]]:
        """Return probe calls that tell an expression from other texts, with the expected results."""
        sums = [Sum("-", Sum("*", 14, Sum("+", 3, 6)), 5), Sum("/", Sum("+", 80, 4), 7)]
        sums += [Sum("**", 3, 4)] if self.power else []
        return [([self.call(one) for one in sums], [one.value for one in sums if one.value is not None])]


_Reckoner = _TwoNumbers | _Expressions


def _of_story(draw: random.Random, fit: Mapping[Operator, _Reckoner]) -> _Reckoning | None:
    """Draw a story whose operations these tools offer."""
    stories = [one for one in STORIES if one.operators <= fit.keys()]
    told = draw.choice(stories).told(draw) if stories else None
    if told is None:
        return None
    calls: list[ReadingCall] = []
    shows: list[float] = []
    for whole in told.sums:
        _reckon(whole, fit, calls, shows)
    level: Level = "told" if len(calls) == 1 else "worked-out"
    answer, others = _answer(told)
    return _Reckoning(told.text, "story", level, tuple(calls), tuple(shows), answer, others)


def _reckon(whole: Sum, fit: Mapping[Operator, _Reckoner], calls: list[ReadingCall], shows: list[float]) -> None:
    """Add the calls of a calculation, inner ones first."""
    assert whole.value is not None
    tool = fit[whole.operator]
    if isinstance(tool, _Expressions):
        calls.append(tool.call(whole))
        shows.append(whole.value)
        return
    values: list[float] = []
    for each in (whole.one, whole.other):
        if isinstance(each, Sum):
            _reckon(each, fit, calls, shows)
        value = each.value if isinstance(each, Sum) else each
        assert value is not None
        values.append(value)
    calls.append(tool.call(values[0], values[1]))
    shows.append(whole.value)


def _answer(told: ToldStory) -> tuple[ProgramAnswer, tuple[str, ...]]:
    values = [one.value for one in told.sums if one.value is not None]
    if not told.names:
        return ProgramAnswer(values[0], "number"), ()
    more = values.index(max(values))
    gap = max(values) - min(values)
    others = tuple(name for at, name in enumerate(told.names) if at != more)
    return ProgramAnswer([told.names[more], gap], "pair"), others


def _of_clock(found: ClockQuestion | None) -> _Reckoning | None:
    if found is None:
        return None
    return _Reckoning(found.text, found.outcome, found.level, found.calls, found.shows, found.answer, found.others)


def _number_pair(tool: Tool) -> tuple[str, str] | None:
    """Return the names of a tool's two required numbers; None for a tool that takes anything else."""
    properties, required = tool.input_schema.get("properties") or {}, tool.input_schema.get("required") or []
    numeric = [
        name
        for name, inner in properties.items()
        if isinstance(inner, dict) and inner.get("type") in ("number", "integer")
    ]
    return (numeric[0], numeric[1]) if len(numeric) == 2 and sorted(numeric) == sorted(required) else None
