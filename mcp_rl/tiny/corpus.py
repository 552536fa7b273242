"""The synthetic corpus: random tool sets, requests, calls, results and answers, in the built-in model's chat format.

It teaches mechanics: find the tool that a request names, copy names and values, carry a result into the next call,
answer with the result. Like text from the web it does not teach judgement: a request for a number in everyday words is
often answered with a guess and no tool, and a called tool is often any that could take the values, in any order. So the
base is unsure instead of wrong, and samples everything that reinforcement learning has to find.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mcp_rl.tiny.lexicon import FILLER, NAMES, NOUNS, ORDERS, PHRASES
from mcp_rl.tiny.tools import (
    Parameter,
    RandomTool,
    random_expression,
    random_letters,
    random_number,
    random_result,
    random_text,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

SYNONYM_NOISE = 0.6
"""Share of requests with a synonym or with meaningless words that are labelled with any fitting tool."""
PHRASE_NOISE = 0.15
"""Share of requests in an everyday phrase that are labelled with any fitting tool."""
FROM_THE_HEAD = 0.55
"""Share of requests in everyday words that are answered with a guessed number, without a call."""


@dataclass(frozen=True)
class TextPiece:
    """A piece of a conversation. Only text that the assistant should learn to write carries loss."""

    role: str
    """user, assistant or tool"""
    text: str
    learn: bool = False


@dataclass(frozen=True)
class ExampleCall:
    tool: RandomTool
    arguments: dict[str, str]
    """Parameter name to JSON text."""

    def __str__(self) -> str:
        body = ", ".join(f'"{name}": {value}' for name, value in self.arguments.items())
        return f'<tool_call>\n{{"name": "{self.tool.name}", "arguments": {{{body}}}}}\n</tool_call>'


def conversation(rng: random.Random, tools: Sequence[RandomTool]) -> list[TextPiece]:
    """Return one episode on a tool set."""
    kind = rng.random()
    if kind < 0.02:
        return [TextPiece("user", _small_talk(rng)), TextPiece("assistant", "I have no tool for that.", learn=True)]
    if kind < 0.05:
        return _parallel(rng, tools)
    if kind < 0.09:
        return _mended(rng, tools)
    if kind < 0.14:
        return _in_turn(rng, tools)
    numeric = [t for t in tools if t.family in ("binary", "unary", "expression")]
    if kind < 0.44 and any(t.family != "expression" for t in numeric):
        return _chained(rng, numeric)
    return _single(rng, tools)


def _single(rng: random.Random, tools: Sequence[RandomTool]) -> list[TextPiece]:
    asked = _request(rng, rng.choice(tools), tools)
    if asked.everyday and rng.random() < FROM_THE_HEAD:
        return _from_the_head(rng, asked.text)
    result = _result(rng, asked.call)
    return [TextPiece("user", asked.text), TextPiece("assistant", str(asked.call), learn=True), *_finish(rng, result)]


def _from_the_head(rng: random.Random, request: str) -> list[TextPiece]:
    """Return an answer with a guessed number and without a call."""
    guess = _number_result(rng)[:10].rstrip(".")
    return [TextPiece("user", request), TextPiece("assistant", f"I think it is {guess}.", learn=True)]


def _chained(rng: random.Random, tools: Sequence[RandomTool]) -> list[TextPiece]:
    """Return a conversation of two or three numeric calls, each with the result before it as one of its values."""
    later = [t for t in tools if t.family != "expression"]
    first_tool = rng.choice(tools)
    request, call, everyday = _request(rng, first_tool, tools)
    turns: list[TextPiece] = []
    for _ in range(1 if rng.random() < 0.93 else 2):
        result = _number_result(rng)
        if rng.random() < 0.01:  # an error ends it
            error = _error(rng)
            return [
                TextPiece("user", request),
                *turns,
                TextPiece("assistant", str(call), learn=True),
                *_finish(rng, error),
            ]
        turns += [TextPiece("assistant", str(call), learn=True), TextPiece("tool", result)]
        spoken = rng.choice(_RESULT_WORDS)
        clause, call, casual = _request(rng, rng.choice(later), tools, carried=(spoken, result))
        everyday = everyday or casual
        clause = clause if rng.random() < 0.5 else clause[:1].lower() + clause[1:]
        link = rng.choice(LINKS)
        body = request.rstrip(".?!:")
        if request.endswith("?") and rng.random() < 0.6:
            body, link = request, rng.choice((" Then ", " Then ", " After that, ", " Next, ", " And then "))
        clause = clause[:1].upper() + clause[1:] if link.endswith(". ") else clause
        request = (
            rng.choice(("First ", "Start: ", "")) + body + link + clause if rng.random() < 0.2 else body + link + clause
        )
    if everyday and rng.random() < FROM_THE_HEAD:
        return _from_the_head(rng, request)
    final = _number_result(rng) if rng.random() > 0.02 else _error(rng)
    return [TextPiece("user", request), *turns, TextPiece("assistant", str(call), learn=True), *_finish(rng, final)]


def _in_turn(rng: random.Random, tools: Sequence[RandomTool]) -> list[TextPiece]:
    """Return a conversation of two unrelated calls, one after the other; the answer is the second result."""
    (first, one, _), (second, two, _) = (_request(rng, rng.choice(tools), tools, exact=True) for _ in range(2))
    link = rng.choice(LINKS)
    second = second if link.endswith(". ") or rng.random() < 0.4 else second[:1].lower() + second[1:]
    request = rng.choice(("First ", "", "", "Start like this: ")) + first.rstrip(".?!") + link + second
    turns = [
        TextPiece("user", request),
        TextPiece("assistant", str(one), learn=True),
        TextPiece("tool", _result(rng, one)),
    ]
    return [*turns, TextPiece("assistant", str(two), learn=True), *_finish(rng, _result(rng, two))]


def _parallel(rng: random.Random, tools: Sequence[RandomTool]) -> list[TextPiece]:
    """Return a conversation with two calls in one turn."""
    (first, one, _), (second, two, _) = (_request(rng, rng.choice(tools), tools) for _ in range(2))
    request = (
        first.rstrip(".?!") + rng.choice((". Also: ", " and at the same time ", ". At once: ", " and also ")) + second
    )
    results = [_result(rng, one), _result(rng, two)]
    answer = "\n".join(r if _short(r) else "Done." for r in results)
    return [
        TextPiece("user", request),
        TextPiece("assistant", f"{one}\n{two}", learn=True),
        *(TextPiece("tool", r) for r in results),
        TextPiece("assistant", answer, learn=True),
    ]


def _mended(rng: random.Random, tools: Sequence[RandomTool]) -> list[TextPiece]:
    """Return a wrong call that carries no loss, the error message about it, and the right call."""
    request, call, _ = _request(rng, rng.choice(tools), tools, exact=True)
    wrong, complaint = _break(rng, call, tools)
    return [
        TextPiece("user", request),
        TextPiece("assistant", wrong),
        TextPiece("tool", complaint),
        TextPiece("assistant", str(call), learn=True),
        *_finish(rng, _result(rng, call)),
    ]


def _break(rng: random.Random, call: ExampleCall, tools: Sequence[RandomTool]) -> tuple[str, str]:
    """Return a wrong version of a turn with this call, and the error message about it."""
    arguments = dict(call.arguments)
    told: tuple[str, ...]
    kind = rng.random()
    if kind < 0.3 and arguments:
        name = rng.choice(list(arguments))
        del arguments[name]
        told = (
            f"'{name}' is a required property",
            f"Missing argument '{name}'.",
            f"{name}: missing required argument.",
        )
        return str(ExampleCall(call.tool, arguments)), rng.choice(told)
    if kind < 0.5 and arguments:
        name = rng.choice(list(arguments))
        arguments[name] = random_number(rng) if arguments[name][0] == '"' else json.dumps(random_text(rng))
        told = (f"{name}: {arguments[name]} is of the wrong type", f"Invalid argument '{name}'.")
        return str(ExampleCall(call.tool, arguments)), rng.choice(told)
    if kind < 0.75:
        known = ", ".join(sorted(tool.name for tool in tools))
        name = rng.choice((*NOUNS, *FILLER, random_letters(rng), call.tool.name + "s"))
        told = (f'There is no tool named "{name}". Try one of: {known}.', f"Unknown tool: {name}")
        return str(call).replace(f'"{call.tool.name}"', f'"{name}"', 1), rng.choice(told)
    if kind < 0.85:
        text = str(call)
        cut = rng.randrange(15, len(text) - 14)
        told = ("The tool call is not valid JSON: Expecting value: line 2 column 40 (char 40).", "Invalid JSON.")
        return text[:cut] + "\n</tool_call>", rng.choice(told)
    other = rng.choice(tools)
    return str(ExampleCall(other, arguments)), rng.choice(
        ("Invalid arguments.", f"Wrong tool {other.name}.", "Try again.")
    )


def _finish(rng: random.Random, result: str) -> list[TextPiece]:
    """Return an answer that repeats the result, or acknowledges one that is too long to repeat."""
    answer = result if _short(result) else "Done."
    if result.startswith('{"') and result.count(":") == 1 and result.endswith("}"):
        answer = result.partition(": ")[2].rstrip("}").strip('"')
    return [TextPiece("tool", result), TextPiece("assistant", answer, learn=True)]


def _short(result: str) -> bool:
    return len(result) <= 60 and "\n" not in result


# Requests


class LabelledRequest(NamedTuple):
    """A request and the call that it is labelled with."""

    text: str
    call: ExampleCall
    everyday: bool
    """True for a request in everyday words that names no tool."""


def _request(
    rng: random.Random,
    tool: RandomTool,
    tools: Sequence[RandomTool],
    *,
    carried: tuple[str, str] | None = None,
    exact: bool = False,
) -> LabelledRequest:
    """Return a request for a tool. `carried` is a value that the request refers to in words, such as "the result": (the
    words, the JSON text). `exact`: the request names the tool, and the label is right."""
    everyday = not exact and tool.family != "record" and rng.random() < 0.75
    phrases = (*PHRASES.get(tool.meaning, ()), *ORDERS.get(tool.meaning, ()))
    kind = rng.choices(("own words", "phrase", "synonym"), (12, 70 if phrases else 0, 18))[0] if everyday else "plain"
    noise = {"phrase": PHRASE_NOISE, "synonym": SYNONYM_NOISE}.get(kind, 0.0)
    fitting = [t for t in tools if t.family == tool.family and len(t.parameters) == len(tool.parameters)]
    mislabelled = rng.random() < noise
    labelled = rng.choice(fitting) if mislabelled else tool
    values = {p.name: _value(rng, p) for p in labelled.parameters if p.required or rng.random() < 0.4}
    spoken = {name: _spoken(value) for name, value in values.items()}
    if carried and values:
        name = rng.choice([p.name for p in labelled.parameters if p.name in values])
        if not everyday and rng.random() < 0.6:
            name = next(iter(values))
        values[name], spoken[name] = carried[1], carried[0]
    words = list(spoken.values())
    if kind == "plain":
        return LabelledRequest(_plain(rng, labelled, spoken), ExampleCall(labelled, values), everyday=False)
    if kind == "phrase":
        if mislabelled and rng.random() < 0.5:
            words.reverse()
        text = _phrased(rng, tool, words)
    else:
        if rng.random() < (0.2 if kind == "own words" else 0.4):
            words.reverse()
        text = _vague(rng, tool, words, own_words=kind == "own words")
    return LabelledRequest(text, ExampleCall(labelled, values), everyday=True)


def _phrased(rng: random.Random, tool: RandomTool, words: list[str]) -> str:
    """Return a sentence with an everyday phrase for the tool's work."""
    nouns, orders = PHRASES.get(tool.meaning, ()), ORDERS.get(tool.meaning, ())
    phrase = rng.choice((*nouns, *orders))
    if phrase in orders:
        sentence = rng.choice(
            ("{p}.", "{p}", "Please {p}.", "Can you {p}?", "I want to {p}.", "{p}, what do I get?", "Now {p}.")
        )
    elif phrase.startswith(("what ", "how ")):
        sentence = rng.choice(("{p}?", "Tell me {p}.", "Find {p}.", "I need to know {p}."))
    else:
        sentence = rng.choice(("What is {p}?", "What is {p}?", "{p}", "{p}.", "{p} = ?", "How much is {p}?", "Compute {p}.",
                               "Work out {p}.", "Find {p}.", "I need {p}.", "What does {p} come to?", "Give me {p}.",
                               "Which number is {p}?", "How many are {p}?", "Please tell me {p}."))  # fmt: skip
    text = sentence.replace("{p}", phrase).replace("{x}", words[0]).replace("{y}", words[-1])
    if rng.random() < 0.1:
        text = f"{_invented(rng, 0).capitalize()} {text}"
    return text[:1].upper() + text[1:] if rng.random() < 0.7 else text


