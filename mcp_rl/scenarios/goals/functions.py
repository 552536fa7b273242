"""Tasks for tools that compute something from the values in the request, and keep nothing.

A call that worked becomes a question: its arguments are stated in the words of their names, and a part of its result is
asked for, such as "The principal is 1000 and the annual rate is 5 percent. What is the monthly payment?"
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from mcp_rl.explore.answer import call_key
from mcp_rl.scenarios.goals.function_words import (
    AskedPart,
    conversion,
    is_sensible,
    is_short,
    noun_of,
    noun_of_operation,
    of_its_input,
    parts_asked,
    said_arguments,
    stands_plainly,
)
from mcp_rl.scenarios.goals.phrases import is_plural
from mcp_rl.scenarios.goals.program import ProgramAnswer, tidy
from mcp_rl.scenarios.goals.reckoning import Reckoning, stands_in, tasks_of
from mcp_rl.scenarios.goals.requests import ToolNames
from mcp_rl.scenarios.goals.right_answer import answer_text
from mcp_rl.scenarios.goals.values import moment
from mcp_rl.scenarios.goals.words import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.explore.outcome import Outcome
    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.program import AnswerForm
    from mcp_rl.scenarios.goals.task import GoalTask
    from mcp_rl.scenarios.goals.twice import ReadingCall, Twice
    from mcp_rl.toolserver.tools.listing import Tool

T = TypeVar("T")

_FEWEST = 5
"""Calls of a tool that must show a part of its result before it is asked for."""
_SHOWN, _DISTINCT, _COMMONEST = 0.25, 0.5, 0.3
"""Least shares of a tool's calls that show such a part, and of different values of it; largest one of the commonest."""
_LONGEST, _LONGEST_COMPARED = 20, 10
"""Most characters of a number that is asked for, and of those that are compared."""
_OF_ONE_CALL = 2
"""Most questions about one call."""
_MORE = 1.2
"""Questions that are drawn for each that is wanted, since some do not hold."""


@dataclass(frozen=True)
class _Known:
    """A call that worked, with a part of its result."""

    outcome: Outcome
    part: AskedPart


