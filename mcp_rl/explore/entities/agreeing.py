"""The tools that are believed about a field of a kind.

A tool whose values differ in another episode is not believed. Where two tools differ, the one with more to be said for
it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.things import Told
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.things import Draft, Things

_READING_CHANGES = re.compile(r"\b(?:accessed|atime|last (?:access|seen|used|opened|viewed)|views|hits)\b")
"""Fields that reading a thing may change."""


class AgreeingTools:
    """Compares what tools told of the same things in two episodes."""

    def __init__(self, once: Things, twice: Things, answers: Sequence[Answered]) -> None:
        """`answers` are those that `once` was read from."""
        self._once, self._twice, self._answers = once, twice, answers

    def tools(self, draft: Draft, name: str) -> list[str]:
        """Return the tools whose values of a field agree, with each other and with those of the second time."""
        if _READING_CHANGES.search(words_of(name)):
            return []
        other = self._twice.drafts.get(draft.noun)
        tools = dict.fromkeys(tool for told in draft.things.values() if name in told for tool in told[name].by_tool)
        steady = []
        for tool in tools:
            before = _told_by(draft, name, tool)
            after = _told_by(other, name, tool) if other is not None else {}
            if all(after.get(key) == value for key, value in before.items()) and not _depends(draft, name, tool):
                steady.append(tool)
        ranked = sorted(steady, key=lambda tool: self._rank(tool, draft, name), reverse=True)
        agreed: list[str] = []
        for tool in ranked:
            best = _told_by(draft, name, agreed[0]) if agreed else {}
            ours = _told_by(draft, name, tool)
            if all(best[key] == value for key, value in ours.items() if key in best):
                agreed.append(tool)
        return agreed

    def _rank(self, tool: str, draft: Draft, name: str) -> tuple[bool, bool, bool, int]:
        """Return how much is to be said for a tool's values: whole, numbers, in a listing, of many things."""
        values = _told_by(draft, name, tool)
        lists = any(self._answers[listing.call].tool == tool for listing in self._once.listings)
        cut = any(isinstance(value, str) and value.rstrip().endswith(("…", "...")) for value in values.values())
        numbers = all(isinstance(value, int | float) for value in values.values())
        return not cut, numbers, lists, len(values)


def _depends(draft: Draft, name: str, tool: str) -> bool:
    """Return whether a tool tells several numbers of one thing: then they are of the call, as the score of a hit is."""
    return any(
        name in told and sum(_is_number(value) for value in told[name].by_tool.get(tool, ())) > 1
        for key, told in draft.things.items()
        if key not in draft.ambiguous
    )


def _is_number(value: str) -> bool:
    """Return whether a JSON text is a number."""
    return value[:1] in "-0123456789"


def _told_by(draft: Draft, name: str, tool: str) -> dict[Any, Any]:
    """Return the values of a field that one tool told, by the keys of the things; without contradictions."""
    found = {}
    for key, told in draft.things.items():
        value = told.get(name, Told()).value([tool])
        if value is not None:
            found[key] = value[0]
    return found
