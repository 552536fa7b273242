"""Goals in ordinary words on strangers' servers: no tool is named, and its name has to be found in the listing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.tiny.corpus import ExampleCall, TextPiece
from mcp_rl.tiny.reading import LONG_ANSWER, in_words
from mcp_rl.tiny.strangers import plural_of
from mcp_rl.tiny.values import flat

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from mcp_rl.tiny.strangers import StrangeServer, Thing

_SAYS = ("content", "text", "body", "note", "message", "comment")

_FIELD = (
    "What is the {field} of {said}?", "Tell me the {field} of {said}.", "I need the {field} of {said}.",
    "Which {field} does {said} have?", "What {field} does {said} have?", "I would like to know the {field} of {said}.",
    "Give me the {field} of {said}, word for word.", "Give me the {field} of {said}.",
)  # fmt: skip
_POINTED = (
    "What is the {field} of the {noun} whose {known} is '{value}'?",
    "Tell me the {field} of the {noun} with the {known} {value}.",
)
_LIST = ("Which {plural} are there?", "Show me all {plural}.", "How many {plural} are there?")
_SEARCH = ("Which {plural} mention '{text}'?", "Find {plural} about {text}.", "Is there a {noun} about '{text}'?")
_DELETE = (
    "I no longer need {said}.", "Get rid of {said}.", "Please let {said} go.", "Remove {said}.",
    "There is no more use for {said}.", "{said} can go for good.", "Nobody needs {said}; all the others should stay.",
)  # fmt: skip
_REWRITE = ("I want {said} to say only this: '{value}'.", "All that {said} says should be: '{value}'.")
"""For a field that holds what a thing says."""
_UPDATE = (
    "The {field} of {said} should be {value}.", "Change the {field} of {said} to '{value}'.",
    "Set the {field} of {said} to {value}.", "I want {said} to have the {field} '{value}'.",
)  # fmt: skip
_CREATE = ("There should be a new {noun} called '{key}'", "I want a new {noun} '{key}'", "Make a {noun} called {key}")
_APPEND = (
    "{said} should also have the {one} '{value}'.", "'{value}' should be among the {listed} of {said}.",
    "Put '{value}' to the {listed} of {said}.", "One more of the {listed} of {said}: '{value}'.",
)  # fmt: skip
_RENAME = (
    "{said} should be called '{new}' from now on.", "From now on, {said} should go by the name '{new}'.",
    "Let '{new}' be the new name of {said}.",
)  # fmt: skip
_PLACE = (
    "There should be a new {noun} called '{name}' in the {noun} '{inside}'.",
    "I want a new {noun} '{name}' in the {noun} '{inside}'.", "Inside of {inside}, make the {noun} {name}.",
)  # fmt: skip


def call_of(server: StrangeServer, role: str, arguments: Mapping[str, Any]) -> ExampleCall:
    return ExampleCall(server.tools[role], {n: json.dumps(v, ensure_ascii=False) for n, v in arguments.items()})


def enumerated(parts: Sequence[str], last: str) -> str:
    return last.join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def done(rng: random.Random, server: StrangeServer) -> str:
    """Return what a server says that changed something."""
    told = (f"{server.words.word().capitalize()} done", f"Successfully {server.words.word()} {server.words.word()}")
    return rng.choice(("OK", "Done.", *told, '{"ok": true}', "null"))


def told_conversation(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return a request that names no tool, and what solves it; None if the drawn tool has no goal in words."""
    role = rng.choice(list(server.tools))
    if role.startswith("of ") or role == "get":
        return _field_goal(rng, server, role)
    if role in ("list", "search"):
        return _listing(rng, server, role)
    change = _change(rng, server, role)
    if change is None:
        return None
    request, arguments = change
    request = request[:1].upper() + request[1:]
    return _one_call(request, call_of(server, role, arguments), done(rng, server), "Done.")


def _listing(rng: random.Random, server: StrangeServer, role: str) -> list[TextPiece] | None:
    """Return a question for things, answered with their names; None if the tool needs what nobody would say."""
    noun, plural, keys = server.noun, server.plural, [thing.key for thing in server.things]
    if role == "list" and _needs_arguments(server, role):
        return None
    if rng.random() < 0.5:
        return _shown_by(rng, server, role)
    if role == "list":
        plural = plural_of(server.called) if server.kind_field else plural
        request = rng.choice(_LIST).format(plural=plural)
        answer = str(len(keys)) if request.startswith("How many") else ", ".join(map(str, keys))
        return _one_call(request, call_of(server, role, {}), server.render(keys), answer)
    text = server.words.word()
    found = [thing.key for thing in rng.sample(server.things, rng.randrange(len(server.things)))]
    request = rng.choice(_SEARCH).format(plural=plural, noun=noun, text=text)
    call = call_of(server, role, {next(iter(server.arguments[role]())): text})
    return _one_call(request, call, server.render(found), ", ".join(map(str, found)) or "None.")


def _shown_by(rng: random.Random, server: StrangeServer, role: str) -> list[TextPiece]:
    """Return a question for a field of one thing that a listing or a search shows, whole records or the field alone."""
    thing = rng.choice(server.things)
    wanted = rng.choice(list(thing.fields))
    arguments: dict[str, Any] = {}
    shown = server.things
    if role == "search":
        arguments = {next(iter(server.arguments[role]())): str(thing.key)}
        shown = [thing, *rng.sample(server.things, rng.choice((0, 0, 1, len(server.things) - 1)))]
        shown = sorted({id(other): other for other in shown}.values(), key=server.things.index)
    whole = rng.random() < 0.7
    records = [server.record(each) if whole else {server.key: each.key, wanted: each.fields[wanted]} for each in shown]
    request = rng.choice(_FIELD).format(field=in_words(wanted), said=_said(rng, server, thing))
    return _one_call(request, call_of(server, role, arguments), server.render(records), flat(thing.fields[wanted]))


