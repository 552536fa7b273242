"""Two-step tasks from calls that were executed.

Three kinds, best first:
- *value*: the answer of one call is an argument of the next ("add 3 and 4, then multiply the result by 5");
- *lookup*: an argument of the second call was read in the result of the first (list a folder, read a file in it);
- *both*: two calls that have nothing to do with each other, where a server offers nothing better.
"""

import posixpath
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcp_rl.scenarios.answer import Answer, call_key
from mcp_rl.scenarios.pool import Pool
from mcp_rl.scenarios.sample import Sampler
from mcp_rl.scenarios.wording import REFERENCES, Spoken

_DIGITS = 12
"""Characters of a number that a person would still pass on by hand."""
_FIRST_USES = 3
"""How many lookups may start from one call: more would tie most of the scenarios together when they are split."""


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


@dataclass(frozen=True)
class Link:
    """The second call of a value chain: its real arguments, and the same with the value spoken of."""

    first: Outcome
    tool: str
    arguments: dict[str, Any]
    spoken: dict[str, Any]


class Chains:
    """Proposes second calls that take the answer of a first one."""

    def __init__(self, samplers: Mapping[str, Sampler], schemas: Mapping[str, dict[str, Any]], pool: Pool) -> None:
        self._samplers = samplers
        self._numeric = [(t, p) for t, s in schemas.items() for p in _parameters(s, ("number", "integer"))]
        self._textual = [
            (tool, parameter)
            for tool, schema in schemas.items()
            for parameter in _parameters(schema, ("string",))
            if max(pool.success_rate(f"{tool}.{parameter}", source) for source in ("word", "sentence")) >= 0.6
        ]

    def value_links(self, firsts: Sequence[Outcome], random: random.Random) -> Iterator[Link]:
        """One proposal for each first call that has a small number or a short text as its answer."""
        for first in firsts:
            value = first.answer.value
            if isinstance(value, str):
                slots = self._textual
            elif value is not None and readable(value):
                slots = self._numeric
            else:
                continue
            if slots and (link := self._link(first, value, *random.choice(slots), random)):
                yield link

    def _link(self, first: Outcome, value: Any, tool: str, parameter: str, random: random.Random) -> Link | None:
        draw = self._samplers[tool].draw(random)
        if draw is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        arguments = {**draw.arguments, parameter: value}
        if not self._samplers[tool].valid(arguments):
            return None
        return Link(first, tool, arguments, {**arguments, parameter: Spoken(random.choice(REFERENCES))})


def readable(value: Any) -> bool:
    """Whether a chain may run over this answer: a text, or a number of few digits."""
    return isinstance(value, str) or (value is not None and len(repr(value)) <= _DIGITS)


def lookups(outcomes: Sequence[Outcome], random: random.Random) -> Iterator[tuple[Outcome, Outcome]]:
    """Pairs where a text argument of the second call stands in the result of the first, tools in turn."""
    by_tools: dict[tuple[str, str], list[tuple[Outcome, Outcome]]] = defaultdict(list)
    for second in outcomes:
        texts = [value for value in second.arguments.values() if isinstance(value, str)]
        for first in outcomes if texts else ():
            if first is not second and _found_in(texts, first):
                by_tools[first.tool, second.tool].append((first, second))
    yield from _in_turn(by_tools, random)


def both(outcomes: Sequence[Outcome], random: random.Random) -> Iterator[tuple[Outcome, Outcome]]:
    """Pairs of unrelated calls, each call used once."""
    order = random.sample(outcomes, len(outcomes))
    yield from zip(order[::2], order[1::2], strict=False)


def _in_turn(
    by_tools: dict[tuple[str, str], list[tuple[Outcome, Outcome]]], random: random.Random
) -> Iterator[tuple[Outcome, Outcome]]:
    queues = [random.sample(pairs, len(pairs)) for pairs in by_tools.values()]
    used: dict[str, int] = defaultdict(int)
    while queues:
        for queue in queues:
            first, second = queue.pop()
            if used[first.key] < _FIRST_USES:
                used[first.key] += 1
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
