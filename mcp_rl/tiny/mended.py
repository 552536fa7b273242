"""Wrong first calls on strangers' servers, with the complaint that a rollout makes about them, before the right call.

They carry no loss: they teach to take the name that a complaint offers, and to mend the argument that it names.
"""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.tiny.corpus import TextPiece
from mcp_rl.tiny.strangers import VERBS
from mcp_rl.toolserver.tools.complaint import complaint, unknown_tool
from mcp_rl.toolserver.tools.validation import Checker

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from mcp_rl.tiny.strangers import StrangeServer

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def mended(rng: random.Random, server: StrangeServer, turns: Sequence[TextPiece]) -> list[TextPiece]:
    """Return a conversation with one or two wrong calls before its first one; unchanged if it begins with an answer."""
    calls = parse_completion(turns[1].text).calls
    if not calls or calls[0].arguments is None:
        return list(turns)
    name, arguments = calls[0].name, calls[0].arguments
    wrong: list[TextPiece] = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        said, told = _wrong_arguments(rng, server, name, arguments) or _wrong_name(rng, server, name, arguments)
        wrong += [TextPiece("assistant", said), TextPiece("tool", told)]
    return [turns[0], *wrong, *turns[1:]]


def _wrong_name(rng: random.Random, server: StrangeServer, name: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """Return a call of a tool that is not there, named nearly as the right one, and the complaint about it."""
    names = [tool.name for tool in server.tools.values()]
    wrong = name
    while wrong in names:
        place = rng.choice(list(_WORD.finditer(name)) or [re.compile("$").search(name)])
        assert place is not None
        verbs = [verb for some in VERBS.values() for verb in some]
        word = rng.choice((*verbs, *verbs, *verbs, *server.noun.split(), server.words.word()))
        word = word.capitalize() if place.group()[:1].isupper() else word
        wrong = name[: place.start()] + word.replace(" ", "_") + name[place.end() :]
    return _call(wrong, arguments), unknown_tool(wrong, names)


def _wrong_arguments(
    rng: random.Random, server: StrangeServer, name: str, arguments: dict[str, Any]
) -> tuple[str, str] | None:
    """Return a call with one wrong argument or to another tool, and the complaint; None in half of all cases, or if the
    schema accepts it."""
    if rng.random() < 0.5:
        return None
    spoiled = copy.deepcopy(arguments)
    objects = [each for each in _objects(spoiled) if each]
    if not objects or rng.random() < 0.3:
        name = rng.choice([tool.name for tool in server.tools.values()])
    else:
        part = rng.choice(objects)
        key = rng.choice(list(part))
        value = part.pop(key)
        kind = rng.random()
        if kind < 0.5:
            part[server.words.word().replace(" ", "_")] = value
        elif kind < 0.75:
            part[key] = json.dumps(value) if not isinstance(value, str) else [value]
    schema = next(tool.schema for tool in server.tools.values() if tool.name == name)["function"]["parameters"]
    errors = Checker(schema).errors(spoiled)
    return (_call(name, spoiled), complaint(errors, list(schema["properties"]))) if errors else None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(inner)


def _call(name: str, arguments: dict[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
