"""Random words and values as they stand in strangers' servers: names, sentences, files, dates, codes, statements."""

from __future__ import annotations

import functools
import json
import re
import string
from typing import TYPE_CHECKING, Any

from mcp_rl.tiny.lexicon import COMMON, ENUMS, FILLER, FURTHER, NAMES, NOUNS
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.tiny.tools import random_expression, random_letters, random_number, random_word

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    Values = Callable[[], Any]
    """A maker of values of one kind."""


_CONTINENTS = ("Europe", "America", "Asia", "Africa", "Australia", "Pacific", "Etc")


class Vocabulary:
    """The words of one server: its names, arguments and values share some, so copying needs more than one token."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._shared = [self._fresh() for _ in range(rng.choice((4, 8, 16)))]

    def word(self) -> str:
        """Return one of the server's words, or any other one."""
        return self.rng.choice(self._shared) if self.rng.random() < 0.3 else self._fresh()

    def _fresh(self) -> str:
        """Return a word of the lexicon, a word that means nothing, or pieces of words: every token has its turn."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.25:
            return rng.choice((*NOUNS, *FILLER, *NAMES))
        if kind < 0.55:
            return rng.choice((*COMMON, *FURTHER))
        if kind < 0.74:
            return random_word(rng)
        if kind < 0.79:
            return random_letters(rng)
        return "".join(rng.choice(_pieces()) for _ in range(rng.choice((1, 2, 2, 2, 3))))

    def title(self) -> str:
        """Return a name of one to three words in one of the ways that names are written."""
        rng, words = self.rng, [self.word() for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3)))]
        kind = rng.random()
        if kind < 0.35:
            return " ".join(words)
        if kind < 0.6:
            return " ".join(word.capitalize() for word in words)
        name = rng.choice("_-. ").join(words)
        return name if kind < 0.8 else name + rng.choice("_-. ") + str(rng.randrange(10 ** rng.choice((1, 2, 3))))

    def sentence(self) -> str:
        """Return three to seven words, some of them function words."""
        rng, words = self.rng, [self.word() for _ in range(self.rng.choice((3, 4, 5, 7)))]
        for at in range(1, len(words)):
            if rng.random() < 0.3:
                words[at] = rng.choice(("the", "a", "of", "and", "in", "with", "is", "two", "has"))
        text = " ".join(words)
        return (text.capitalize() if rng.random() < 0.6 else text) + rng.choice(("", "", "."))

    def file_name(self) -> str:
        rng = self.rng
        name = rng.choice("_-").join(self.word() for _ in range(rng.choice((1, 1, 2))))
        if rng.random() < 0.4:
            name += rng.choice("_-") + str(rng.randrange(100))
        return name + rng.choice(("", ".txt", ".md", ".json", ".py", ".csv", f".{random_letters(rng)}"))

    def folder(self) -> str:
        """Return an absolute path of one to four folders; in some, a folder's name begins as the one before it."""
        words = [self.word() for _ in range(self.rng.choice((1, 2, 2, 3, 4)))]
        if self.rng.random() < 0.25:  # as in /tmp/tmp8xk2, where the same token is followed by two others
            at = self.rng.randrange(len(words))
            words.insert(at + 1, words[at] + self.rng.choice((random_letters(self.rng), self.code()[:8])))
        return "/" + "/".join(words)

    def code(self) -> str:
        """Return an identifier of 4 to 40 digits or letters."""
        signs = self.rng.choice((string.hexdigits[:16], string.ascii_uppercase + string.digits, string.digits))
        return "".join(self.rng.choice(signs) for _ in range(self.rng.choice((4, 6, 7, 7, 8, 8, 12, 40))))

    def compound(self) -> str:
        """Return a value of parts, such as a zone, a reference or a version."""
        parts = [self.word() for _ in range(self.rng.choice((2, 2, 3)))]
        parts = [part.capitalize() if self.rng.random() < 0.6 else part for part in parts]
        return self.rng.choice(("/", "/", "/", ":", ".", "::", "_")).join(parts)

    def _zone(self) -> str:
        """Return a name such as time zones have."""
        place = self.rng.choice((FURTHER, NAMES, NOUNS))
        words = [self.rng.choice(place).capitalize() for _ in range(self.rng.choice((1, 1, 2)))]
        return self.rng.choice(_CONTINENTS) + "/" + "_".join(words)

    def _date(self) -> str:
        return f"{self.rng.randrange(1970, 2040)}-{self.rng.randrange(1, 13):02d}-{self.rng.randrange(1, 29):02d}"

    def _clock(self) -> str:
        return f"{self.rng.randrange(24):02d}:{self.rng.randrange(60):02d}"

    def _address(self) -> str:
        rng, host = self.rng, f"{self.word()}.{self.rng.choice(('com', 'org', 'io', 'example'))}"
        if rng.random() < 0.4:
            return f"{self.word()}@{host}"
        return f"http{rng.choice(('', 's'))}://{host}/" + "/".join(self.word() for _ in range(rng.randrange(3)))

    def _statement(self) -> str:
        """Return a query, a pattern or a formula, such as servers take in one argument."""
        rng, name, other, value = self.rng, self.word(), self.word(), self.word()
        forms = (
            f"SELECT {name} FROM {other}",
            f"SELECT * FROM {other} WHERE {name} = '{value}'",
            f"SELECT COUNT(*) FROM {other}",
            f"{name} = {rng.randrange(100)} AND {other} > {rng.randrange(100)}",
            f"{name}:{value} {other}",
            f"*.{name}",
            f"**/{name}*",
            f"^{name}.*{value}$",
            random_expression(rng),
        )
        return rng.choice(forms)

    def text(self) -> Callable[[], str]:
        """Return a maker of texts of one random form."""
        forms = (
            *(self.title, self.title, self.title, self.word, self.word, self.sentence, self.sentence, self.compound),
            *(self._zone, self.file_name, self._date, self._clock, self._address, self.code, self._statement),
        )
        return self.rng.choice(forms)

    def values(self, root: str) -> Values:
        """Return a maker of values of one random kind. `root` is the folder that the server's paths are in."""
        rng = self.rng
        kind = rng.choices(("text", "number", "whole", "flag", "choice", "texts", "object"), (50, 10, 14, 7, 9, 8, 2))[
            0
        ]
        match kind:
            case "number":
                return Numbers(rng)
            case "whole":
                most = 10 ** rng.choice((1, 2, 3, 5))
                return lambda: rng.randrange(most)
            case "flag":
                return lambda: rng.random() < 0.5
            case "choice":
                own = [self.word() for _ in range(rng.choice((2, 3, 4)))]
                return OneOf(rng, rng.choice(ENUMS) if rng.random() < 0.5 else own)
        form = self.text() if rng.random() < 0.85 else (lambda: f"{root}/{self.file_name()}")
        if kind == "texts":
            return lambda: [form() for _ in range(rng.choice((1, 2, 2, 3)))]
        if kind == "object":
            first, second = self.word(), self.word()
            return lambda: {first: form(), second: rng.randrange(100)}
        return form


@functools.cache
def _pieces() -> tuple[str, ...]:
    """Return the tokenizer's tokens that are parts of words."""
    return tuple(sorted(token for token in build_tokenizer().get_vocab() if re.fullmatch(r"[A-Z]?[a-z]+", token)))


class OneOf:
    """A maker of values out of a few."""

    def __init__(self, rng: random.Random, choices: Sequence[str]) -> None:
        self.rng, self.choices = rng, tuple(choices)

    def __call__(self) -> str:
        return self.rng.choice(self.choices)


class Numbers:
    """A maker of numbers, whole or not."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __call__(self) -> int | float:
        number: int | float = json.loads(random_number(self.rng))
        return number


def schema_of(value: Any) -> dict[str, Any]:
    """Return the JSON schema of values like this one."""
    if isinstance(value, dict):
        properties = {name: schema_of(entry) for name, entry in value.items()}
        return {"type": "object", "properties": properties, "required": list(value)}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    return {"type": {bool: "boolean", int: "integer", float: "number", str: "string"}[type(value)]}


def flat(value: Any) -> str:
    """Return a value as plain text: a text itself, JSON of anything else."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
