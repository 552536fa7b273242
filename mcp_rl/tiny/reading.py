"""Long results that have to be read: one row among many, a table within a page, and what only a second call shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.tiny.corpus import TextPiece
from mcp_rl.tiny.told import CHANGES, FIELD, call_of, done, needs_arguments, noun_of, with_everywhere
from mcp_rl.tiny.values import flat

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from mcp_rl.tiny.strangers import StrangeServer, Thing

_LONG_ANSWER = 120
_WHOLE = (
    "the {noun} whose {known} is '{value}'", "the {noun} with the {known} {value}", "the {noun} with {known} '{value}'",
    "the {noun} that has the {known} '{value}'",
)  # fmt: skip
_PART = (
    "the {noun} with '{value}' in its {known}", "the {noun} whose {known} contains '{value}'",
    "the {noun} whose {known} mentions '{value}'", "the {noun} in whose {known} '{value}' occurs",
    "the {noun} with a {known} that has '{value}' in it",
)  # fmt: skip
_WHICH = (
    "Which {noun} has the {known} '{value}'?", "What is the {key} of {said}?", "Tell me the {key} of {said}.",
    "What is {said} called?", "Who or what is {said}?", "Give me the {key} of {said}.",
)  # fmt: skip
_THOSE = (
    "Which {plural} have the {known} '{value}'?", "Name all {plural} whose {known} is '{value}'.",
    "Give me the {plural} with the {known} {value}, all of them.", "List every {noun} with {known} '{value}'.",
)  # fmt: skip


def read_conversation(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return a request whose answer stands among much else; None if the server has no tool that shows its things."""
    turns = _read(rng, server)
    return turns and with_everywhere(rng, server, turns)


