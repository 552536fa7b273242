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
from mcp_rl.scenarios.goals.clocks import clocks_of, shows_clock
from mcp_rl.scenarios.goals.program import ProgramAnswer
from mcp_rl.scenarios.goals.reckoning import Reckoning, stands_in, tasks_of
from mcp_rl.scenarios.goals.requests import ToolNames
from mcp_rl.scenarios.goals.right_answer import answer_text
from mcp_rl.scenarios.goals.stories import STORIES, Operator, Sum, ToldStory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.task import GoalTask
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
_SPELLED: dict[Operator, tuple[str, ...]] = {
    "+": ("add", "+", "addition", "plus", "sum"), "-": ("subtract", "-", "subtraction", "minus", "sub"),
    "*": ("multiply", "*", "multiplication", "times", "mul"), "/": ("divide", "/", "division", "div"),
    "**": ("power", "**", "^", "pow"), "%": ("modulo", "mod", "%"),
}  # fmt: skip
"""Names of operations, as parameters take them."""
_EXPRESSION = re.compile(r"\b(?:expression|expr|formula|equation|calculation|calc)\b")


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
            made += tasks_of(holding, self._twice, self._random)
        return made

    def _drawn(
        self, level: Level, count: int, makers: Sequence[Callable[[random.Random], Reckoning | None]]
    ) -> list[Reckoning]:
        """Draw requests of a level, some more than wanted."""
        found: dict[str, Reckoning] = {}
        answers: Counter[tuple[str, str]] = Counter()
        for _ in range(_DRAWS * count * len(makers)):
            if len(found) >= count + count // 5 + 2:
                break
            one = self._random.choice(makers)(self._random)
            if one is None or one.level != level or one.text in found or self._names.in_text(one.text):
                continue
            answer = one.outcome, answer_text(one.answer)
            if answers[answer] < _SAME_ANSWER and not stands_in(one):
                answers[answer] += 1
                found[one.text] = one
        return list(found.values())

    async def _makers(self) -> list[Callable[[random.Random], Reckoning | None]]:
        """Return the sources of requests for these tools, one for each way of calculating."""
        reckoners: list[_Reckoner] = [*self._expressions(), *self._two_numbers()]
        trials = [(one, sample) for one in reckoners for sample in one.samples()]
        await self._twice.make([call for _, (calls, _) in trials for call in calls])
        fit: dict[Operator, _Reckoner] = {}
        for one, (calls, values) in trials:
            if all(self._shows(call, value) for call, value in zip(calls, values, strict=True)):
                for operator in one.operators:
                    fit.setdefault(operator, one)
        makers: list[Callable[[random.Random], Reckoning | None]] = []
        makers += [lambda draw: _of_story(draw, fit)] if fit else []
        clocks = [found for tool in self._tools for found in clocks_of(tool)]
        await self._twice.make([call for found in clocks for call, _ in found.samples()])
        right = [found for found in clocks if all(self._shows(call, clock) for call, clock in found.samples())]
        return [*makers, *[lambda draw: right[0].question(draw, knowledge=self._knowledge)][: len(right)]]

    def _two_numbers(self) -> Iterator[_TwoNumbers]:
        for tool in self._tools:
            pair = _number_pair(tool)
            about = f"{words_of(tool.name)} {tool.title or ''} {tool.description}".lower()
            for operator, hints in _HINTS.items() if pair else ():
                if pair and re.search(hints, about):
                    yield _TwoNumbers(tool.name, *pair, operator)
            yield from _operations(tool)

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
        value = answer.value
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}(?:\.\d{1,15})?", value):
            value = float(value)
        return isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=_TOLERANCE)

    def _holds(self, one: Reckoning) -> bool:
        return all(self._shows(call, value) for call, value in zip(one.calls, one.shows, strict=True))


# Numbers


@dataclass(frozen=True)
class _TwoNumbers:
    """A tool that takes two numbers and does one operation."""

    tool: str
    parameters: tuple[str, ...]
    """Two numbers, or one list of numbers."""
    inside: str
    """The parameter that is an object with these; empty if there is none."""
    operator: Operator
    chosen: tuple[str, str] | None = None
    """The parameter that chooses the operation, and its value."""

    @property
    def operators(self) -> tuple[Operator, ...]:
        return (self.operator,)

    def call(self, one: float, other: float) -> ReadingCall:
        """Return the call for these operands."""
        values: list[JsonValue] = [one, other]
        given = dict(zip(self.parameters, values if len(self.parameters) > 1 else [values], strict=True))
        given |= dict([self.chosen]) if self.chosen else {}
        return self.tool, {self.inside: given} if self.inside else given

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


def _of_story(draw: random.Random, fit: Mapping[Operator, _Reckoner]) -> Reckoning | None:
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
    return Reckoning(told.text, "story", level, tuple(calls), tuple(shows), answer, others)


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


def _operations(tool: Tool) -> Iterator[_TwoNumbers]:
    """Yield the operations of a tool that takes two numbers and the name of one, such as "add" or "/"."""
    properties, required = tool.input_schema.get("properties") or {}, tool.input_schema.get("required") or []
    kinds = {name: inner for name, inner in properties.items() if isinstance(inner, dict)}
    numeric = [name for name, inner in kinds.items() if inner.get("type") in ("number", "integer") and name in required]
    names = [name for name, inner in kinds.items() if inner.get("type") == "string" or inner.get("enum")]
    if len(numeric) != 2 or len(names) != 1 or not set(required) <= {*numeric, *names}:
        return
    inner = kinds[names[0]]
    words = [*(inner.get("enum") or ()), *_words_listed(f"{inner.get('description') or ''} {tool.description}")]
    for operator, spelled in _SPELLED.items():
        for word in dict.fromkeys(word for word in words if str(word).lower() in spelled):
            yield _TwoNumbers(tool.name, (numeric[0], numeric[1]), "", operator, (names[0], word))


def _words_listed(text: str) -> list[str]:
    return re.findall(r"[a-z]{3,14}|(?<=['\"(, ])[-+*/](?=['\"), ])", text[:2000])


def _number_pair(tool: Tool) -> tuple[tuple[str, ...], str] | None:
    """Return the names of a tool's two required numbers, or of its one list of numbers, and of the one object in which
    they are given or ""; None for a tool that takes anything else."""
    schema, inside = tool.input_schema, ""
    properties = schema.get("properties") or {}
    if len(properties) == 1 and isinstance(inner := next(iter(properties.values())), dict) and inner.get("properties"):
        inside, schema, properties = next(iter(properties)), inner, inner["properties"]
    required = schema.get("required") or []
    kinds = {name: inner for name, inner in properties.items() if isinstance(inner, dict)}
    numeric = [name for name, inner in kinds.items() if inner.get("type") in ("number", "integer")]
    if len(numeric) == 2 and sorted(numeric) == sorted(required):
        return (numeric[0], numeric[1]), inside
    lists = [name for name, inner in kinds.items() if inner.get("type") == "array"]
    if len(lists) == 1 and lists == list(required) and re.search(r"\bnumbers?\b|\bvalues\b", words_of(lists[0])):
        return (lists[0],), inside
    return None
