"""Random tool sets for the synthetic corpus: names, parameters and JSON schemas in the styles that servers use."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.tiny.lexicon import ACTIONS, ENUMS, FILLER, NAMES, NOUNS, NUMERIC, PARAMETERS, TEXTUAL, UNARY

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


@dataclass(frozen=True)
class Parameter:
    """An argument of a random tool."""

    name: str
    kind: str
    """number, integer, string, boolean, enum, array or expression"""
    required: bool = True
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class RandomTool:
    """A tool that exists only in the corpus."""

    name: str
    words: str
    """The name as words."""
    meaning: str
    """The lexicon's word for its work, which its name need not tell."""
    family: str
    """binary, unary, expression or record: the tools that a vague request could mean."""
    description: str
    parameters: tuple[Parameter, ...]
    synonyms: tuple[str, ...]
    noun: str = ""
    schema: dict[str, Any] = field(default_factory=dict)


def random_number(rng: random.Random) -> str:
    """Return a number as JSON text: mostly integers of one to four digits, some longer, decimal or negative."""
    digits = rng.choices((1, 2, 3, 4, 5, 7), (25, 30, 22, 15, 5, 3))[0]
    text = str(rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits))
    if rng.random() < 0.18:
        text += "." + (
            str(rng.randrange(1, 10)) if rng.random() < 0.6 else f"{rng.randrange(10)}{rng.randrange(1, 10)}"
        )
    return "-" + text if rng.random() < 0.12 and text != "0" else text


def random_result(rng: random.Random) -> str:
    """Return a number as a calculator prints it: up to ten digits, sometimes many decimals."""
    digits = rng.choices((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12), (10, 14, 14, 16, 12, 10, 8, 6, 4, 4, 2))[0]
    text = str(rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits))
    if digits > 3 and rng.random() < 0.3:  # repeated digits are the hard ones to copy
        text = "".join(rng.choice("0123456789"[rng.randrange(10) :]) if rng.random() < 0.5 else text[0] for _ in text)
        text = text.lstrip("0") or "0"
    if rng.random() < 0.3:
        text = text[:5] + "." + "".join(rng.choice(string.digits) for _ in range(rng.choice((0, 1, 2, 5, 8))))
        text += rng.choice("123456789")
    return "-" + text if rng.random() < 0.15 and text != "0" else text


