"""The right answer of a task: as a message would hold it, in other words, and the verifier that looks for it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from mcp_rl.rewards.answers import as_written, normalised
from mcp_rl.rewards.times import names_a_time
from mcp_rl.scenario import Verifier
from mcp_rl.scenarios.goals.values import moment, shown

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from pydantic import JsonValue

    from mcp_rl.scenarios.goals.program import ProgramAnswer

NOBODY = (
    r"(?i)\W*none\W*(?:\b(?:no|not|nothing|nobody|there)\b[^\n]{0,120})?|"
    r"\W*(?:there|no|nothing|nobody|i)\b[^\n]{0,120}\bnone\W*"
)
"""The answer 'none', with a sentence that says so beside it or without, as a regular expression."""


def verifier_of(given: Sequence[JsonValue], answer: ProgramAnswer, others: Sequence[JsonValue] = ()) -> Verifier:
    """Return the verifier that looks at the answer alone. `others` are answers that must not stand beside it."""
    match answer.form:
        case "number":
            return Verifier(kind="number", expected=answer.value)
        case "set":
            return Verifier(kind="set", expected=answer.value)
        case "time" if names_a_time(str(answer.value)):
            return Verifier(kind="time", expected=str(answer.value))
        case "none":
            return Verifier(kind="regex", expected=NOBODY, options={"full": True})
        case "pair":
            first = answer.value[0] if isinstance(answer.value, list) else None
            others = [value for value in given[:2] if first in given[:2] and value != first]
            return Verifier(kind="parts", expected=answer.value, options={"others": others} if others else {})
    said = normalised(" ".join(map(shown, [*given, answer.value])))
    apart = [other for other in others if f" {normalised(shown(other))} " not in f" {said} "]
    return Verifier(kind="text", expected=str(answer.value), options={"others": apart} if apart else {})


def answer_text(answer: ProgramAnswer) -> str:
    """Return an answer as a message would hold it."""
    if answer.form == "none":
        return "none"
    items = answer.value if isinstance(answer.value, list) else [answer.value]
    if answer.form == "set" and any(re.search(r"[,;\n:]|\band\b|\bor\b|&", shown(item)) for item in items):
        return json.dumps(items, ensure_ascii=False)
    return ", ".join(map(shown, items))


def answer_as_shown(answer: ProgramAnswer, texts: Sequence[str]) -> str:
    """Return an answer as a message would hold it that copies it: a number as one of the results writes it."""
    if answer.form == "number" and isinstance(answer.value, int | float):
        for text in reversed(texts):
            if (written := as_written(text, answer.value)) is not None:
                return written
    return answer_text(answer)


def tells(text: str, answer: ProgramAnswer) -> bool:
    """Return whether a request holds its own answer."""
    if answer.form == "none":
        return False
    words = f" {normalised(text)} "
    parts = answer.value if isinstance(answer.value, list) else [answer.value]
    if answer.form == "pair":
        parts = parts[1:]
    return all(f" {normalised(shown(part))} " in words for part in parts)


def say_otherwise(answer: ProgramAnswer, random: random.Random) -> Iterator[str]:
    """Yield the answer in words that another solver would use."""
    text = answer_text(answer)
    items = list(map(shown, answer.value)) if isinstance(answer.value, list) else [text]
    match answer.form:
        case "number":
            yield from (text, f"The answer is {text}.", f"**{text}**")
        case "set":
            mixed = random.sample(items, len(items))
            yield json.dumps(mixed, ensure_ascii=False)
            yield "They are:\n" + "\n".join(f"- {item}" for item in mixed)
        case "pair":
            yield from (f"{items[0]}, by {items[1]}", f"It is {items[0]} ({items[1]}).", f"{items[0]}: {items[1]}")
        case "none":
            yield from ("none", "None.", "There is no such thing: none.")
        case "time" if (when := moment(answer.value)) is not None and ":" in text:
            yield from (
                text,
                f"{when:%d %B %Y}, {when:%I:%M:%S %p}",
                f"It was on {when:%A, %B} {when.day}, {when:%Y at %H:%M}.",
            )
        case _:
            yield from (text, f'It is "{text}".', f"{text}\n")
