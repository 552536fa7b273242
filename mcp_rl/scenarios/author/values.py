"""Values that a new wording must keep, and content that no request may hold."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

from mcp_rl.explore.answer import holds_secret
from mcp_rl.rewards.json_values import leaves
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.scenario import McpScenario, ToolCall

MOST_CHARACTERS = 1200
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w)")
_MARKUP = re.compile(r"<\||\|>|</?(?:tool_call|tool_response|tools|think|result)\b", re.IGNORECASE)
"""Markup that means something in chat templates or in the author's fences."""


def unfit(request: str) -> str | None:
    """Return why a request that a model wrote cannot be used, whatever it asks for, or None."""
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
    """Return which value a new wording has lost or added, or None where it keeps all of them.

    Values are the leaves of the reference's arguments. A text that the old request quotes must stay letter for letter;
    numbers must stay, each as often as it is an argument, and no number may be added.
    """
    original = scenario.task_description
    texts, numbers = _texts_and_numbers(scenario.reference)
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
    """Return whether a wording holds the expected answer while the solution's own values do not."""
    expected = (
        scenario.verifier.expected if scenario.verifier and scenario.verifier.kind in ("number", "text") else None
    )
    texts, numbers = _texts_and_numbers(scenario.reference)
    if isinstance(expected, str):
        given = any(expected.casefold() in text.casefold() for text in texts)
        return (
            not given and re.search(rf"(?<!\w){re.escape(expected.casefold())}(?!\w)", request.casefold()) is not None
        )
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return expected not in numbers and expected in _numbers(request)
    return False


def _numbers(text: str) -> Counter[float]:
    return Counter(float(number) for number in _NUMBER.findall(text))


def _texts_and_numbers(calls: Sequence[ToolCall]) -> tuple[list[str], Counter[float]]:
    """Return the texts and the counted numbers in the arguments of calls."""
    found = [leaf for call in calls for leaf in leaves(dict(call.arguments)) if not isinstance(leaf, bool)]
    numbers = Counter(leaf for leaf in found if isinstance(leaf, int | float))
    return [leaf for leaf in found if isinstance(leaf, str) and leaf], numbers
