"""Requests in words, for executed calls.

A server's plugin may offer phrases ("Add {a} and {b}"); one request in four still names the tool in a generic form, so
that a model meets both. Without phrases, all wording comes from the tool's name, its description and the names of its
parameters.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.nouns import is_plural
from mcp_rl.explore.words import words_of
from mcp_rl.scenarios.quoting import is_odd, quoted_json, quoted_text
from mcp_rl.scenarios.verbs import BESIDE_SUMS, EITHER_WAY, THIRD_PERSON, VERBS
from mcp_rl.toolserver.tool_server import BETWEEN

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from mcp_rl.toolserver.tools.listing import Tool

_GENERIC_SHARE = 0.25


class Spoken(str):
    """A value in words rather than literal: "the result" of the step before."""

    __slots__ = ()


WITH_ARGUMENTS = (
    "use {name} with {equals}",
    "{act} {bare}",
    "call the tool {name}: {json}",
    "{description}: {equals}",
    "please {words} with {equals}",
    "run {name} on {equals}",
    "call {name} with {json}",
    "{words} with {set_to}",
    "apply {name} to {bare}",
    "invoke {name}, where {is}",
    "please {words}, where {is}",
)
"""Imperative clauses, so that two of them make a two-step request."""
WITHOUT_ARGUMENTS = (
    "use {name}",
    "call the tool {name}",
    "please {words}",
    "{description}",
    "run {name} and tell me what it says",
    "{words}",
    "invoke {name} without arguments",
    "please call {name}",
)
QUESTIONS = (
    "What does {name} return for {equals}?",
    "I need the result of {name} for {equals}.",
    "{name}({call})",
    "Can you {words} with {equals}?",
    "With {equals}, what is the result of {name}?",
    "Tell me what {name} gives for {bare}.",
)
"""Whole requests for one step."""
TWO_STEPS = (
    "{first}, then {second}.",
    "First {first}. Then {second}.",
    "{first}. After that, {second}.",
    "{first}, and then {second}.",
    "Start like this: {first}. Next, {second}.",
)
LATER_STEPS = (", then {next}", ", and then {next}", ". Then {next}", ". After that, {next}", ". Next, {next}")
"""Connections between the later of more than two steps."""
REFERENCES = ("the result", "the result", "that result", "the result of that")


class Wording:
    """Words requests for the tools of one server."""

    def __init__(
        self, tools: Sequence[Tool], names: Mapping[str, str], phrases: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """`names` maps the server's tool names to those that the model sees; `phrases` are a plugin's templates."""
        self._tools = {tool.name: tool for tool in tools}
        self._names = names
        self._phrases = phrases or {}
        self._descriptions = {tool.name: _first_sentence(tool.description or "") for tool in tools}
        self._described = Counter(self._descriptions.values())
        self._words = {
            tool: words if words.split(" ")[0] in VERBS else f"use {names.get(tool, tool)}"
            for tool, words in _spoken_names([tool.name for tool in tools]).items()
        }
        """Requests with the name of each tool: "scan folder", and "use text_stats"."""

    def one_step(
        self, tool: str, arguments: Mapping[str, Any], random: random.Random, *, questions: bool = True
    ) -> str:
        """Return a request for one call."""
        phrase = self._phrase(tool, arguments, random, questions=questions)
        if phrase is None and arguments and questions and random.random() < 0.3:
            fields = self._fields(tool, arguments)
            phrase = random.choice([form for form in QUESTIONS if _usable(form, fields)]).format(**fields)
        return _sentence(phrase if phrase is not None else self.clause(tool, arguments, random))

    def steps(
        self, calls: Sequence[tuple[str, Mapping[str, Any]]], random: random.Random, *, questions: bool = True
    ) -> str:
        """Return a request for calls in order, each a tool and its arguments, which after the first may be Spoken.

        `questions` is False for calls that change something, which are told rather than asked.
        """
        if len(calls) == 1:
            return self.one_step(*calls[0], random, questions=questions)
        one = self._step(*calls[0], random, questions=questions and random.random() < 0.5)
        two = self._step(*calls[1], random, questions=False)
        if one.endswith("?"):
            text = f"{one} Then {_lowered(two)}."
        else:
            text = random.choice(TWO_STEPS)
            text = text.format(first=_lowered(one) if not text.startswith("{first}") else one, second=_lowered(two))
        for call in calls[2:]:
            later = _lowered(self._step(*call, random, questions=False))
            text = text.rstrip(".") + random.choice(LATER_STEPS).format(next=later) + "."
        return _sentence(text)

    def clause(self, tool: str, arguments: Mapping[str, Any], random: random.Random) -> str:
        """Return an imperative clause for one call, in a generic form."""
        fields = self._fields(tool, arguments)
        forms = [form for form in (WITH_ARGUMENTS if arguments else WITHOUT_ARGUMENTS) if _usable(form, fields)]
        return random.choice(forms).format(**fields)

    def _step(self, tool: str, arguments: Mapping[str, Any], random: random.Random, *, questions: bool) -> str:
        phrase = self._phrase(tool, arguments, random, questions=questions)
        return (phrase if phrase is not None else self.clause(tool, arguments, random)).rstrip(".")

    def _phrase(self, tool: str, arguments: Mapping[str, Any], random: random.Random, *, questions: bool) -> str | None:
        fitting = [
            template
            for template in self._phrases.get(tool, ())
            if set(re.findall(r"\{(\w+)\}", template)) == set(arguments) and (questions or not template.endswith("?"))
        ]
        if not fitting or random.random() < _GENERIC_SHARE:
            return None
        return re.sub(r"\{(\w+)\}", lambda found: _unquoted(arguments[found[1]]), random.choice(fitting))

    def _fields(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        items = list(arguments.items())
        described, words = self._descriptions[tool], self._words[tool]
        spoken = any(isinstance(value, Spoken) for value in arguments.values())
        return {
            "name": self._names.get(tool, tool),
            "words": words,
            "act": "" if words.startswith("use ") else words,
            # A description that two tools share would be ambiguous.
            "description": described if self._described[described] == 1 and _is_asked(described) else "",
            "equals": _joined([f"{name} = {say(value)}" for name, value in items]),
            "is": _joined([f"{name} {_be(name, value)} {say(value)}" for name, value in items]),
            "set_to": _joined([f"{name} set to {say(value)}" for name, value in items]),
            "call": ", ".join(f"{name}={say(value)}" for name, value in items),
            "json": "" if spoken else quoted_json(dict(arguments)),
            "bare": self._bare(tool, arguments),
        }

    def _bare(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return the values without names where they cannot be confused (one value, or two numbers in any order), or
        an empty string."""
        values = list(arguments.values())
        leading = list(self._tools[tool].input_schema.get("properties") or {})[: len(values)]
        plain = all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values)
        alike = all(_is_number(value) or isinstance(value, Spoken) for value in values)
        words = set(words_of(tool).split(" "))
        either_way = alike and bool(words & EITHER_WAY) and words <= EITHER_WAY | BESIDE_SUMS
        if not plain or list(arguments) != leading or not (len(values) == 1 or (len(values) == 2 and either_way)):
            return ""
        return _joined(list(map(say, values)))