def _plain(rng: random.Random, tool: RandomTool, spoken: dict[str, str]) -> str:
    """Return a request that names its tool, by name or by the words of the name or the description."""
    if not spoken:
        noun = tool.noun or "answer"
        bare = ("Use {n}.", "Call {n}.", "Please run {n}.", "{n}", "{W}.", "Please {w}.", "{D}", "I need {n}.",
                  f"Use {{n}} and tell me the {noun}.", "What does {n} return?", "Call the tool {n}.")  # fmt: skip
        return _fill(rng, rng.choice(bare), tool, "", "")
    quoted = rng.random() < 0.3
    values = [f"'{v}'" if quoted and not _is_number(v) else v for v in spoken.values()]
    named, listed = _named(rng, spoken), _listed(rng, values)
    frames = (
        "Use {n} with {k}.", "Call {n} with {k}.", "Run {n}: {k}.", "Use the {n} tool with {k}.", "{n} {k}",
        "Please use {n} with {k}.", "Call the tool {n}: {k}.", "I need {n} with {k}.", "{n}({k})", "With {k}, run {n}.",
        "What does {n} give for {k}?", "{D} Use {k}.", "Please {w} with {k}.", "{W}: {k}.", "{D} {k}", "Apply {n} to {k}.",
        "{w} {v}", "{W} {v}.", "Please {w} {v}.", "{n} {v}", "{W}: {v}.", "{D} {v}", "What does {n} give for {v}?",
        "Use {n} on {v}.", "Call {n} for {v}.", "{d}: {v}", "I want to {w} {v}.", "Can you {w} {v}?", "Apply {n} to {v}.",
        "{d} for {v}", "Run {n} on {v}.", "Go {w} {v}.", "{s} {v}", "Invoke {n} with {k}.", "Execute {n}, where {k}.", "Do {w}, {k}.", "{S} {v}.", "{S} {k}.", "Please {s} {v}.",
    )  # fmt: skip
    return _fill(rng, rng.choice(frames), tool, named, listed)


