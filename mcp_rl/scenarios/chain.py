"""Tasks of several steps from executed calls.

Three kinds, best first:
- *value*: the answer of one call, or a part of its result, is an argument of the next ("add 3 and 4, then multiply the
  result by 5"; "list the notes, then read the note whose id is the id of the first of the notes in that result");
- *lookup*: the result of the first call holds an argument of the second (list a folder, read a file in it);
- *together*: unrelated calls, where a server allows nothing better.
"""

from __future__ import annotations

import posixpath
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.parts import fits
from mcp_rl.rewards.dates import is_dated
from mcp_rl.scenarios.wording import REFERENCES, Spoken

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.explore.outcome import Outcome
    from mcp_rl.explore.sample import Sampler
    from mcp_rl.explore.values_seen import ValuePool

_DIGITS = 12
"""Most characters of a number that a person would pass on by hand."""
_USES = 3
"""Limit on the lookups that start from one call, or end with one: more would tie most scenarios together in a
split."""
_COMMON = 0.2
"""Share of all results above which a text in them is taken to be there by chance, so that no lookup needs it."""
_SHORTEST_NAME = 4
"""Characters of a text below which a result holds it by chance."""


@dataclass(frozen=True)
class Chain:
    """Calls in order, with the arguments of each as a request words them."""

    outcomes: tuple[Outcome, ...]
    spoken: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, *outcomes: Outcome) -> Chain:
        """Return a chain whose request states all arguments literally."""
        return cls(outcomes, tuple(outcome.arguments for outcome in outcomes))

    def then(self, outcome: Outcome, spoken: Mapping[str, Any]) -> Chain:
        return Chain((*self.outcomes, outcome), (*self.spoken, spoken))

    def __len__(self) -> int:
        return len(self.outcomes)


@dataclass(frozen=True)
class NextCall:
    """The next call of a chain: its real arguments, and the same with the passed-on value in words."""

    before: Chain
    tool: str
    arguments: dict[str, Any]
    spoken: dict[str, Any]


class Chains:
    """Proposes next calls that take the answer of the last call, or a part of its result."""

    def __init__(self, samplers: Mapping[str, Sampler], schemas: Mapping[str, dict[str, Any]], pool: ValuePool) -> None:
        self._samplers = samplers
        self._numeric = [(t, p) for t, s in schemas.items() for p in _parameters(s, ("number", "integer"))]
        strings = [(t, p) for t, s in schemas.items() for p in _parameters(s, ("string",))]
        self._any = [*self._numeric, *strings]
        self._textual = [
            (tool, parameter)
            for tool, parameter in strings
            if max(pool.success_rate(f"{tool}.{parameter}", source) for source in ("word", "sentence")) >= 0.6
        ]

    def links(self, chains: Sequence[Chain], random: random.Random) -> Iterator[NextCall]:
        """Yield at most one proposal for each chain whose last result holds a value that a next call can take."""
        for chain in chains:
            last = chain.outcomes[-1]
            if link := self._by_part(chain, last, random) or self._by_answer(chain, last, random):
                yield link

    def _by_answer(self, chain: Chain, last: Outcome, random: random.Random) -> NextCall | None:
        value = last.answer.value
        if isinstance(value, str):
            # A tool that takes any text returns it in some form; doing so twice makes no task.
            tools = {outcome.tool for outcome in chain.outcomes}
            slots = [slot for slot in self._textual if len(chain) == 1 or slot[0] not in tools]
        elif value is not None and readable(value):
            slots = self._numeric
        else:
            return None
        if not slots:
            return None
        return self._link(chain, value, Spoken(random.choice(REFERENCES)), *random.choice(slots), random)

    def _by_part(self, chain: Chain, last: Outcome, random: random.Random) -> NextCall | None:
        if is_dated(last.text):
            return None
        known = {str(value) for value in last.arguments.values()}
        taken = [
            (part, tool, parameter)
            for part in last.parts
            if len(part.path) > 1 or len(last.parts) > 1
            for tool, parameter in self._any
            if fits(part, parameter) and str(part.value) not in known
        ]
        if not taken:
            return None
        part, tool, parameter = random.choice(taken)
        return self._link(chain, part.value, Spoken(f"{part.phrase} in that result"), tool, parameter, random)

    def _link(
        self, chain: Chain, value: Any, spoken: Spoken, tool: str, parameter: str, random: random.Random
    ) -> NextCall | None:
        draw = self._samplers[tool].draw(random)
        if draw is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        arguments = {**draw.arguments, parameter: value}
        if not self._samplers[tool].valid(arguments):
            return None
        return NextCall(chain, tool, arguments, {**arguments, parameter: spoken})


def readable(value: Any) -> bool:
    """Return whether a chain may pass on this answer: a text, or a number of few digits."""
    return isinstance(value, str) or (value is not None and len(repr(value)) <= _DIGITS)


def lookups(outcomes: Sequence[Outcome], random: random.Random) -> Iterator[Chain]:
    """Yield pairs in which a text argument of the second call occurs in the result of the first, tools in turn."""
    by_tools: dict[tuple[str, str], list[tuple[Outcome, Outcome]]] = defaultdict(list)
    given = [set(map(str, one.arguments.values())) for one in outcomes]
    for second in outcomes:
        names = _names_in(second)
        found = [
            first
            for first, known in zip(outcomes, given, strict=True)
            if first is not second and any(name in first.text and text not in known for text, name in names)
        ]
        if len(found) <= max(_USES, _COMMON * len(outcomes)):
            for first in found:
                by_tools[first.tool, second.tool].append((first, second))
    for first, second in _in_turn(by_tools, random):
        yield Chain.of(first, second)


def together(blocks: Sequence[Sequence[Outcome]], steps: int, random: random.Random) -> Iterator[Chain]:
    """Yield chains of `steps` unrelated calls, each from a single block, so that few chains share calls."""
    queues = [list(combinations(block, steps)) for block in blocks]
    for queue in queues:
        random.shuffle(queue)
    for round_of_blocks in zip_longest(*queues):
        for calls in round_of_blocks:
            if calls is not None:
                yield Chain.of(*random.sample(calls, steps))


def _in_turn(
    by_tools: dict[tuple[str, str], list[tuple[Outcome, Outcome]]], random: random.Random
) -> Iterator[tuple[Outcome, Outcome]]:
    queues = [random.sample(pairs, len(pairs)) for pairs in by_tools.values()]
    firsts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    while queues:
        for queue in queues:
            first, second = queue.pop()
            if firsts[first.key] < _USES and seconds[second.key] < _USES:
                firsts[first.key] += 1
                seconds[second.key] += 1
                yield first, second
        queues = [queue for queue in queues if queue]


def _names_in(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the text arguments of a call, each with what of it a result would show: of a path, the last part."""
    texts = [value for value in outcome.arguments.values() if isinstance(value, str)]
    named = [(text, posixpath.basename(text) if text.startswith("/") else text) for text in texts]
    return [(text, name) for text, name in named if len(name) >= _SHORTEST_NAME]


def _parameters(schema: dict[str, Any], kinds: tuple[str, ...]) -> list[str]:
    """Return the top-level parameters that take any value of these types."""
    closed = {"enum", "const", "pattern", "format", "$ref"}
    return [
        name
        for name, inner in (schema.get("properties") or {}).items()
        if isinstance(inner, dict) and inner.get("type") in kinds and not closed & inner.keys()
    ]
