"""Conversations on strangers' servers: calls that are spelled out; goals in ordinary words are in `told.py`.

They teach to copy names and values that no lexicon has, to find a tool among others of nearly the same name, to write
nested arguments, to carry a value out of a long result into the next call, and to answer with one field of it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from mcp_rl.tiny.corpus import LINKS, ExampleCall, TextPiece
from mcp_rl.tiny.mended import mended
from mcp_rl.tiny.reading import ASKED, in_words, reading
from mcp_rl.tiny.told import call_of, done, enumerated, told_conversation
from mcp_rl.tiny.values import flat

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from mcp_rl.tiny.strangers import StrangeServer

_LONG_RESULT = 60
"""Characters of a result that is repeated as the answer; a longer one is acknowledged."""


_MENDED = 1 / 6
READ = 0.4
"""Share of conversations with questions for fields of a result."""


def strange_conversation(rng: random.Random, server: StrangeServer, read: float = READ) -> list[TextPiece]:
    """Return one episode on a made-up server; one of six begins with a call that is refused.

    `read` is the share of episodes that ask for fields of a result.
    """
    turns = (reading_conversation(rng, server) if rng.random() < read else None) or _conversation(rng, server)
    return mended(rng, server, turns) if rng.random() < _MENDED else turns


def _conversation(rng: random.Random, server: StrangeServer) -> list[TextPiece]:
    kind = rng.random()
    if kind < 0.34:
        return _spelled(rng, server, 1)
    if kind < 0.46:
        return _spelled(rng, server, rng.choice((2, 2, 2, 3, 4)))
    if kind < 0.53 and (carried := _carried(rng, server)):
        return carried
    if kind < 0.55:
        word = rng.choice((server.words.word(), server.words.title()))
        asked = rng.choice(("Reply with the single word '{}'.", "Say '{}' and nothing else.", "Answer with {}."))
        return [TextPiece("user", asked.format(word)), TextPiece("assistant", word, learn=True)]
    return told_conversation(rng, server) or _spelled(rng, server, 1)


def reading_conversation(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return calls that are spelled out, with questions for fields of their results; None where one would be long."""

    def errand() -> tuple[str, str]:
        role = rng.choice(list(server.tools))
        call = call_of(server, role, server.arguments[role]())
        return _clause(rng, call), str(call)

    return reading(rng, server, errand)


# Spelled-out calls


def _spelled(rng: random.Random, server: StrangeServer, count: int) -> list[TextPiece]:
    """Return calls whose tools and arguments the request names, one after the other."""
    roles = rng.choices(list(server.tools), k=count)
    calls = [call_of(server, role, server.arguments[role]()) for role in roles]
    request = _in_turn(rng, [_clause(rng, call) for call in calls])
    results = [_result(rng, server, role, call) for role, call in zip(roles, calls, strict=True)]
    answer = _closing(server.render(results[-1]))
    if rng.random() < 0.3 and (found := _field_of(rng, results[-1])):
        name, answer = found
        request = request if request.endswith("?") else request.rstrip(".") + "."
        request += " " + rng.choice(ASKED).format(field=name, of="")
    pieces = [TextPiece("user", request)]
    for call, result in zip(calls, results, strict=True):
        pieces += [TextPiece("assistant", str(call), learn=True), TextPiece("tool", server.render(result))]
    return [*pieces, TextPiece("assistant", answer, learn=True)]