def _fill(rng: random.Random, frame: str, tool: RandomTool, named: str, listed: str) -> str:
    synonym = rng.choice(tool.synonyms) + (f" {tool.noun}" if tool.noun else "")
    plain = tool.description.split(".")[0]
    parts = {
        "{n}": tool.name, "{k}": named, "{v}": listed, "{w}": tool.words, "{W}": tool.words.capitalize(),
        "{D}": tool.description, "{d}": plain, "{s}": synonym, "{S}": synonym.capitalize(),
    }  # fmt: skip
    for mark, text in parts.items():
        frame = frame.replace(mark, text)
    return frame


def _vague(rng: random.Random, tool: RandomTool, words: list[str], *, own_words: bool) -> str:
    """Return a request in free words: the tool's own words with the values in any order, a synonym, or meaningless
    words."""
    synonym = tool.words if own_words else rng.choice(tool.synonyms if rng.random() < 0.6 else _STRANGE)
    frames: tuple[str, ...]
    if tool.family == "expression":
        frames = ("{s} {x}", "{s} {x}.", "What is {x}?", "{x}", "{x} = ?", "Please {s} {x}.", "{s}: {x}", "How much is {x}?",
                  "Tell me what {x} comes to.", "I need the value of {x}.", "{x} please.")  # fmt: skip
    elif tool.family == "unary":
        frames = ("What is the {s} of {x}?", "{s} {x}", "{x} {s}", "Find the {s} of {x}.", "I need the {s} of {x}.",
                  "{s} of {x}?", "Take {x} and {s} it.", "Which number is the {s} of {x}?", "What is {s} {x}?",
                  "If {x} {s}, what is it?", "Give me {s} {x}.", "{s}: {x}")  # fmt: skip
    else:
        frames = ("What is {x} {s} {y}?", "{x} {s} {y}", "How much is {x} {s} {y}?", "{s} {x} and {y}", "{s} {x} {t} {y}.",
                  "Find the {s} of {x} and {y}.", "The {s} of {x} and {y}?", "What is the {s} of {x} {t} {y}?",
                  "How many times does {x} {s} {y}?", "{s} {x} {t} {y}", "Take {x} {s} {y}.", "I have {x} {j} and {s} {y}.",
                  "Give me {x} {s} {y}.", "By how much is {x} {s} {y}?", "{x} {j} {s} {y}, how many?", "Make {x} {s} {t} {y}.",
                  "If I {s} {x} {t} {y}, what do I get?", "What do you get when {x} is {s} {t} {y}?", "{x} and {y} {s}",
                  "{x} {t} {y} {s}, what is it?", "Compute {x} {s} {y}.", "Tell me {x} {s} {y}.", "{s} {t} {x} {j}: {y}.",
                  "Work out {x} {s} {y}.", "There are {x} {j}; {y} {s}.", "{x} {j} {t} {y} {j}.",
                  "{x} {o} {y}", "{x} {o} {y} = ?", "{x}{o}{y}", "What is {x} {o} {y}?", "Compute {x}{o}{y}.", "{s} {x}{o}{y}?")  # fmt: skip
    invented = not own_words and rng.random() < 0.5
    frame = _invented(rng, len(words)) if invented else rng.choice([f for f in frames if not own_words or "{s}" in f])
    parts = {
        "{o}": rng.choice(("+", "-", "*", "/", "^", "**")),
        "{s}": synonym,
        "{t}": rng.choice(_PREPOSITIONS),
        "{j}": rng.choice(NOUNS) + "s",
        "{x}": words[0],
    }
    parts["{y}"] = words[-1]
    for mark, text in parts.items():
        frame = frame.replace(mark, text)
    return frame[:1].upper() + frame[1:] if rng.random() < 0.7 else frame