def _read(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    if server.pages and rng.random() < 0.8:
        return _page(rng, server)
    shows = [role for role in ("list", "search") if role in server.tools]
    if not shows or (shows == ["list"] and needs_arguments(server, "list")):
        return None
    kind = rng.random()
    if kind < 0.35:
        return _row(rng, server)
    if kind < 0.45:
        return _those(rng, server)
    return _looked_up(rng, server)


def _conversation(request: str, calls: Sequence[tuple[Any, str]], answer: str) -> list[TextPiece]:
    pieces = [TextPiece("user", request[:1].upper() + request[1:])]
    for call, result in calls:
        pieces += [TextPiece("assistant", str(call), learn=True), TextPiece("tool", result)]
    return [*pieces, TextPiece("assistant", answer if len(answer) <= _LONG_ANSWER else "Done.", learn=True)]


@dataclass(frozen=True)
class _Clue:
    """What a request says of a thing instead of its key."""

    field: str
    said: str
    """Such as "the note whose title mentions 'x'"."""
    value: str
    whole: bool


def _clue(rng: random.Random, server: StrangeServer, thing: Thing, without: str = "") -> _Clue | None:
    """Return a field, or a word of one, that no other thing has; None if there is none."""
    records = [server.record(other) for other in server.things]
    mine = server.record(thing)
    names = [name for name, value in mine.items() if name != without and not isinstance(value, list | dict)]
    rng.shuffle(names)
    for name in names:
        value, known = flat(mine[name]), name.replace("_", " ")
        part = rng.choice(value.replace("/", " ").replace("_", " ").split() or [value])
        whole = name != server.key and (part == value or rng.random() < 0.5)
        text = value if whole else part.strip(".,")
        others = [flat(record.get(name, "")) for record in records if record is not mine and record != mine]
        if len(text) < 2 or any(text == other if whole else text in other for other in others):
            continue
        form = rng.choice(_WHOLE if whole else _PART)
        return _Clue(name, form.format(noun=noun_of(server, thing), known=known, value=text), text, whole)
    return None


def _shown(
    rng: random.Random, server: StrangeServer, thing: Thing, clue: _Clue, fields: Sequence[str]
) -> tuple[Any, str]:
    """Return a call that shows things, this one among them, and its result with these fields of each."""
    things = server.things
    records = [{name: value for name, value in server.record(each).items() if name in fields} for each in things]
    if "search" in server.tools and (needs_arguments(server, "list") or rng.random() < 0.3):
        mine = records[things.index(thing)]
        some = [mine, *rng.sample(records, rng.randrange(len(records)))]
        records = [record for record in records if any(record is each for each in some)]
        argument = next(iter(server.arguments["search"]()))
        return call_of(server, "search", {argument: clue.value}), server.render(records)
    if list(fields) == [server.key]:
        return call_of(server, "list", {}), server.render([record[server.key] for record in records])
    return call_of(server, "list", {}), server.render(records)


def _row(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return a question for one cell of a listing, whose row is told by another cell."""
    thing = rng.choice(server.things)
    wanted = rng.choice((server.key, *thing.fields, *thing.fields))
    clue = _clue(rng, server, thing, without=wanted)
    if clue is None:
        return None
    record = server.record(thing)
    words = {"noun": noun_of(server, thing), "known": clue.field.replace("_", " "), "value": clue.value}
    if wanted == server.key:
        form = rng.choice(_WHICH if clue.whole else _WHICH[1:])
        request = form.format(said=clue.said, key=server.key.replace("_", " "), **words)
    else:
        request = rng.choice(FIELD).format(field=wanted.replace("_", " "), said=clue.said)
    shown = _shown(rng, server, thing, clue, list(record))
    return _conversation(request, [shown], flat(record[wanted]))


def _those(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return a question for all things that share a value."""
    thing = rng.choice(server.things)
    names = [name for name, value in thing.fields.items() if not isinstance(value, list | dict)]
    if not names or needs_arguments(server, "list"):
        return None
    known = min(rng.sample(names, len(names)), key=lambda name: len({flat(t.fields[name]) for t in server.things}))
    value = thing.fields[known]
    found = [flat(other.key) for other in server.things if other.fields[known] == value]
    words = {"noun": server.noun, "plural": server.plural, "known": known.replace("_", " "), "value": flat(value)}
    shown = call_of(server, "list", {}), server.render([server.record(each) for each in server.things])
    return _conversation(rng.choice(_THOSE).format(**words), [shown], ", ".join(found))


def _looked_up(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return a question, or a wish for a change, about a thing whose key another call must find first."""
    roles = [role for role in server.tools if role == "get" or role.startswith("of ") or role in CHANGES]
    if not roles:
        return None
    role, thing = rng.choice(roles), rng.choice(server.things)
    wanted = role[3:] if role.startswith("of ") else rng.choice(list(thing.fields))
    clue = _clue(rng, server, thing, without=wanted)
    if clue is None:
        return None
    first = _shown(rng, server, thing, clue, [server.key] if clue.field == server.key else [server.key, clue.field])
    if role in CHANGES:
        change = CHANGES[role](rng, server, thing, clue.said)
        if change is None:
            return None
        request, arguments = change
        return _conversation(request, [first, (call_of(server, role, arguments), done(rng, server))], "Done.")
    name = next(iter(server.arguments[role]()))
    second = call_of(server, role, {name: [thing.key] if name != server.key else thing.key})
    record: Any = server.record(thing) if name == server.key else [server.record(thing)]
    result = server.render(record if role == "get" else thing.fields[wanted])
    request = rng.choice(FIELD).format(field=wanted.replace("_", " "), said=clue.said)
    return _conversation(request, [first, (second, result)], flat(thing.fields[wanted]))


# Pages

_CELL = (
    "what is the {field} of {row}", "which {field} does {row} have", "what {field} does {row} have",
    "what does the table say for {row} under {field}",
)  # fmt: skip
_NAMED = (
    "which {first} has the {field} {value}", "which {first} has a {field} of {value}",
    "what has the {field} {value}", "the {field} of which {first} is {value}",
)  # fmt: skip
_ON = (
    "On {page}, {asked}? {where}", "According to {page}, {asked}? {where}", "Read {page}: {asked}? {where}",
    "Tell me {asked} on {page}. {where}", "{where} On {page}, {asked}?",
)  # fmt: skip


def _page(rng: random.Random, server: StrangeServer) -> list[TextPiece] | None:
    """Return a question for a cell of a page's table; the page's address is told, or stands in an index."""
    index, *pages = server.pages
    page = rng.choice(pages)
    row, at = rng.choice(page.rows), rng.randrange(1, len(page.columns))
    values = [other[at] for other in page.rows]
    words = {"field": page.columns[at], "row": row[0], "first": page.columns[0], "value": row[at]}
    by_value = rng.random() < 0.4 and values.count(row[at]) == 1
    asked = rng.choice(_NAMED if by_value else _CELL).format(**words)
    answer = row[0] if by_value else row[at]
    chained = rng.random() < 0.4
    argument = next(iter(server.arguments["page"]()))
    calls = [(call_of(server, "page", {argument: page.address}), str(page))]
    if chained:
        calls = [(call_of(server, "page", {argument: index.address}), str(index)), *calls]
        where = rng.choice(("The site is '{}'.", "Start at '{}'.", "Begin with {}.", "All pages are linked on '{}'."))
        named = rng.choice(("the page '{}'", "the page called '{}'", "{}")).format(page.title)
        where = where.format(index.address)
    elif rng.random() < 0.5:
        named, where = rng.choice(("the page {}", "'{}'", "{}")).format(page.address), ""
    else:
        named = rng.choice(("the page '{}'", "the page called '{}'", "the document '{}'")).format(page.title)
        where = rng.choice(("The address of that page is '{}'.", "Its address is {}.", "It is at '{}'."))
        where = where.format(page.address)
    request = rng.choice(_ON).format(page=named, asked=asked, where=where).strip()
    return _conversation(request, calls, answer)
