"""Told tasks for tools that reckon: the numbers are in the request, which says in ordinary words what is wanted.

A tool is understood by trying: only where its results are those of an operation are that operation's words used.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.explore.answer import read_answer
from mcp_rl.scenario import GoalProof, ToolCall, Verifier
from mcp_rl.scenarios.goals.requests import ToolNames
from mcp_rl.scenarios.goals.task import REFUSAL, GoalTask, accepted, results_hash
from mcp_rl.scenarios.goals.values import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_rl.scenarios.goals.twice import ReadingCall, Twice
    from mcp_rl.toolserver.tools.listing import Tool

_TOLERANCE = 1e-9
_DRAWS = 4
"""Draws for one task that is wanted."""


@dataclass(frozen=True)
class _Operation:
    """An operation on two numbers, with hints at tools that do it and forms of its requests."""

    hints: str
    result: Callable[[int, int], float]
    forms: tuple[str, ...]


_OPERATIONS = (
    _Operation(
        r"\badd|\bsum|plus",
        lambda a, b: a + b,
        ("What do {a} and {b} come to together?", "I have {a} stamps and get {b} more. How many do I have then?",
         "One shelf holds {a} books and another one {b}. How many books are that in all?"),
    ),
    _Operation(
        r"subtract|minus|difference",
        lambda a, b: a - b,
        ("How much is left of {a} after {b} are taken away?",
         "Of {a} tickets, {b} are sold. How many are left?"),
    ),
    _Operation(
        r"multipl|product|times",
        lambda a, b: a * b,
        ("Each of {b} rows has {a} seats. How many seats is that?",
         "A box holds {a} pears. How many do {b} boxes hold?"),
    ),
    _Operation(
        r"divi|quotient",
        lambda a, b: a / b,
        ("A rope of {a} metres is cut into {b} equal parts. How long is each, in metres?",
         "{b} people pay {a} euros in equal parts. How much does each of them pay?"),
    ),
    _Operation(
        r"modul|remainder|\bmod\b",
        lambda a, b: a % b,
        ("{a} eggs are packed {b} to a box. How many do not fill a box?",),
    ),
)  # fmt: skip


class Reckoned:
    """Draws told tasks for the reading tools of a server that take two numbers and do an operation with known words."""

    def __init__(self, tools: Sequence[Tool], names: Sequence[str], twice: Twice, seed: int) -> None:
        self._twice, self._names = twice, ToolNames(names)
        self._random = random.Random(f"{seed}:reckoned")
        self._found = [(tool, pair, one) for tool in tools if (pair := _two_numbers(tool)) for one in _fitting(tool)]

    async def tasks(self, count: int) -> list[GoalTask]:
        """Return up to so many proven tasks of the level "told"."""
        drawn: dict[str, tuple[ReadingCall, float]] = {}
        for attempt in range(_DRAWS * count if self._found else 0):
            tool, (first, second), operation = self._found[attempt % len(self._found)]
            a, b = self._random.randint(12, 980), self._random.randint(3, 60)
            if "equal parts" in operation.forms[0]:
                a = b * self._random.randint(3, 40)  # nobody says all digits of a fraction
            text = self._random.choice(operation.forms).format(a=a, b=b)
            if not self._names.in_text(text):
                drawn.setdefault(text, ((tool.name, {first: a, second: b}), operation.result(a, b)))
        await self._twice.make([call for call, _ in drawn.values()])
        made = [task for text, (call, wanted) in drawn.items() if (task := self._task(text, call, wanted)) is not None]
        return made[:count]

    def _task(self, text: str, call: ReadingCall, wanted: float) -> GoalTask | None:
        result = self._twice[call]
        answer = read_answer(result, dict(call[1])) if result is not None else None
        if result is None or answer is None or not isinstance(answer.value, int | float):
            return None
        if not math.isclose(answer.value, wanted, rel_tol=_TOLERANCE) or wanted in (0, 1):
            return None
        said = shown(answer.value)
        if re.search(rf"(?<![\d.]){re.escape(said)}(?![\d.])", text):
            return None
        calls = (ToolCall(tool=call[0], arguments=dict(call[1])),)
        verifier = Verifier(kind="number", expected=answer.value)
        wrong = [("", calls), (REFUSAL, calls), (said, ()), ("0", calls), ("1", calls), ("yes", calls)]
        if not accepted(verifier, f"The answer is {said}.", calls) or any(accepted(verifier, *one) for one in wrong):
            return None
        apart = (f"numbers {sorted(map(str, call[1].values()))}",)
        proof = GoalProof(
            program=f"{call[0]} {dict(call[1])!r}", executed=2, results=results_hash([result]), refused=len(wrong),
            apart=apart,
        )  # fmt: skip
        return GoalTask(text, "told", calls, said, verifier, proof, ("told", "reckoned"))


def _two_numbers(tool: Tool) -> tuple[str, str] | None:
    """Return the names of a tool's two required numbers; None for a tool that takes anything else."""
    properties, required = tool.input_schema.get("properties") or {}, tool.input_schema.get("required") or []
    numeric = [
        name
        for name, inner in properties.items()
        if isinstance(inner, dict) and inner.get("type") in ("number", "integer")
    ]
    return (numeric[0], numeric[1]) if len(numeric) == 2 and sorted(numeric) == sorted(required) else None


def _fitting(tool: Tool) -> list[_Operation]:
    about = f"{tool.name} {tool.title or ''} {tool.description}".lower().replace("_", " ").replace("-", " ")
    return [one for one in _OPERATIONS if re.search(one.hints, about)]
