"""The kinds of which every thing was seen, so that a question may ask how many there are, or which is the largest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.parameters import parameters_of
from mcp_rl.explore.entities.things import thing_asked_about

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.survey import Survey
    from mcp_rl.explore.entities.things import Things
    from mcp_rl.explore.entities.world_model import Entity

_ROUND_NUMBERS = (10, 20, 25, 30, 50, 100, 200, 250, 500, 1000)
"""Lengths at which listings are often cut."""
_MORE = re.compile(
    r"(?i)\"(?:has_?more|has_?next(?:_?page)?|(?:is_?)?truncated|incomplete(?:_?results)?)\"\s?:\s?true|"
    r"\"(?:is_?)?last(?:_?page)?\"\s?:\s?false|\"next_?(?:cursor|page|token|page_?token|link|url)\"\s?:\s?(?:\"[^\"]|[1-9])|"
    r"\"next\"\s?:\s?\"(?:https?:|[/?])|\"(?:total_?pages|last_?page)\"\s?:\s?(?!1\b)[1-9]|"
    r"(?:\band|[\u2026+(\[]|\.\.\.) ?\d+ (?:more|others)\b|\bpage \d+ ?(?:of|/) ?(?!1\b)\d+"
)
_TOTAL = re.compile(
    r"(?i)(?:^\s*\{\s*\"count\"|\"(?:total(?:_?(?:count|results|items|hits|records|matches|found|entries))?|num_?found)\")"
    r"\s?:\s?(\d{1,9})|\bshowing [^\n]{0,20}\d (?:out )?of (?:about )?(\d{1,9})\b"
)


class Completeness:
    """Finds the calls that show every thing of a kind."""

    def __init__(self, things: Things, answers: Sequence[Answered], survey: Survey) -> None:
        """`answers` are those that the things were read from."""
        self._things, self._answers, self._survey = things, answers, survey

    def of_listed(self, entities: Sequence[Entity]) -> dict[str, list[int]]:
        """Return the kinds of which a listing shows every thing, with the calls that do."""
        keys: dict[str, set[Any]] = {}
        for entity in entities:
            keys.setdefault(entity.kind, set()).add(entity.key)
        found: dict[str, list[int]] = {}
        for listing in self._things.listings:
            draft = self._things.drafts[listing.noun]
            wanted = keys.get(listing.noun)
            if wanted is None or listing.cut or draft.left_out or draft.ambiguous or not wanted <= listing.keys:
                continue
            if self._filters(self._answers[listing.call]):
                continue
            if not self._may_be_cut(listing.call, len(listing.keys)):
                found.setdefault(listing.noun, []).append(listing.call)
        return found

    def of_rows(self, entities: Sequence[Entity], complete: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Return the nouns of rows of which every one was read, with the calls that read them and that find none."""
        found: dict[str, list[int]] = {}
        for noun, draft in self._things.drafts.items():
            if draft.within not in complete or draft.left_out:
                continue
            rows = sum(one.kind == noun for one in entities)
            homes = {one.key for one in entities if one.kind == draft.within}
            asked = [(thing_asked_about(answer, self._survey.subjects), at) for at, answer in enumerate(self._answers)]
            if rows == len(draft.things) and homes <= {key for key, _ in asked}:
                found[noun] = [at for key, at in asked if key in homes]
        return found

    def _filters(self, answer: Answered) -> bool:
        """Return whether a call asks for some things only: then it is chance that it shows all."""
        parameters = {one.name: one for one in parameters_of(self._survey.reader.tools[answer.tool])}
        given = [slot.parameter for slot in self._survey.accepted if slot.tool == answer.tool]
        return any(
            name in answer.arguments and not (parameters[name].is_place or parameters[name].is_address)
            for name in given
        )

    def _may_be_cut(self, call: int, length: int) -> bool:
        """Return whether a listing may have more pages: it says so, or it is as long as its limit."""
        answer = self._answers[call]
        if says_more(answer.text, length):
            return True
        parameters = parameters_of(self._survey.reader.tools[answer.tool])
        limits = [one for one in parameters if one.limits]
        given = [answer.arguments[one.name] for one in limits if one.name in answer.arguments]
        if given:
            return any(length >= limit for limit in given if isinstance(limit, int))
        if not limits:
            return length in _ROUND_NUMBERS and any(one.type == "integer" for one in parameters)
        longer = [
            listing
            for listing in self._things.listings
            if self._answers[listing.call].tool == answer.tool
            and any(one.name in self._answers[listing.call].arguments for one in limits)
        ]
        return length in _ROUND_NUMBERS and not any(len(listing.keys) == length for listing in longer)


def says_more(text: str, length: int) -> bool:
    """Return whether a result says that it shows only some of its things; `length` is the number of those it shows."""
    totals = [int(found[1] or found[2]) for found in _TOTAL.finditer(text)]
    return _MORE.search(text) is not None or any(total > length for total in totals)