def _needs_arguments(server: StrangeServer, role: str) -> bool:
    return bool(server.tools[role].schema["function"]["parameters"].get("required"))


def _change(rng: random.Random, server: StrangeServer, role: str) -> tuple[str, dict[str, Any]] | None:
    """Return a request for a change and the arguments of the call that makes it; None if it has no words."""
    arguments, thing = server.arguments[role](), rng.choice(server.things)
    said, first = _said(rng, server, thing), next(iter(arguments), "")
    if role == "delete":
        wanted = thing.key if first == server.key else [thing.key]
        return rng.choice(_DELETE).format(said=said), {first: wanted}
    if role == "update":
        name, value = list(arguments.items())[-1]
        words = {"field": in_words(name), "said": said, "value": flat(value)}
        ways = (*_UPDATE, *(_REWRITE if name in _SAYS else ()))
        return rng.choice(ways).format(**words), {server.key: thing.key, name: value}
    if role == "create":
        return _creation(rng, server, arguments)
    if role == "append":
        value = server.words.sentence().rstrip(".")
        one = server.listed[:-1] if server.listed.endswith("s") else server.listed
        request = rng.choice(_APPEND).format(said=said, one=one, listed=server.listed, value=value)
        if first == server.key:
            return request, {server.key: thing.key, server.listed: [value]}
        name, values = arguments[server.listed][0]
        return request, {server.listed: [{name: thing.key, values: [value]}]}
    if role == "rename":
        new = list(arguments.values())[-1]
        if isinstance(thing.key, str) and thing.key.startswith("/"):  # it stays in its folder
            name, folder = str(new).rsplit("/", 1)[-1], thing.key.rsplit("/", 1)[0]
            request = rng.choice(_RENAME).format(said=said, new=name)
            return request, {first: thing.key, list(arguments)[-1]: f"{folder}/{name}"}
        return rng.choice(_RENAME).format(said=said, new=new), {first: thing.key, list(arguments)[-1]: new}
    if role == "place":
        inside, name = arguments[first].rsplit("/", 1)
        noun = rng.choice(("folder", "directory", server.tools[role].words.split()[-1]))
        return rng.choice(_PLACE).format(noun=noun, name=name, inside=inside), arguments
    return None


def _creation(rng: random.Random, server: StrangeServer, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a request for one new thing with all its values, and the arguments as they are or as a list of one."""
    name = next(iter(arguments))
    several = isinstance(arguments[name], list) and server.key not in arguments
    new = arguments[name][0] if several else arguments
    noun = new.get(server.kind_field, server.noun)
    fields = [
        f"the {in_words(n)} '{', '.join(map(flat, v)) if isinstance(v, list) else flat(v)}'"
        for n, v in new.items()
        if n not in (server.key, server.kind_field)
    ]
    request = rng.choice(_CREATE).format(noun=noun, key=new[server.key])
    request += (rng.choice((" with ", ", with ")) + enumerated(fields, " and ") if fields else "") + "."
    return request, {name: [new]} if several else new


def _field_goal(rng: random.Random, server: StrangeServer, role: str) -> list[TextPiece]:
    """Return a question for a field of one thing, which sometimes has to be found by another field first."""
    thing = rng.choice(server.things)
    wanted = role[3:] if role != "get" else rng.choice(list(thing.fields))
    name = next(iter(server.arguments[role]()))
    several = name != server.key
    call = call_of(server, role, {name: [thing.key] if several else thing.key})
    record: Any = [server.record(thing)] if several else server.record(thing)
    result, answer = server.render(record if role == "get" else thing.fields[wanted]), flat(thing.fields[wanted])
    known = _pointer(rng, server, thing, wanted)
    listable = "list" in server.tools and not _needs_arguments(server, "list")
    if known and listable and rng.random() < 0.25:
        value, told = flat(thing.fields[known]), in_words(known)
        request = rng.choice(_POINTED).format(
            field=in_words(wanted), noun=_noun(server, thing), known=told, value=value
        )
        listing = [{server.key: other.key, known: other.fields[known]} for other in server.things]
        found = [
            TextPiece("assistant", str(call_of(server, "list", {})), learn=True),
            TextPiece("tool", server.render(listing)),
        ]
        user, *rest = _one_call(request, call, result, answer)
        return [user, *found, *rest]
    request = rng.choice(_FIELD).format(field=in_words(wanted), said=_said(rng, server, thing))
    return _one_call(request, call, result, answer)


def _pointer(rng: random.Random, server: StrangeServer, thing: Thing, wanted: str) -> str | None:
    """Return another field whose value is this thing's alone."""
    others = [
        name
        for name, value in thing.fields.items()
        if name != wanted and not isinstance(value, list | dict)
        and sum(other.fields[name] == value for other in server.things) == 1
    ]  # fmt: skip
    return rng.choice(others) if others else None


def _noun(server: StrangeServer, thing: Thing) -> str:
    return str(thing.fields.get(server.kind_field, server.noun))


def _said(rng: random.Random, server: StrangeServer, thing: Thing) -> str:
    forms = ("the {noun} '{key}'", "the {noun} called '{key}'", "{noun} {key}", "'{key}'")
    return rng.choice(forms).format(noun=_noun(server, thing), key=thing.key)


def _one_call(request: str, call: ExampleCall, result: str, answer: str) -> list[TextPiece]:
    return [
        TextPiece("user", request),
        TextPiece("assistant", str(call), learn=True),
        TextPiece("tool", result),
        TextPiece("assistant", answer if len(answer) <= LONG_ANSWER else "Done.", learn=True),
    ]
