"""Sentences for the user about what a world model lacks, and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.answer import holds_no_text
from mcp_rl.explore.entities.forms.reading import text_inside
from mcp_rl.explore.entities.nouns import plural
from mcp_rl.explore.entities.parameters import parameters_of
from mcp_rl.explore.entities.things import MOST_ENTITIES
from mcp_rl.explore.tried import SAY_START
from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.survey import Survey
    from mcp_rl.explore.entities.things import Things
    from mcp_rl.explore.entities.world_model import WorldModel


def remarks_on(
    model: WorldModel, things: Things, answers: Sequence[Answered], survey: Survey, spent: float
) -> Iterator[str]:
    """Yield a sentence for each thing that a model lacks, with what would help.

    `things` are all that the survey's `answers` showed; `spent` is the survey's time in seconds, if it ran out, else 0.
    """
    if not model.entities:
        yield _why_empty(model.server, answers, survey)
    for noun, draft in things.drafts.items():
        known = model.kinds.get(noun)
        cut = any(listing.noun == noun and listing.cut for listing in things.listings)
        if draft.left_out or (cut and not (known is not None and known.complete)):
            yield (
                f"Of the {plural(noun)} of {model.server}, {min(len(draft.things), MOST_ENTITIES)} are in the model, "
                "and the server has more."
            )
        if draft.ambiguous:
            one = len(draft.ambiguous) == 1
            yield (
                f"{len(draft.ambiguous)} {noun if one else plural(noun)} of {model.server} {'is' if one else 'are'} "
                f"left out, because {'another has' if one else 'others have'} the same {draft.key}, such as "
                f"{sorted(map(str, draft.ambiguous))[0]!r:.80}."
            )
    if spent:
        yield (f"{model.server} was asked for {spent:.0f} s and not about everything; what it holds beyond is not in.")


def _what_they_are(answers: Sequence[Answered]) -> str:
    """Return what all of these results are, in words."""
    texts = [text_inside(answer.text).strip() for answer in answers]
    if all(map(holds_no_text, texts)):
        return "only images and other content that is not text"
    if all(re.fullmatch(r"[-+]?[\d.,]+(?:e[-+]?\d+)?%?", text) for text in texts):
        return "only single numbers"
    return "only prose" if all(len(text.split()) > 3 and text[:1] not in "[{" for text in texts) else "single values"


def _why_empty(name: str, answers: Sequence[Answered], survey: Survey) -> str:
    if answers:
        example = answers[0]
        return (
            f"No things are known of {name}: its results are {_what_they_are(answers)}, not lists or records of things "
            f"with lasting properties; {example.tool} said {shortened(example.text, 100)!r}."
        )
    if survey.answers:
        failed = survey.answers[0]
        return (
            f"No things are known of {name}: no call that was tried told anything that lasts; {failed.tool} said "
            f"{shortened(failed.text, 100)!r}."
        )
    if not survey.reader.tools:
        return f"No things are known of {name}: none of its tools seems to read, or may be called freely."
    example_tool = next(iter(survey.reader.tools.values()))
    required = [one for one in parameters_of(example_tool) if one.required]
    needed = " and ".join(one.name for one in required)
    helps = f": {SAY_START}" if any(one.is_address for one in required) else ""
    return (
        f"No things are known of {name}: its tools need values that nothing shows beforehand, such as {needed} of "
        f"{example_tool.name}{helps}."
    )
