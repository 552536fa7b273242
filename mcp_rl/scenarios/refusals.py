"""Unsolvable tasks, and requests that need no tool: a model must also know when not to act.

A task is unsolvable where the live server refused its call, twice and in the same words, or where it needs a tool that
the server does not have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore import plausible
from mcp_rl.explore.words import words_of
from mcp_rl.scenario import Verifier

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.outcome import Outcome
    from mcp_rl.scenarios.compose import Composer
    from mcp_rl.toolserver.tools.listing import Tool

_REFUSED_SHARE = 0.6
"""Share of the unsolvable tasks that the server refused; the others ask for a missing tool."""
_WORLD = re.compile(
    r"(?i)timed?[ -]?out|rate.?limit|too many requests|network|connection|unreachable|unauthori[sz]ed|api.?key"
    r"|credential|not configured|unavailable|try again|internal error|\b(?:http|status|code)\W*[45]\d\d\b"
    r"|(?-i:\bE[A-Z]{5,}\b)"
)
"""Errors that say more about the state of the world than about the task."""
_MISSING = (
    ("send_fax", "Send a fax to {number} that says {word}."),
    ("book_flight", "Book a flight to {city} for {name}."),
    ("print_document", "Print {number} copies of the document {word}."),
    ("play_song", "Play the song {word} by {name}."),
    ("order_pizza", "Order a pizza for {name} in {city}."),
    ("call_taxi", "Call a taxi for {name} in {city}."),
    ("water_plants", "Water the plants in the {word} room for {number} minutes."),
    ("unlock_door", "Unlock the door of the {word} house."),
    ("transfer_money", "Transfer {number} dollars to {name}."),
    ("weather_forecast", "Will it rain in {city} tomorrow?"),
    ("translate_speech", "Translate what {name} said into Finnish, from the recording {word}."),
    ("brew_coffee", "Brew {number} cups of coffee."),
)
"""Tools that a server may lack: a name, and a request in words."""
_BY_NAME = (
    "Use the tool {tool} for '{word}'.", "Call {tool} with id = {number}.", "Please run {tool} on '{word}'.",
    "What does {tool} return for {number}?",
)  # fmt: skip
_TALK = (
    ("Reply with the single word '{word}'.", "word"),
    ("Please answer with just this word: {word}.", "word"),
    ("Which word comes second in this list: {other}, {word}, {last}?", "word"),
    ("Which word comes last in this list: {other}, {last}, {word}?", "word"),
    ("My name is {name}. Greet me by my name.", "name"),
    ("Thank you, that is all for today. Say goodbye to {name}.", "name"),
    ("In one word: which city did I just name, if I say that I live in {city}?", "city"),
    ("I have a friend called {name}. What is my friend called?", "name"),
)
"""Requests that hold their own answer, and the name of the value that is the answer."""


def add_unsolvable(composer: Composer, errors: Sequence[Outcome], tools: Sequence[Tool], count: int) -> None:
    """Add at most `count` unsolvable tasks; `errors` are calls that the server refused, in order of preference."""
    goal = len(composer) + count
    refused = [error for error in errors if error.arguments and not _WORLD.search(error.text)]
    for error in refused[: round(_REFUSED_SHARE * count)]:
        text, call = composer.refused(error)
        failing: dict[str, JsonValue] = {"tool": call.tool, "arguments": call.arguments, "is_error": True}
        verifier = Verifier(kind="none", expected=[failing])
        composer.add(text, (), verifier, answer=error.text, tags=("unsolvable", call.tool))
    lacking = [one for one in _MISSING if not _words(one[0]) & {word for tool in tools for word in _words_about(tool)}]
    for _ in range(8 * count if lacking else 0):
        if len(composer) >= goal:
            return
        tool, request = composer.random.choice(lacking)
        form = request if composer.random.random() < 0.7 else composer.random.choice(_BY_NAME)
        composer.add(_filled(form, composer.random, tool), (), Verifier(kind="none"), tags=("unsolvable",))


def add_without_tools(composer: Composer, count: int) -> None:
    """Add at most `count` requests that are to be answered in words, without a call."""
    goal = len(composer) + count
    for _ in range(8 * count):
        if len(composer) >= goal:
            return
        form, asked = composer.random.choice(_TALK)
        values = _values(composer.random)
        verifier = Verifier(kind="text", expected=values[asked], options={"require_tool": False, "max_calls": 0})
        composer.add(form.format(**values), (), verifier, answer=values[asked], tags=("no-tool",))


def _filled(form: str, random: random.Random, tool: str) -> str:
    return form.format(tool=tool, number=random.randint(1, 99), **_values(random))


def _values(random: random.Random) -> dict[str, str]:
    word, other, last = random.sample(plausible.WORDS, 3)
    city, name = random.choice(plausible.CITIES), random.choice(plausible.NAMES)
    return {"word": word, "other": other, "last": last, "name": name, "city": city}


def _words(name: str) -> set[str]:
    return set(words_of(name).split(" "))


def _words_about(tool: Tool) -> set[str]:
    return _words(tool.name) | set(re.findall(r"[a-z]+", (tool.description or "").lower()))
