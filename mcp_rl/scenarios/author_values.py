"""What must not change when a request gets another wording, and what no request may hold."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mcp_rl.boundary import without_secrets
from mcp_rl.scenario import McpScenario, ToolCall
from mcp_rl.scenarios.answer import holds_secret

MOST_CHARACTERS = 1200
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w)")
_MARKUP = re.compile(r"<\||\|>|</?(?:tool_call|tool_response|tools|think|result)\b", re.IGNORECASE)
"""What chat templates, or our own fences, give a meaning to."""


def unfit(request: str) -> str | None:
    """Why a request that a model wrote cannot be used, whatever it asks for; None where it can."""
    if not request.strip():
        return "it is empty"
    if len(request) > MOST_CHARACTERS:
        return f"it is too long: {len(request)} characters; {MOST_CHARACTERS} are allowed"
    if any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") and c not in "\n\t\u200d" for c in request):
        return "it holds control characters"
    if _MARKUP.search(request):
        return "it holds markup of a chat template"
    if holds_secret(request) or without_secrets(request) != request:
        return "it holds what looks like a password or key"
    return None


def values_lost(request: str, scenario: McpScenario) -> str | None:
    """Which value of the scenario's own request a new wording has lost or added; None where all are as they were.

    Values are the leaves of the reference's arguments. A text that was quoted must stand there letter for letter, and
    numbers must be the same ones, each as often as it is an argument.
    """
    original = scenario.task_description
    texts, numbers = _leaves(scenario.reference)
    for text in texts:
        if text in original and text not in request:
            return f"it has lost a value: {text[:60]!r}"
    before, after = _numbers(original), _numbers(request)
    for number, needed in numbers.items():
        if after[number] < min(needed, before[number]):
            return f"it has lost a value: the number {number:.12g}"
    added = [number for number in after if number not in before]
    return f"it has a value that the request did not have: the number {added[0]:.12g}" if added else None


def tells_answer(request: str, scenario: McpScenario) -> bool:
    """Whether a wording holds the expected answer, and the values that the solution is made of do not."""
    expected = (
        scenario.verifier.expected if scenario.verifier and scenario.verifier.kind in ("number", "text") else None
    )
    texts, numbers = _leaves(scenario.reference)
    if isinstance(expected, str):
        given = any(expected.casefold() in text.casefold() for text in texts)
        return (
            not given and re.search(rf"(?<!\w){re.escape(expected.casefold())}(?!\w)", request.casefold()) is not None
        )
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return float(expected) not in numbers and float(expected) in _numbers(request)
    return False


def _numbers(text: str) -> Counter[float]:
    return Counter(float(number) for number in _NUMBER.findall(text))


def _leaves(calls: Sequence[ToolCall]) -> tuple[list[str], Counter[float]]:
    """Texts and numbers in the arguments of calls."""
    texts: list[str] = []
    numbers: Counter[float] = Counter()

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                visit(inner)
        elif isinstance(value, list):
            for inner in value:
                visit(inner)
        elif isinstance(value, str):
            if value:
                texts.append(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[float(value)] += 1

    for call in calls:
        visit(dict(call.arguments))
    return texts, numbers
