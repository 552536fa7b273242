"""Tasks of several steps from calls that were executed.

Three kinds, best first:
- *value*: the answer of one call, or a part of its result, is an argument of the next ("add 3 and 4, then multiply the
  result by 5"; "list the notes, then read the note whose id is the id of the first of the notes in that result");
- *lookup*: an argument of the second call was read in the result of the first (list a folder, read a file in it);
- *together*: calls that have nothing to do with each other, where a server offers nothing better.
"""

import posixpath
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, zip_longest
from typing import Any

from mcp_rl.scenarios.answer import Answer, call_key, is_dated
from mcp_rl.scenarios.parts import Part, fits, parts_of
from mcp_rl.scenarios.pool import Pool
from mcp_rl.scenarios.sample import Sampler
from mcp_rl.scenarios.wording import REFERENCES, Spoken

_DIGITS = 12
"""Characters of a number that a person would still pass on by hand."""
_USES = 3
"""How many lookups may start from one call, or end with one: more would tie most scenarios together when they are
split."""
_COMMON = 0.2
"""Share of all results, beyond which a text stands in them by chance: no lookup is needed to know it."""


@dataclass(frozen=True)
class Outcome:
    """A call that succeeded, and what it gave."""

    tool: str
    arguments: dict[str, Any]
    text: str
    answer: Answer

    @cached_property
    def key(self) -> str:
        return call_key(self.tool, self.arguments)

    @cached_property
    def parts(self) -> list[Part]:
        return parts_of(self.text)


@dataclass(frozen=True)
class Chain:
    """Calls in the order in which they are to be made, and the arguments of each as a request speaks of them."""

    outcomes: tuple[Outcome, ...]
    spoken: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, *outcomes: Outcome) -> "Chain":
        """Calls whose arguments are all told as they are."""
        return cls(outcomes, tuple(outcome.arguments for outcome in outcomes))

    def then(self, outcome: Outcome, spoken: Mapping[str, Any]) -> "Chain":
        return Chain((*self.outcomes, outcome), (*self.spoken, spoken))

    def __len__(self) -> int:
        return len(self.outcomes)


@dataclass(frozen=True)
class Link:
    """The next call of a chain: its real arguments, and the same with the value spoken of."""

    before: Chain
    tool: str
    arguments: dict[str, Any]
    spoken: dict[str, Any]


class Chains:
    """Proposes next calls that take the answer of the last one, or a part of its result."""

    def __init__(self, samplers: Mapping[str, Sampler], schemas: Mapping[str, dict[str, Any]], pool: Pool) -> None:
        self._samplers = samplers
        self._numeric = [(t, p) for t, s in schemas.items() for p in _parameters(s, ("number", "integer"))]
        strings = [(t, p) for t, s in schemas.items() for p in _parameters(s, ("string",))]
        self._any = [*self._numeric, *strings]
        self._textual = [
            (tool, parameter)
            for tool, parameter in strings
            if max(pool.success_rate(f"{tool}.{parameter}", source) for source in ("word", "sentence")) >= 0.6
        ]

    def links(self, chains: Sequence[Chain], random: random.Random) -> Iterator[Link]:
        """One proposal at most for each chain whose last result holds something that a next call can take."""
        for chain in chains:
            last = chain.outcomes[-1]
            if link := self._by_part(chain, last, random) or self._by_answer(chain, last, random):
                yield link

    def _by_answer(self, chain: Chain, last: Outcome, random: random.Random) -> Link | None:
        value = last.answer.value
        if isinstance(value, str):
            # A tool that takes any text gives it back in some form; to do so twice is no task.
            tools = {outcome.tool for outcome in chain.outcomes}
            slots = [slot for slot in self._textual if len(chain) == 1 or slot[0] not in tools]
        elif value is not None and readable(value):
            slots = self._numeric
        else:
            return None
        if not slots:
            return None
        return self._link(chain, value, Spoken(random.choice(REFERENCES)), *random.choice(slots), random)

    def _by_part(self, chain: Chain, last: Outcome, random: random.Random) -> Link | None:
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
    ) -> Link | None:
        draw = self._samplers[tool].draw(random)
        if draw is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        arguments = {**draw.arguments, parameter: value}
        if not self._samplers[tool].valid(arguments):
            return None
        return Link(chain, tool, arguments, {**arguments, parameter: spoken})


def readable(value: Any) -> bool:
    """Whether a chain may run over this answer: a text, or a number of few digits."""
    return isinstance(value, str) or (value is not None and len(repr(value)) <= _DIGITS)


def lookups(outcomes: Sequence[Outcome], random: random.Random) -> Iterator[Chain]:
    """Pairs where a text argument of the second call stands in the result of the first, tools in turn."""
    by_tools: dict[tuple[str, str], list[tuple[Outcome, Outcome]]] = defaultdict(list)
    for second in outcomes:
        texts = [value for value in second.arguments.values() if isinstance(value, str)]
        found = [first for first in outcomes if first is not second and _found_in(texts, first)] if texts else []
        if len(found) <= max(_USES, _COMMON * len(outcomes)):
            for first in found:
                by_tools[first.tool, second.tool].append((first, second))
    for first, second in _in_turn(by_tools, random):
        yield Chain.of(first, second)


def together(blocks: Sequence[Sequence[Outcome]], steps: int, random: random.Random) -> Iterator[Chain]:
    """Unrelated calls, `steps` at a time. All of a chain come from one block, so what shares a call stays small."""
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


def _found_in(texts: Sequence[str], first: Outcome) -> bool:
    """Whether one of the texts, for a path its last part, can be read in the first's result and was not given to it."""
    known = set(map(str, first.arguments.values()))
    for text in texts:
        name = posixpath.basename(text) if text.startswith("/") else text
        if len(name) >= 4 and name in first.text and text not in known:
            return True
    return False


def _parameters(schema: dict[str, Any], kinds: tuple[str, ...]) -> list[str]:
    """Top-level parameters that take any value of these types."""
    closed = {"enum", "const", "pattern", "format", "$ref"}
    return [
        name
        for name, inner in (schema.get("properties") or {}).items()
        if isinstance(inner, dict) and inner.get("type") in kinds and not closed & inner.keys()
    ]