def _invented(rng: random.Random, values: int) -> str:
    """Return a template of meaningless words around 0 to 2 values; sometimes two sentences, sometimes a question."""

    def some(most: int) -> str:
        return " ".join(
            rng.choice(rng.choice((_PLAIN_WORDS, _PLAIN_WORDS, _STRANGE))) for _ in range(rng.randrange(most + 1))
        )

    middle = some(4) or rng.choice(_PREPOSITIONS)
    frames = (some(6), f"{some(7)} {{x}} {some(5)}", f"{some(6)} {{x}} {middle} {{y}} {some(5)}")
    frame = frames[min(values, 2)]
    frame = frame.strip() + rng.choice((".", ".", "?", "?", ""))
    return f"{frame.rstrip('?')} {some(4).capitalize()}?" if frame.endswith(".") and rng.random() < 0.25 else frame


def _named(rng: random.Random, spoken: dict[str, str]) -> str:
    """Return arguments by name."""
    form: Callable[[str, str], str] = rng.choice(_PAIRS)
    pairs = [form(name, value) for name, value in spoken.items()]
    if rng.random() < 0.15:
        rng.shuffle(pairs)
    if rng.random() < 0.12:
        return "{" + ", ".join(f'"{n}": {json.dumps(v) if not _is_number(v) else v}' for n, v in spoken.items()) + "}"
    return _listed(rng, pairs)