def _carried(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return two calls, of which the second takes the result of the first, or a field of it; None without arguments."""
    roles = [role for role, make in server.arguments.items() if make()]
    if not roles:
        return None
    roles = [rng.choice(list(server.tools)), rng.choice(roles)]
    first = call_of(server, roles[0], server.arguments[roles[0]]())
    result = _result(rng, server, roles[0], first)
    found = _field_of(rng, result) if isinstance(result, dict | list) else None
    if isinstance(result, dict | list) and (not found or found[1][:1] in "[{"):
        return None
    arguments = server.arguments[roles[1]]()
    place = rng.choice(list(arguments))
    whole, said = arguments[place], rng.choice(("the result", "that result", "the result of that"))
    is_number = type(whole) is int and found is not None and re.fullmatch(r"-?[1-9]\d{0,8}|0", found[1])
    if found and (is_number or isinstance(whole, str)):
        whole, said = int(found[1]) if is_number else found[1], f"the {found[0]} in that result"
    else:
        result = whole
    second = call_of(server, roles[1], {**arguments, place: whole})
    request = _in_turn(rng, [_clause(rng, first), _clause(rng, second, {place: said})])
    last = server.render(_result(rng, server, roles[1], second))
    return [
        TextPiece("user", request),
        TextPiece("assistant", str(first), learn=True),
        TextPiece("tool", server.render(result)),
        TextPiece("assistant", str(second), learn=True),
        TextPiece("tool", last),
        TextPiece("assistant", _closing(last), learn=True),
    ]


def _in_turn(rng: random.Random, clauses: Sequence[str]) -> str:
    """Return one request of clauses that follow each other."""
    request = clauses[0]
    for clause in clauses[1:]:
        link = rng.choice(LINKS)
        request = request.rstrip(".?") + link + (clause if link.endswith(". ") else clause[:1].lower() + clause[1:])
    if len(clauses) > 1 and rng.random() < 0.4:
        request = rng.choice(("First ", "Start like this: ")) + request[:1].lower() + request[1:]
    return request


_BARE = (
    "Use {name}.", "Call {name}.", "Please {words}.", "{Words}.", "{described}.", "{described}", "Run {name}.",
    "Invoke {name}.",
    "{name}", "Call the tool {name}.", "Use {name} without arguments.", "Run {name} and tell me what it says.",
)  # fmt: skip
_FRAMES = (
    "Use {name} with {named}.", "Call {name} with {named}.", "Run {name} on {named}.", "Invoke {name}, where {named}.",
    "{described}: {named}.", "{described}: {named}", "{described} {values}.",
    "Please {words}, {named}.", "{Words} with {named}.", "Can you {words} using {named}?",
    "What does {name} return for {named}?", "{name}({named})", "With {named}, run {name}.", "Run {name}: {named}.",
    "Please {words} for {values}.", "{Words} {values}.", "Apply {name} to {values}.", "Use {name} for {values}.",
    "{words} {values}", "Tell me what {name} gives for {values}.", "I want to {words} {values}.",
    "Call the tool {name}: {json}.", "Call {name} with {json}.",
    "I need what {name} returns for {named}.", "Given {named}, what is the result of {name}?",
    "I want the result of {name} for {named}.", "With {named}, what does {name} say?", "Send {values} to {name}.",
    "{words}, {named}", "{name} {values}",
)  # fmt: skip
_PAIRS = ("{} = {}", "{}={}", "{}: {}", "{} is {}", "{} set to {}", "{} {}")


def _clause(rng: random.Random, call: ExampleCall, said: Mapping[str, str] | None = None) -> str:
    """Return a sentence that names the tool and its arguments, some of them by the words of `said`."""
    tool, spoken = call.tool, {name: json.loads(value) for name, value in call.arguments.items()}
    quote, pair, last = rng.choice(("'", "'", "'", '"', "")), rng.choice(_PAIRS), rng.choice((" and ", " and ", ", "))
    written = {name: f"{quote}{v}{quote}" if isinstance(v, str) else flat(v) for name, v in spoken.items()}
    written |= said or {}
    frames = [frame for frame in _FRAMES if "{json}" not in frame] if said else _FRAMES
    return rng.choice(frames if spoken else _BARE).format(
        name=tool.name,
        words=tool.words,
        Words=tool.words.capitalize(),
        described=tool.description.split(".")[0],
        named=enumerated([pair.format(name, value) for name, value in written.items()], last),
        values=enumerated(list(written.values()), last),
        json=json.dumps(spoken, ensure_ascii=False),
    )


def _result(rng: random.Random, server: StrangeServer, role: str, call: ExampleCall) -> Any:
    """Return one of the things that the server could answer: records, keys, a sentence, an error."""
    if rng.random() < 0.05:
        failed = f"{server.words.word().capitalize()} failed: {server.words.sentence()}"
        return rng.choice((f"Error: no such {server.words.word()}", failed, "Error: access denied"))
    thing = rng.choice(server.things)
    record = server.record(thing)
    if role == "get":
        return record
    if role in ("list", "search"):
        whole = rng.random() < 0.5
        return [server.record(other) if whole else other.key for other in server.things]
    if role in ("create", "update", "delete", "append", "rename", "place"):
        return rng.choice((record, done(rng, server), f"{server.words.word().capitalize()} {thing.key}"))
    value = rng.choice([json.loads(value) for value in call.arguments.values()] or [server.words.word()])
    forms = (
        *(
            record,
            flat(value),
            server.words.sentence(),
            server.words.title(),
            rng.randrange(10 ** rng.choice((1, 3, 6))),
        ),
        {server.words.word(): server.words.sentence(), server.words.word(): value},
        [server.words.title() for _ in range(rng.choice((1, 3, 8)))],
        "\n".join(server.words.sentence() for _ in range(rng.choice((2, 5, 12)))),
    )
    return rng.choice(forms)


def _field_of(rng: random.Random, result: Any) -> tuple[str, str] | None:
    """Return a field of a result and its value, with the entry's number in a list of several."""
    where = ""
    if isinstance(result, list) and result and isinstance(result[0], dict):
        at = rng.randrange(min(len(result), 3))
        where, result = f" of the {('first', 'second', 'third')[at]} of them", result[at]
    if not isinstance(result, dict):
        return None
    name = rng.choice(list(result))
    return in_words(name) + where, flat(result[name])


def _closing(result: str) -> str:
    return result if len(result) <= _LONG_RESULT and "\n" not in result else "Done."