def say(value: Any) -> str:
    """Return a JSON value as a request holds it: text in quotes, everything else as JSON."""
    if isinstance(value, Spoken):
        return str(value)
    if isinstance(value, str):
        return quoted_text(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return quoted_json(value)


def _spoken_names(tools: Sequence[str]) -> dict[str, str]:
    """Return each tool's name in words; of several servers' tools without the server's name, if that stays unique."""
    several = all(BETWEEN in tool for tool in tools)
    short = {tool: words_of(tool.partition(BETWEEN)[2] if several else tool) for tool in tools}
    counts = Counter(short.values())
    return {tool: words if counts[words] == 1 else words_of(tool) for tool, words in short.items()}


def _is_asked(description: str) -> bool:
    """Return whether a description begins with an English verb, so that it can stand as a request."""
    return description.isascii() and " " in description and description.split(" ")[0].lower() in VERBS


def _be(name: str, value: Any) -> str:
    return "are" if isinstance(value, list) and is_plural(name) else "is"


def _unquoted(value: Any) -> str:
    return str(value) if isinstance(value, str) and not is_odd(value) else say(value)


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" and {parts[-1]}" if parts else ""


def _usable(form: str, fields: Mapping[str, str]) -> bool:
    return all(fields[name] for name in re.findall(r"\{(\w+)\}", form))


def _first_sentence(description: str) -> str:
    lines = description.strip().splitlines()
    sentence = re.split(r"(?<=[.!?])\s", lines[0])[0].rstrip(".:") if lines else ""
    return _imperative(sentence) if len(sentence) <= 120 else ""


def _imperative(sentence: str) -> str:
    """Return a sentence such as "Returns the notes" as the request "Return the notes"."""
    words = sentence.split(" ")
    for at in (0, 2) if words[1:2] == ["and"] else (0,):
        verb = THIRD_PERSON.get(words[at].lower()) if words[at + 1 : at + 2] not in ([], ["of"]) else None
        if verb is None:
            break
        words[at] = words[at][: len(verb)]
    return " ".join(words)


def _lowered(text: str) -> str:
    """Return the text with a small first letter, unless the first word is special (I, JSON, getSum)."""
    first = re.match(r"[A-Z][a-z]*\b", text)
    return text[0].lower() + text[1:] if first and first[0] != "I" else text


def _sentence(text: str) -> str:
    """Return a text as a sentence; the name of a tool, such as `get_sum`, keeps its small letter."""
    text = text[0].upper() + text[1:] if re.match(r"[a-z]+(?=[ ,:.?]|$)", text) else text
    return text if text.endswith((".", "?", ")", "!")) else text + "."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
