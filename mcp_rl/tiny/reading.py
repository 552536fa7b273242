"""Questions for a named field of a result: to find the name in a record and to answer with what it holds.

Which field is asked for is one token of a request, far before the answer; so conversations hold several such requests,
or several questions about one result (docs/tiny.md).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_rl.tiny.corpus import TextPiece
from mcp_rl.tiny.lexicon import FILLER, NOUNS, PARAMETERS
from mcp_rl.tiny.values import flat

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from mcp_rl.tiny.strangers import StrangeServer

LONG_ANSWER = 120
"""Characters; no longer value is an answer."""
_LONG_RESULT = 700
_ORDINALS = ("first", "second", "third", "fourth")
ASKED = (
    "Tell me the {field}{of}.", "What is the {field}{of}?", "I need the {field}{of}.", "Give me the {field}{of}.",
    "Answer with the {field}{of} only.", "I would like to know the {field}{of}.", "Say the {field}{of}.",
)  # fmt: skip
_NEXT = (*ASKED, "And the {field}{of}?", "The {field}{of}, please.", "Now the {field}{of}.")
_HERE = ("", "", " in the result", " in that result", " that comes back")
_THEM = ("of them", "of these", "of the {plural}", "of the {plural} in the result", "in the result", "{noun}")


def field_name(rng: random.Random, server: StrangeServer) -> str:
    """Return a name as fields have it: a word, or several that are joined."""
    pool = (*NOUNS, *FILLER, *PARAMETERS["string"], *PARAMETERS["integer"])
    name = rng.choice(pool) if rng.random() < 0.5 else server.words.word()
    kind = rng.random()
    if kind < 0.12:
        return f"{name}_{server.words.word()}"
    return f"{name}{server.words.word().capitalize()}" if kind < 0.16 else name


def in_words(name: str) -> str:
    """Return a field's name in words."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda found: " " + found[1].lower(), name).replace("_", " ")


def records(rng: random.Random, server: StrangeServer) -> list[dict[str, Any]]:
    """Return one to four records with the same two to eight fields; in half of the cases what the server keeps."""
    count = rng.choice((1, 1, 1, 1, 1, 2, 3, 4))
    things = rng.sample(server.things, min(count, len(server.things)))
    if rng.random() < 0.5 and things[0].fields:
        return [server.record(thing) for thing in things]
    names = dict.fromkeys(field_name(rng, server) for _ in range(rng.choice((2, 2, 3, 3, 4, 5, 6, 8))))
    makers = {name: server.words.values("/" + server.words.word()) for name in names}
    return [{name: make() for name, make in makers.items()} for _ in range(count)]


def questions(
    rng: random.Random, server: StrangeServer, shown: list[dict[str, Any]], most: int
) -> list[tuple[str, str]]:
    """Return up to `most` questions for fields of these records, each with its answer."""
    places = [(at, name) for at, record in enumerate(shown) for name in record]
    asked: list[tuple[str, str]] = []
    for at, name in rng.sample(places, min(most, len(places))):
        answer = flat(shown[at][name])
        if answer and len(answer) <= LONG_ANSWER:
            form = rng.choice(_NEXT if asked else ASKED)
            asked.append((form.format(field=in_words(name), of=_which(rng, server, shown, at, name)), answer))
    return asked


def _which(rng: random.Random, server: StrangeServer, shown: list[dict[str, Any]], at: int, wanted: str) -> str:
    """Return words that tell one of the records from the others."""
    key, record = next(iter(shown[at])), shown[at]
    known = key != wanted and sum(flat(other[key]) == flat(record[key]) for other in shown) == 1
    if known and type(record[key]) in (str, int) and rng.random() < (0.6 if len(shown) > 1 else 0.3):
        form = rng.choice((" of {noun} '{key}'", " of the {noun} '{key}'", " of '{key}'", " of {key}"))
        return form.format(noun=server.noun, key=flat(record[key]))
    if len(shown) == 1:
        return rng.choice(_HERE)
    return f" of the {_ORDINALS[at]} " + rng.choice(_THEM).format(noun=server.noun, plural=server.plural)


def reading(rng: random.Random, server: StrangeServer, errand: Callable[[], tuple[str, str]]) -> list[TextPiece] | None:
    """Return a call, its result, and questions about it; None where a result would be long.

    `errand` makes a sentence that asks for a call, and the call. A question comes after the result, or with the next
    errand, which has its own result.
    """
    pieces: list[TextPiece] = []
    more, again = rng.choice((0, 0, 1, 2, 4)), rng.random() < 0.5
    for _ in range(1 + more // 2 if again else 1):
        (request, call), shown = errand(), records(rng, server)
        single = len(shown) == 1 and rng.random() < 0.9
        result = server.render(shown[0] if single else shown)
        asked = questions(rng, server, shown, 1 if again else 1 + more)
        if not asked or len(result) > _LONG_RESULT:
            return None
        (question, answer), *others = asked
        request = request if request.endswith("?") else request.rstrip(".") + "."
        pieces += [TextPiece("user", f"{request} {question}"), TextPiece("assistant", call, learn=True)]
        pieces += [TextPiece("tool", result), TextPiece("assistant", answer, learn=True)]
        for question, answer in others:
            pieces += [TextPiece("user", question), TextPiece("assistant", answer, learn=True)]
    return pieces