_PAIRS: tuple[Callable[[str, str], str], ...] = (
    lambda n, v: f"{n} = {v}", lambda n, v: f"{n}={v}", lambda n, v: f"{n}: {v}", lambda n, v: f"{n} {v}",
    lambda n, v: f"{n} set to {v}", lambda n, v: f"{v} as {n}", lambda n, v: f"{v} for {n}", lambda n, v: f"the {n} {v}",
    lambda n, v: f"{n} '{v}'" if not _is_number(v) else f"{n} {v}", lambda n, v: f'{n} = "{v}"' if not _is_number(v) else f"{n} = {v}",
    lambda n, v: f"{n} is {v}", lambda n, v: f"{n} = '{v}'" if not _is_number(v) else f"{n} = {v}",
    lambda n, v: f"{n} is '{v}'" if not _is_number(v) else f"{n} is {v}",
    lambda n, v: f"{n}='{v}'" if not _is_number(v) else f"{n}={v}",
)  # fmt: skip


def _listed(rng: random.Random, parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    separator = rng.choice((", ", ", ", " ", " and "))
    last = rng.choice((separator, " and ", " and "))
    return separator.join(parts[:-1]) + last + parts[-1]


LINKS = (", then ", ", then ", ". Then ", ". Then ", ", and then ", ". After that, ", ". Next, ", " and then ", ", after that ", "; then ",
          ". With that, ", ". Now ", ", next ", " then ", ". Finally, ")  # fmt: skip
_RESULT_WORDS = ("the result", "the result", "the result", "that", "it", "the answer", "that result", "this", "that number",
                 "what you get", "the outcome", "the previous result", "the value")  # fmt: skip
_PREPOSITIONS = ("and", "from", "by", "with", "to", "into", "of", "for", "than", "away from", "on", "off", "out of")
_STRANGE = (*NOUNS, *FILLER, *NAMES, "away", "out", "up", "more", "less", "worth", "per", "side", "area", "long", "part",
            "whole", "bigger", "smaller", "leave", "left", "goes", "times", "of", "groups of", "shared among")  # fmt: skip


_PLAIN_WORDS = """a an the of to in for with and or by from on at is are was be it its that this what which who how much many
do does did can will would should please now I have had get got give take make makes made come comes start end find work
out up down away on off into there here my me you we need want tell is left more less when where one them each itself
so if go together put has""".split()


def _small_talk(rng: random.Random) -> str:
    return rng.choice(
        (f"Hello {rng.choice(NAMES)}.", f"Who are you, {rng.choice(NAMES)}?", "Tell me a story.", "How are you?",
         f"What do you think of {rng.choice(NOUNS)}s?", "Thanks!", "Write a poem about the ocean.")
    )  # fmt: skip


# Values and results


def _value(rng: random.Random, parameter: Parameter) -> str:
    """Return a JSON text that fits the parameter."""
    match parameter.kind:
        case "number":
            return random_number(rng)
        case "integer":
            return str(rng.randrange(10 ** rng.choice((1, 2, 2, 3, 4))))
        case "boolean":
            return rng.choice(("true", "false"))
        case "enum":
            return json.dumps(rng.choice(parameter.choices))
        case "array":
            return json.dumps([random_text(rng) for _ in range(rng.choice((1, 2, 2, 3)))])
        case "expression":
            return json.dumps(random_expression(rng))
    return json.dumps(random_text(rng))


def _spoken(value: str) -> str:
    """Return a JSON value as a request spells it."""
    parsed = json.loads(value)
    return parsed if isinstance(parsed, str) else value


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit() or text in ("true", "false") or text.startswith("[")


def _number_result(rng: random.Random) -> str:
    if rng.random() < 0.015:
        return "".join(rng.choice("0123456789") for _ in range(rng.randrange(14, 90)))
    return random_result(rng) if rng.random() < 0.6 else random_number(rng)


def _error(rng: random.Random) -> str:
    subject = rng.choice((*NOUNS, "division", "number", "argument"))
    return rng.choice(
        (f"Error: no such {subject}", f"Error executing tool: {subject} not allowed", "Division by zero.",
         f"The {subject} is too large.", f"{subject.capitalize()} failed: {random_text(rng)}", f"Cannot use {subject}.")
    )  # fmt: skip


def _result(rng: random.Random, call: ExampleCall) -> str:
    if rng.random() < 0.04:
        return _error(rng)
    if call.tool.family != "record":
        number = _number_result(rng)
        return number if rng.random() < 0.9 else f'{{"result": {number}}}'
    kind = rng.random()
    value = rng.choice([json.loads(v) for v in call.arguments.values()] or [random_text(rng)])
    if kind < 0.25:
        return f"{rng.choice(('Echo: ', 'OK: ', '', '', 'Saved ', 'Found '))}{value}"
    if kind < 0.45:
        return random_text(rng)
    if kind < 0.6:
        return _number_result(rng)
    if kind < 0.75:
        return f"The {rng.choice(NOUNS)} of {value} is {rng.choice((random_number(rng), random_text(rng)))}."
    if kind < 0.85:
        return json.dumps({rng.choice(NOUNS): rng.choice((random_text(rng), rng.randrange(1000)))})
    return "\n".join(f"{rng.choice(NOUNS)}: {random_text(rng)}" for _ in range(rng.choice((2, 3, 5, 9))))