class Functions:
    """Draws questions about calls that worked."""

    def __init__(
        self,
        tools: Sequence[Tool],
        names: Sequence[str],
        outcomes: Sequence[Outcome],
        twice: Twice,
        seed: int,
        *,
        knowledge: bool = True,
    ) -> None:
        """`names` are those of all tools of the server, which no request may hold. Without `knowledge`, no number is
        asked for that a result writes as "$1,835.00", and no unit is named that tells one of several tools."""
        self._tools = {tool.name: tool for tool in tools}
        self._names, self._twice, self._knowledge = ToolNames(names), twice, knowledge
        self._random = random.Random(f"{seed}:functions")
        self._known = self._worth_asking(outcomes)
        self._draws: dict[Level, Iterator[Reckoning]] = {"told": self._told(), "worked-out": self._compared()}
        self._used: Counter[str] = Counter()

    async def tasks(self, wanted: Mapping[Level, int]) -> list[GoalTask]:
        """Return up to so many further proven tasks of the levels "told" and "worked-out"."""
        made: list[GoalTask] = []
        for level, draws in self._draws.items():
            count = wanted.get(level, 0)
            drawn = self._chosen(draws, math.ceil(_MORE * count)) if count > 0 else []
            await self._twice.make([call for one in drawn for call in one.calls])
            holding = [one for one in drawn if all(map(self._shows, one.calls, one.shows))]
            made += tasks_of(holding, self._twice, self._random)[:count]
        return made

    def _shows(self, call: ReadingCall, text: float | str) -> bool:
        return self._twice[call] == text

    def _worth_asking(self, outcomes: Sequence[Outcome]) -> list[list[_Known]]:
        """Return the calls that people would make, by the parts of results that differ from call to call."""
        calls = Counter(outcome.tool for outcome in outcomes)
        found: dict[tuple[str, str], list[_Known]] = defaultdict(list)
        for outcome in outcomes:
            parts = list(parts_asked(outcome))
            unnamed = [part for part in parts if not part.words and not isinstance(part.value, str)]
            for part in parts:
                if self._can_be_said(outcome, part) and (part.words or unnamed == [part]):
                    found[outcome.tool, part.place].append(_Known(outcome, part))
        worth = [known for (tool, _), known in found.items() if _differs(known, _SHOWN * calls[tool])]
        converting = {known[0].outcome.tool for known in worth if conversion(known[0].outcome.arguments) is not None}
        if not self._knowledge and len(converting) > 1:
            worth = [known for known in worth if known[0].outcome.tool not in converting]
        tools: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for known in worth:
            tools[self._meaning(known[0])].add(known[0].outcome.tool)
        return [
            [one for one in known if is_sensible(self._tools[one.outcome.tool], one.outcome.arguments)]
            for known in worth
            if len(tools[self._meaning(known[0])]) == 1
        ]

    def _can_be_said(self, outcome: Outcome, part: AskedPart) -> bool:
        """Return whether a part is a text, or a number that a message would hold."""
        if isinstance(part.value, str):
            return True
        return is_short(part.value, _LONGEST) and (self._knowledge or stands_plainly(outcome.text, part.value))

    def _meaning(self, known: _Known) -> tuple[str, ...]:
        """Return what tells one question from others, whatever the values: what is asked for, and what is given."""
        says_which = not known.part.words or conversion(known.outcome.arguments) is not None
        return (known.outcome.tool if says_which else known.part.words, *sorted(known.outcome.arguments))

    def _chosen(self, draws: Iterator[Reckoning], count: int) -> list[Reckoning]:
        """Take as many questions as are wanted, few about one call or with one answer."""
        found: dict[str, Reckoning] = {}
        used = self._used
        for one in draws if count else ():
            marks = [*(call_key(tool, dict(arguments)) for tool, arguments in one.calls),
                     f"{one.outcome} {answer_text(one.answer)}"]  # fmt: skip
            if one.text not in found and not stands_in(one) and all(used[mark] < _OF_ONE_CALL for mark in marks):
                used.update(marks)
                found[one.text] = one
                if len(found) >= count:
                    break
        return list(found.values())

    def _told(self) -> Iterator[Reckoning]:
        """Yield a question for each part of each call, the parts in turn."""
        for one in self._in_turn([self._random.sample(known, len(known)) for known in self._known]):
            text = self._text(self._forms(one))
            if text is not None:
                answer = ProgramAnswer(one.part.value, _form(one.part.value))
                yield Reckoning(text, _outcome(one), "told", (_call(one),), (one.outcome.text,), answer)

    def _compared(self) -> Iterator[Reckoning]:
        """Yield a question about the numbers in the results of two calls, the parts in turn."""
        pairs: list[list[tuple[_Known, _Known]]] = []
        for known in self._known:
            plain = [
                one
                for one in known
                if not isinstance(one.part.value, str) and is_short(one.part.value, _LONGEST_COMPARED)
            ]
            ones, others = (self._random.sample(plain, len(plain)) for _ in range(2))
            pairs.append([pair for pair in zip(ones, others, strict=True) if _differ(*pair)])
        for one, other in self._in_turn(pairs):
            if (asked := self._difference(one, other) or self._higher(one, other)) is not None:
                text, answer, smaller = asked
                yield Reckoning(
                    text, f"difference {_outcome(one)}", "worked-out", (_call(one), _call(other)),
                    (one.outcome.text, other.outcome.text), answer, smaller,
                )  # fmt: skip

    def _difference(self, one: _Known, other: _Known) -> tuple[str, ProgramAnswer, tuple[str, ...]] | None:
        """Ask for the difference of two numbers that have nouns with their values in them."""
        what, its_other = self._what(one), self._what(other)
        if what is None or its_other is None:
            return None
        text = self._text([f"What is the difference between {what} and {its_other}?",
                           f"By how much do {what} and {its_other} differ?"])  # fmt: skip
        return (text, ProgramAnswer(_gap(one, other), "number"), ()) if text is not None else None

    def _higher(self, one: _Known, other: _Known) -> tuple[str, ProgramAnswer, tuple[str, ...]] | None:
        """Ask which of two cases has the higher number, and by how much."""
        words = self._words(one)
        given, its_given = (said_arguments(each.outcome.arguments) for each in (one, other))
        if not words or given is None or its_given is None or conversion(one.outcome.arguments) is not None:
            return None
        bare, unit = words.removeprefix("the "), f" (in {one.part.unit})" if one.part.unit else ""
        begin, cases = f"Take two cases. In the first, {given}. In the second, {its_given}. In which of them", (
            f"First case: {given}. Second case: {its_given}. Which of the two has")  # fmt: skip
        counts = is_plural(words) and not unit
        be = "are" if is_plural(words) else "is"
        text = self._text([
            f"{begin} are there more {bare}, and how many more?",
            f"{cases} more {bare}, and how many more?",
        ] if counts else [
            f"{begin} {be} {words}{unit} higher, and by how much?",
            f"{cases} the higher {bare}{unit}, and how much higher?",
        ])  # fmt: skip
        if text is None:
            return None
        names = ("first", "second") if float(one.part.value) > float(other.part.value) else ("second", "first")
        return text, ProgramAnswer([names[0], _gap(one, other)], "pair"), names[1:]

    def _in_turn(self, queues: Sequence[Sequence[T]]) -> Iterator[T]:
        for one_round in zip_longest(*self._random.sample(queues, len(queues))):
            yield from (one for one in one_round if one is not None)

    def _text(self, forms: Sequence[str]) -> str | None:
        """Return one of several forms that holds no tool's name, in random order; None if all do."""
        texts = [sentence(form) for form in self._random.sample(forms, len(forms))]
        return next((text for text in texts if not self._names.in_text(text)), None)

    def _words(self, known: _Known) -> str:
        """Return a noun phrase for the part; empty if there is none."""
        words = known.part.words or noun_of(self._tools[known.outcome.tool])
        return f"the {words}" if words else ""

    def _what(self, known: _Known) -> str | None:
        """Return a noun phrase for the part with the call's values, "the factorial of 7"; None if there is none."""
        if known.part.words:
            return None
        if (named := noun_of_operation(known.outcome.arguments)) is not None:
            return named
        return of_its_input(noun_of(self._tools[known.outcome.tool]), known.outcome.arguments)

    def _forms(self, known: _Known) -> list[str]:
        """Return requests for the part of one call."""
        arguments, part = known.outcome.arguments, known.part
        if (converted := conversion(arguments)) is not None:
            if part.words and "convert" not in part.words:
                return []
            amount, unit = converted
            return [f"How much is {amount} in {unit}?", f"What is {amount} in {unit}?",
                    f"I have {amount}. How much is that in {unit}?"]  # fmt: skip
        if (what := self._what(known)) is not None:
            return [f"What is {what}?", f"Tell me {what}.", f"I need {what}.", f"I would like to know {what}."]
        words, given = self._words(known), said_arguments(arguments)
        if not words or given is None:
            return []
        be, unit = "are" if is_plural(words) else "is", f", in {part.unit}" if part.unit else ""
        if be == "are" and not isinstance(part.value, str):
            counted = words.removeprefix("the ")
            return [
                f"How many {counted} are there if {given}?",
                f"{given[:1].upper()}{given[1:]}. How many {counted} are there?",
                f"{given[:1].upper()}{given[1:]}. Tell me the number of {counted}.",
            ]
        return [
            f"What {be} {words}{unit} if {given}?" if not unit else f"If {given}, what {be} {words}{unit}?",
            f"{given[:1].upper()}{given[1:]}. What {be} {words}{unit}?",
            f"{given[:1].upper()}{given[1:]}. Tell me {words}{unit}.",
            f"Tell me {words}{unit}, if {given}.",
        ]


def _gap(one: _Known, other: _Known) -> float:
    return tidy(abs(float(one.part.value) - float(other.part.value)))


def _form(value: str | float) -> AnswerForm:
    if not isinstance(value, str):
        return "number"
    return "time" if moment(value) is not None else "text"


def _call(known: _Known) -> ReadingCall:
    return known.outcome.tool, known.outcome.arguments


def _outcome(known: _Known) -> str:
    return f"{known.outcome.tool} {known.part.place}".strip()


def _differs(known: Sequence[_Known], fewest: float) -> bool:
    """Return whether a part of a tool's results is shown often enough, and is another one nearly each time."""
    values = Counter(str(one.part.value) for one in known)
    return (
        len(known) >= max(_FEWEST, fewest)
        and len(values) >= _DISTINCT * len(known)
        and values.most_common(1)[0][1] <= _COMMONEST * len(known)
    )


def _differ(one: _Known, other: _Known) -> bool:
    """Return whether two calls are given the same things, of other values, and give other results."""
    arguments = one.outcome.arguments, other.outcome.arguments
    return arguments[0].keys() == arguments[1].keys() and one.part.value != other.part.value