def random_text(rng: random.Random) -> str:
    """Return a plausible string argument: a name, some words, a path, an identifier."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(NAMES)
    if kind < 0.5:
        return " ".join(rng.choice(FILLER + NOUNS + NAMES) for _ in range(rng.choice((2, 2, 3, 4))))
    if kind < 0.6:
        return rng.choice(NAMES + NOUNS).capitalize()
    if kind < 0.78:
        parts = [rng.choice((*NOUNS, *FILLER, random_letters(rng))) for _ in range(rng.choice((1, 2, 3)))]
        return "/" + "/".join(parts) + rng.choice(("", ".txt", ".md", ".json", ".py", "/"))
    if kind < 0.88:
        return random_letters(rng) + rng.choice(("", "-", "_", ".")) + str(rng.randrange(1000))
    return random_letters(rng)


def random_letters(rng: random.Random) -> str:
    return "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.choice((2, 3, 4, 5, 7))))


def random_word(rng: random.Random) -> str:
    """Return a meaningless word of one to three syllables, which stands for rare words."""
    syllables = (
        rng.choice(_ONSETS) + rng.choice("aeiou") + rng.choice(_CODAS) for _ in range(rng.choice((1, 2, 2, 3)))
    )
    return "".join(syllables) + rng.choice(("", "", "ed", "ing", "s", "tion"))


_ONSETS = (*"bcdfghjklmnprstvw", "", "st", "tr", "pl", "ch", "th", "gr")
_CODAS = ("", "", "", *"lnrstmdgx", "nd", "st", "nt")


def random_expression(rng: random.Random) -> str:
    """Return an arithmetic expression with one to four operators."""

    def number() -> str:
        return random_number(rng).lstrip("-") if rng.random() < 0.9 else random_number(rng)

    text = number()
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        operator = rng.choice("++--**//") if rng.random() < 0.93 else rng.choice(("**", "%", "^"))
        space = rng.choice((" ", " ", " ", ""))
        step = rng.random()
        if step < 0.3:
            text = f"({text}){space}{operator}{space}{number()}"
        elif step < 0.45:
            text = f"{number()}{space}{operator}{space}({text})"
        else:
            text = f"{text}{space}{operator}{space}{number()}"
    return text


def random_toolset(rng: random.Random) -> list[RandomTool]:
    """Return two to ten tools with different names, written in one style."""
    style = _Style(rng)
    if rng.random() < 0.6:
        tools = [style.binary(word) for word in rng.sample(list(NUMERIC), rng.choice((1, 2, 3, 4, 5, 5, 6)))]
        tools += [style.unary(word) for word in rng.sample(list(UNARY), rng.choice((0, 0, 1, 1, 2)))]
        tools += [style.expression(word) for word in rng.sample(list(TEXTUAL), rng.choice((0, 1, 1)))]
        tools += [style.record() for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    else:
        tools = [style.record() for _ in range(rng.choice((1, 2, 3, 4, 5, 6, 8, 10)))]
        tools += [style.binary(word) for word in rng.sample(list(NUMERIC), 1)]
    unique = list({tool.name: tool for tool in tools}.values())
    rng.shuffle(unique)
    return unique


class _Style:
    """The style in which one imaginary server names and documents its tools."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.join = rng.choice(name_styles())
        self.described = rng.random() < 0.8
        self.parameters_described = rng.random() < 0.4
        self.first_key = rng.choice(("type", "type", "properties"))
        self.titles = rng.random() < 0.15
        self.dialect = rng.random() < 0.2
        self.closed = rng.random() < 0.2
        self.invented = rng.random() < 0.4
        """True for meaningless tool names: only the listing says then what can be called."""
        self.uniform = rng.random() < 0.4
        """True if tools of one family name their parameters alike."""
        self.talkative = rng.random() < 0.15
        """True for descriptions of more than one sentence."""
        self.stems: list[list[str]] = []
        """Words of the record tools made so far."""
        self.pair = self._pair()
        self.single = self._single("unary")

    def _pair(self) -> tuple[str, str]:
        if self.rng.random() < 0.35:
            first, second = self.rng.sample((*NOUNS, *FILLER, *NAMES, *"abcdefghijklmnopqrstuvwxyz"), 2)
        else:
            first, second = self.rng.choice(PARAMETERS["number"]).split()
        return first, second

    def _single(self, group: str) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            name = rng.choice((*NOUNS, *FILLER, random_letters(rng)))
            return name if rng.random() < 0.6 else self.join([name, rng.choice(NOUNS)])
        return rng.choice(PARAMETERS[group])

    def binary(self, word: str) -> RandomTool:
        names = self.pair if self.uniform else self._pair()
        kind = "number" if self.rng.random() < 0.85 else "integer"
        parameters = tuple(Parameter(name, kind) for name in names)
        ends = ("two numbers.", "numbers.", f"{names[0]} and {names[1]}.", "a pair of values.",
                f"two numbers: {names[0]} {self.rng.choice('+-*/^%')} {names[1]}.",
                f"{names[1]} from {names[0]}: {names[0]} {self.rng.choice('+-*/^%')} {names[1]}.")  # fmt: skip
        return self._named(word, "binary", parameters, NUMERIC[word], self.rng.choice(ends))

    def unary(self, word: str) -> RandomTool:
        name = self.single if self.uniform else self._single("unary")
        ends = ("of a number.", "a number.", f"of {name}.", "for one value.")
        return self._named(word, "unary", (Parameter(name, "number"),), UNARY[word], self.rng.choice(ends))

    def expression(self, word: str) -> RandomTool:
        parameter = Parameter(self._single("expression"), "expression")
        signs = " ".join(self.rng.sample(("+", "-", "*", "/", "//", "%", "**", "^"), self.rng.randrange(2, 8)))
        ends = ("an expression.", "an arithmetic expression such as (2 + 3) * 4.", "a formula.",
                f"an expression of numbers, {signs} and parentheses.",
                f"a formula with {signs}, sqrt() and abs().")  # fmt: skip
        return self._named(word, "expression", (parameter,), TEXTUAL[word], self.rng.choice(ends))

    def _named(
        self, word: str, family: str, parameters: tuple[Parameter, ...], synonyms: tuple[str, ...], end: str
    ) -> RandomTool:
        """Return a tool for the action `word`, named by that word or by an invented one."""
        rng = self.rng
        name = word.split("_")
        if self.invented:
            pieces = (*NOUNS, *FILLER, *NAMES, random_letters(rng), random_letters(rng) + random_letters(rng))
            name = rng.sample(pieces, rng.choice((1, 1, 2)))
            synonyms = (*synonyms, word.replace("_", " "))
        told = name if rng.random() < 0.5 else word.split("_")
        return self._tool(name, word, family, parameters, synonyms, f"{' '.join(told).capitalize()} {end}")

    def record(self) -> RandomTool:
        rng = self.rng
        action, noun = rng.choice(list(ACTIONS)), rng.choice(NOUNS)
        if rng.random() < 0.35:  # a word that no tool of the lexicon has
            noun = rng.choice((*NAMES, *FILLER, *NUMERIC, "env", "sum", "links", random_letters(rng)))
        extra = [rng.choice((*FILLER, *NOUNS)) for _ in range(rng.choices((0, 1, 2), (70, 22, 8))[0])]
        count = rng.choices((0, 1, 2, 3, 4), (8, 42, 28, 15, 7))[0]
        parameters: dict[str, Parameter] = {}
        for _ in range(count):
            parameter = self._parameter(required=not parameters or rng.random() < 0.65)
            parameters.setdefault(parameter.name, parameter)
        ends = (f"{noun}s.", f"a {noun}.", f"the {noun} of something.", f"one {noun} with the given values.")
        description = " ".join([action.capitalize(), *extra, rng.choice(ends)])
        words = [action, *extra, noun] if rng.random() < 0.85 else [action]
        if self.stems and rng.random() < 0.4:
            words = self._related(rng.choice(self.stems))
            description = f"{' '.join(words).capitalize()} {rng.choice(ends)}"
        elif rng.random() < 0.2:  # a long name of words that are nowhere else
            words = [rng.choice((w, random_word(rng), random_word(rng))) for w in words] + [random_word(rng)]
        self.stems.append(words)
        return self._tool(words, action, "record", tuple(parameters.values()), ACTIONS[action], description, noun)

    def _related(self, words: list[str]) -> list[str]:
        """Return another name that begins, continues or ends like this one, like the names of one server's tools."""
        rng = self.rng
        other = rng.choice((*NOUNS, *FILLER, *NAMES, random_word(rng)))
        kind = rng.random()
        if kind < 0.5:
            return [*words, *rng.choice(([other], ["with", f"{other}s"], ["by", other], ["and", other], ["as", other]))]
        if kind < 0.75:
            return [*words[:1], other, *words[1:]]
        return [rng.choice(list(ACTIONS)), *words[1:]] if len(words) > 1 else [*words, other]

    def _parameter(self, *, required: bool) -> Parameter:
        kind = self.rng.choices(("string", "integer", "number", "boolean", "enum", "array"), (55, 14, 8, 8, 10, 5))[0]
        group = "integer" if kind == "number" else kind
        choices = self.rng.choice(ENUMS) if kind == "enum" else ()
        return Parameter(self._single(group), kind, required, choices)

    def _tool(
        self,
        words: list[str],
        meaning: str,
        family: str,
        parameters: tuple[Parameter, ...],
        synonyms: tuple[str, ...],
        description: str,
        noun: str = "",
    ) -> RandomTool:
        name = self.join(words)
        if self.described and self.rng.random() < (0.7 if self.talkative else 0.15):
            description += " " + self._remark()
        schema: dict[str, Any] = {"type": "function", "function": {"name": name}}
        if self.described:
            schema["function"]["description"] = description
        schema["function"]["parameters"] = self._schema(parameters)
        return RandomTool(name, " ".join(words), meaning, family, description, parameters, synonyms, noun, schema)

    def _remark(self) -> str:
        rng = self.rng
        if rng.random() < 0.4:
            return rng.choice(
                ("Only within allowed values.", "Returns text.", "Fails on bad input.", "Use it with care.")
            )
        words = (*NOUNS, *FILLER, *NAMES, "of", "with", "and", "the", "a", "in", "for", "+ - * /", "** //", "sqrt()")
        said = [random_word(rng) if rng.random() < 0.2 else rng.choice(words) for _ in range(rng.choice((4, 8, 14)))]
        return " ".join(said).capitalize() + "."

    def _schema(self, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        properties = {p.name: self._property(p) for p in parameters}
        body: dict[str, Any] = {"type": "object", "properties": properties}
        if self.first_key == "properties":
            body = {"properties": properties, "type": "object"}
        required = [p.name for p in parameters if p.required]
        if required:
            body["required"] = required
        if self.closed:
            body["additionalProperties"] = False
        return {"$schema": "http://json-schema.org/draft-07/schema#", **body} if self.dialect else body

    def _property(self, parameter: Parameter) -> dict[str, Any]:
        types = {"enum": "string", "expression": "string"}
        schema: dict[str, Any] = {"type": types.get(parameter.kind, parameter.kind)}
        if parameter.choices:
            schema["enum"] = list(parameter.choices)
        if parameter.kind == "array":
            schema["items"] = {"type": "string"}
        if self.titles:
            schema["title"] = parameter.name.capitalize()
        if self.parameters_described:
            noun = self.rng.choice(NOUNS)
            schema["description"] = self.rng.choice(
                (
                    f"The {parameter.name}.",
                    f"The {parameter.name} of the {noun}",
                    f"{parameter.name.capitalize()} to use",
                )
            )
        return schema


def name_styles() -> tuple[Callable[[list[str]], str], ...]:
    """Return the ways to join a tool's words into its name, the commonest twice."""
    return (_snake, _snake, _camel, _kebab)


def _snake(words: list[str]) -> str:
    return "_".join(words)


def _kebab(words: list[str]) -> str:
    return "-".join(words)


def _camel(words: list[str]) -> str:
    return words[0] + "".join(word.capitalize() for word in words[1:])
