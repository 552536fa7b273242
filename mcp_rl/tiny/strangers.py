"""Random servers as strangers write them: things with fields, tools that read and change them, and what they answer.

No real server's listing or task is among them: every name, word and value is made up.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.tiny.lexicon import ACTIONS, FILLER, NOUNS, PARAMETERS
from mcp_rl.tiny.tools import RandomTool, name_styles
from mcp_rl.tiny.values import Numbers, OneOf, Vocabulary, flat, schema_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from mcp_rl.tiny.values import Values

    Parameters = dict[str, tuple[Values, bool]]
    """By name: a maker of values, and whether the argument is required."""

_LONGEST_NAME = 60
_GENERAL = ("item", "entry", "record", "object", "entity", "node", "element", "resource", "card", "document")
"""Nouns of tools for things that people call by their kind."""
_OTHER_NOUNS = {
    "folder": "directory", "directory": "folder", "picture": "image", "image": "picture", "task": "todo",
    "message": "mail", "user": "account", "person": "contact", "place": "location", "price": "quote",
}  # fmt: skip
"""The noun in the names of tools, by the word that people use in a request."""
VERBS: dict[str, tuple[str, ...]] = {
    "create": ("add", "make", "new", "write", "insert", "put"),
    "get": ("read", "open", "fetch", "show", "describe"),
    "list": ("get", "read", "show", "all"),
    "search": ("find", "query", "lookup", "match"),
    "update": ("set", "change", "edit", "modify", "write"),
    "delete": ("remove", "drop", "erase", "discard"),
    "append": ("add", "extend", "attach"),
    "rename": ("move", "retitle"),
}
"""By role: verbs that tools' names have instead."""


@dataclass(frozen=True)
class Thing:
    """One record that a server keeps: its key and the values of its fields."""

    key: Any
    fields: Mapping[str, Any]


@dataclass
class StrangeServer:
    """A made-up server: its tools by their roles, and the records behind them."""

    noun: str
    key: str
    """Name of the argument that names a thing."""
    things: list[Thing]
    words: Vocabulary
    called: str = ""
    """The noun in the names of tools, which need not be the one that people say."""
    kind_field: str = ""
    """The field that tells of which kind a thing is; empty where all are of one kind."""
    listed: str = ""
    """The field that holds a list of sentences about a thing; empty where there is none."""
    tools: dict[str, RandomTool] = field(default_factory=dict)
    """By role: list, search, get, of FIELD, create, update, delete, append, rename, place, and other 0, other 1 and
    so on."""
    arguments: dict[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)
    """By role: makes arguments of a call."""
    render: Callable[[Any], str] = json.dumps
    """Writes a result in the server's way."""

    @property
    def plural(self) -> str:
        return plural_of(self.noun)

    def record(self, thing: Thing) -> dict[str, Any]:
        """Return all that is known of a thing."""
        return {self.key: thing.key, **thing.fields}


def plural_of(noun: str) -> str:
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


def strange_server(rng: random.Random) -> StrangeServer:
    """Return a random server of one to twenty tools."""
    return _Maker(rng).server()


class _Maker:
    """Makes one server in one style."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.words = Vocabulary(rng)
        self.join = rng.choice(name_styles())
        self.prefix = [self.words.word()] if rng.random() < 0.25 else []
        if rng.random() < 0.06:
            self.prefix = [f"{self.words.word()}_{rng.choice(('server', 'mcp', self.words.word()))}_"]
        self.described = rng.choices(("long", "short", "none"), (4, 5, 1))[0]
        self.root = self.words.folder()
        self.parameters_described = rng.random() < 0.5
        self.dialect = rng.random() < 0.25
        self.closed = rng.random() < 0.15
        self.writer = rng.choices(("by hand", "pydantic", "sorted"), (5, 3, 2))[0]
        """Whose schemas these are: Python's libraries and others order and nest the same facts in other ways."""
        self.titles = self.writer == "pydantic" or rng.random() < 0.1
        self.stems: list[list[str]] = []
        """Words of the tools made so far, without the prefix."""

    def server(self) -> StrangeServer:
        rng = self.rng
        noun = self.words.word() if rng.random() < 0.7 else f"{self.words.word()} {rng.choice(NOUNS)}"
        called = rng.choice(_GENERAL) if rng.random() < 0.35 else _OTHER_NOUNS.get(noun, noun)
        spelled = called.replace(" ", "_")
        key = rng.choice(("name", "id", "title", "key", "path", spelled, f"{spelled}_id", self.words.word()))
        keys = self._keys(key)
        makers = {name: self.words.values(self.root) for name in self._field_names(key)}
        kind_field = listed = ""
        if called in _GENERAL and rng.random() < 0.6:
            kind_field = rng.choice(("type", "kind", "category", f"{called}Type", f"{called}_type"))
            kinds = [noun, *(self.words.word() for _ in range(rng.choice((1, 2, 3))))]
            makers = {kind_field: lambda: rng.choice(kinds)} | makers
        if rng.random() < 0.35:
            listed = rng.choice(("notes", "facts", "comments", "lines", "remarks", f"{self.words.word()}s"))
            told = self.words.sentence if rng.random() < 0.7 else self.words.word
            makers[listed] = lambda: [told() for _ in range(rng.choice((1, 1, 2)))]
        makers.pop(key, None)
        kind_field, listed = kind_field if kind_field in makers else "", listed if listed in makers else ""
        if kind_field or listed:
            few = rng.sample(list(makers), min(len(makers), 4))
            makers = {name: make for name, make in makers.items() if name in (*few, kind_field, listed)}
        things = [
            Thing(keys(), {name: make() for name, make in makers.items()}) for _ in range(rng.choice((2, 3, 4, 6, 9)))
        ]
        things = list({thing.key: thing for thing in things}.values())
        render = _renderer(rng, self.words.word())
        server = StrangeServer(noun, key, things, self.words, called, kind_field, listed, render=render)
        roles = self._roles(server, keys, makers)
        for role, words, parameters in rng.sample(roles, rng.randrange(1, len(roles) + 1)):
            self._add(server, role, words, parameters)
        for number in range(rng.choices((0, 1, 2, 4, 9, 14), (30, 30, 25, 20, 8, 4))[0]):
            self._add(server, f"other {number}", self._other_words(), self._options(0.9))
        order = list(server.tools)
        rng.shuffle(order)
        server.tools = {role: server.tools[role] for role in order}
        return server

    def _keys(self, key: str) -> Values:
        rng = self.rng
        if key == "path" or rng.random() < 0.15:
            folders = [self.root, *(f"{self.root}/{self.words.word()}" for _ in range(rng.randrange(4)))]
            return lambda: f"{rng.choice(folders)}/{self.words.file_name()}"
        if key.endswith("id") and rng.random() < 0.6:
            whole = rng.random() < 0.4
            return lambda: rng.randrange(1, 1000) if whole else self.words.code()
        words = self.words
        return rng.choice((words.title, words.title, words.word, words.compound, words.file_name))

    def _field_names(self, key: str) -> list[str]:
        rng = self.rng
        pool = (*NOUNS, *FILLER, "created", "modified", "owner", "status", "entity_type", *PARAMETERS["integer"])
        names = [rng.choice(pool) if rng.random() < 0.6 else self.words.word() for _ in range(rng.choice((1, 2, 3, 4)))]
        return [name for name in dict.fromkeys(names) if name != key] or ["note"]

    def _roles(
        self, server: StrangeServer, keys: Values, makers: Mapping[str, Values]
    ) -> list[tuple[str, list[str], Parameters]]:
        """Return what tools of the server could do: the role, the words of the name, and the parameters."""
        rng, key, noun, plural = self.rng, server.key, server.called.split(), plural_of(server.called).split()

        def known() -> Any:
            return rng.choice(server.things).key

        def several() -> list[Any]:
            return [known() for _ in range(rng.choice((1, 2, 2)))]

        def about() -> str:
            return rng.choice((str(known()), self.words.word(), self.words.word(), self.words.sentence()))

        new: Parameters = {key: (keys, True), **{n: (make, rng.random() < 0.7) for n, make in makers.items()}}

        def objects() -> list[dict[str, Any]]:
            return [{n: make() for n, (make, needed) in new.items() if needed} for _ in range(rng.choice((1, 1, 2)))]

        def verb(role: str) -> str:
            return rng.choice((role, role, *VERBS[role])) if role != "append" else rng.choice(VERBS[role])

        one: Parameters = {key: (known, True)}
        get: Parameters = one if rng.random() < 0.8 else {f"{key}s": (several, True)}
        delete: Parameters = one if rng.random() < 0.7 else {f"{key}s": (several, True)}
        changed, told = rng.choice(list(makers)), rng.choice(list(makers))
        says = rng.choice(("content", "text", "body", "message"))
        if rng.random() < 0.2:
            changed = says
        new_value = makers.get(changed, self.words.sentence)
        create = ("create", [verb("create"), *noun], new)
        if rng.random() < 0.5:
            many = rng.choice((plural_of(server.called).replace(" ", "_"), "items", "entries"))
            create = ("create", [verb("create"), *plural], {many: (objects, True)})
        source, target = rng.choice((("source", "destination"), ("from", "to"), ("old", "new"), (key, f"new_{key}")))
        folder = rng.choice(("directory", "folder", "group", self.words.word()))
        roles: list[tuple[str, list[str], Parameters]] = [
            create,
            ("get", [verb("get"), *noun], get),
            ("list", [verb("list"), *plural], self._options(0.4)),
            (
                "search",
                [verb("search"), *plural],
                {rng.choice(("query", "text", "pattern", self.words.word())): (about, True)},
            ),
            ("update", [verb("update"), *noun], {key: (known, True), changed: (new_value, True)}),
            ("delete", [verb("delete"), *noun], delete),
            ("rename", [verb("rename"), *noun], {source: (known, True), target: (keys, True)}),
            ("place", [verb("create"), folder], {rng.choice(("path", "path", folder)): (self._place, True)}),
            (f"of {told}", [verb("get"), *noun, *told.split("_")], one),
        ]
        if server.listed:
            roles.append(("append", [verb("append"), server.listed], self._appended(server, known, makers)))
        return roles

    def _place(self) -> str:
        """Return a new place in another one."""
        folder = self.rng.choice((self.words.word(), self.words.word(), self.root, f"{self.root}/{self.words.word()}"))
        return f"{folder}/{self.words.title().replace(' ', '-')}"

    def _appended(self, server: StrangeServer, known: Values, makers: Mapping[str, Values]) -> Parameters:
        """Return parameters that add to the list of a thing: flat, or in a list of objects."""
        rng, more = self.rng, makers[server.listed]
        if rng.random() < 0.4:
            return {server.key: (known, True), server.listed: (more, True)}
        name = rng.choice((server.key, f"{server.called.replace(' ', '_')}Name", "of"))
        values = rng.choice([word for word in (server.listed, "contents", "values", "added") if word != name])
        return {server.listed: (lambda: [{name: known(), values: more()}], True)}

    def _options(self, some: float) -> Parameters:
        """Return random parameters, of which only the first is sure to be required; none with probability 1 - some."""
        rng = self.rng
        if rng.random() > some:
            return {}
        groups = ("string", "string", "integer", "boolean", "array")
        names = [
            rng.choice((*PARAMETERS[rng.choice(groups)], *"abnxy"))
            if rng.random() < 0.5
            else "_".join(self.words.word() for _ in range(rng.choice((1, 1, 2))))
            for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))
        ]
        return {
            name: (self.words.values(self.root), at == 0 or rng.random() < 0.5)
            for at, name in enumerate(dict.fromkeys(names))
        }

    def _other_words(self) -> list[str]:
        """Return the words of one more tool, often close to those of another."""
        rng, extra = self.rng, self.words.word()
        if self.stems and rng.random() < 0.5:
            near = rng.choice(self.stems)
            longer = ([*near, extra], [*near, "with", extra], [*near, "by", extra])
            return rng.choice((*longer, [*near[:1], extra, *near[1:]], [extra, *near[1:]]))
        return [rng.choice((*ACTIONS, extra)), *(self.words.word() for _ in range(rng.choice((0, 1, 1, 2))))]

    def _add(self, server: StrangeServer, role: str, words: list[str], parameters: Parameters) -> None:
        """Add a tool, unless its name is taken or too long."""
        words = [*self.prefix, *words]
        name = self.join([part for word in words for part in word.split()])
        if len(name) > _LONGEST_NAME or name in {tool.name for tool in server.tools.values()}:
            return
        self.stems.append(words[len(self.prefix) :])
        description = self._description(server, role, words)
        told = {} if self.described == "none" else {"description": description}
        function = {"name": name, **told, "parameters": self._schema(name, parameters)}
        spoken = " ".join(" ".join(words).replace("_", " ").split())
        schema = {"type": "function", "function": function}
        server.tools[role] = RandomTool(name, spoken, role, "strange", description, (), (), "", schema)
        server.arguments[role] = lambda: {
            name: self._value(name, make, role)
            for name, (make, needed) in parameters.items()
            if needed or self.rng.random() < 0.35
        }

    def _value(self, name: str, make: Values, role: str) -> Any:
        """Return a value, which now and then ends as its argument's name begins: a repo_path that ends in "repo"."""
        value, known = make(), role in _WORKS or role.startswith("of ")
        if known or not isinstance(value, str) or isinstance(make, OneOf) or self.rng.random() > 0.12:
            return value
        return re.sub(r"[A-Za-z]+$", name.split("_")[0], value)

    def _description(self, server: StrangeServer, role: str, words: Sequence[str]) -> str:
        rng = self.rng
        first = self._in_prose(" ".join(words).replace("_", " ").split())
        noun = rng.choice((server.noun, server.called))
        if role.startswith("of ") and rng.random() < 0.6:
            first = f"Get the {role[3:].replace('_', ' ')} of a {noun}"
        elif role in _WORKS and rng.random() < 0.6:
            first = rng.choice(_WORKS[role]).format(
                noun=noun, plural=plural_of(noun), key=server.key, listed=server.listed or "entries"
            )
        if self.described != "long":
            return first + rng.choice((".", ".", ""))
        more = [self.words.sentence().rstrip(".").capitalize() for _ in range(rng.choice((0, 1, 2, 4)))]
        return ". ".join((first, *more)) + "."

    def _in_prose(self, words: Sequence[str]) -> str:
        """Return a sentence that means what a tool's name says, with other words before, between and after."""
        rng, word = self.rng, self.words.word
        verb, things = words[0], list(words[1:])
        if rng.random() < 0.4:
            verb = rng.choice([other for other in ACTIONS.get(verb, (verb,)) if " " not in other] or [verb])
        if rng.random() < 0.35:
            verb = "Returns" if verb in ("get", "fetch", "read", "show", "retrieve") else _third_person(verb)
        if len(things) > 1 and rng.random() < 0.25:
            things = [things[-1], rng.choice(("of", "for", "in the")), *things[:-1]]
        if things and not things[-1].endswith("s") and rng.random() < 0.3:
            things[-1] += "s"
        if len(things) > 1 and rng.random() < 0.3:
            things.insert(rng.randrange(len(things)), word())
        before = rng.choice(
            ("", "", "the", "a", "all", "multiple", "one or more", "the specified", word(), f"a {word()}")
        )
        after = (
            *("", "", "", f"and their {word()}", f"of {word()} {word()}", f"from the {word()} {word()}"),
            *(f"and their associated {word()} from the {word()}", f"with {word()}", f"by its {word()}", f"in {word()}"),
        )
        return " ".join(" ".join((verb, before, *things, rng.choice(after))).split()).capitalize()

    def _schema(self, name: str, parameters: Parameters) -> dict[str, Any]:
        properties = {name: self._property(name, make, needed) for name, (make, needed) in parameters.items()}
        required = [name for name, (_, needed) in parameters.items() if needed]
        needs: dict[str, Any] = {"required": required} if required else {}
        if self.writer == "pydantic":
            titles = {"title": f"{name}Arguments"} if self.titles else {}
            return {"properties": properties, **needs, **titles, "type": "object"}
        body: dict[str, Any] = {"type": "object", "properties": properties, **needs}
        if self.closed:
            body["additionalProperties"] = False
        return {"$schema": "http://json-schema.org/draft-07/schema#", **body} if self.dialect else body

    def _property(self, name: str, make: Values, needed: bool) -> dict[str, Any]:
        rng = self.rng
        schema: dict[str, Any] = {"type": "number"} if isinstance(make, Numbers) else schema_of(make())
        if isinstance(make, OneOf):
            schema["enum"] = list(make.choices)
        if not needed and self.writer != "by hand":
            nothing = self.writer == "pydantic" and rng.random() < 0.6
            schema = (
                {"anyOf": [schema, {"type": "null"}], "default": None} if nothing else {"default": make(), **schema}
            )
        if self.titles:
            schema["title"] = name.replace("_", " ").title()
        if self.parameters_described and rng.random() < 0.8:
            told = rng.choice(
                (f"The {name.replace('_', ' ')}", self.words.sentence(), f"{self.words.word()} of the {name}")
            )
            schema = rng.choice(({"description": told, **schema}, {**schema, "description": told}))
        return dict(sorted(schema.items())) if self.writer == "sorted" else schema


def _third_person(verb: str) -> str:
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")


_WORKS = {
    "get": ("Get one {noun}", "Return a {noun} by its {key}", "Show all that is known of a {noun}"),
    "list": ("List all {plural}", "Show every {noun}", "Return the {plural}"),
    "search": ("Search {plural}", "Find {plural} that mention a text", "Look for a {noun}"),
    "create": ("Create a {noun}", "Add a new {noun}", "Make {plural}"),
    "update": ("Update a {noun}", "Change a {noun}", "Modify an existing {noun}"),
    "delete": ("Delete a {noun}", "Remove a {noun}", "Drop one {noun} for good"),
    "append": ("Add to the {listed} of a {noun}", "Append new {listed} to existing {plural}", "Add {listed}"),
    "rename": ("Move or rename a {noun}", "Give a {noun} another {key}", "Rename a {noun}"),
    "place": ("Create a new place for {plural}", "Make a place that holds {plural}", "Create a new folder"),
}
"""By role: descriptions."""


def _renderer(rng: random.Random, wrapper: str) -> Callable[[Any], str]:
    """Return one server's way to write results."""
    indent, mark = rng.choice((None, None, 1, 2)), rng.choice((": ", " = ", "\t", ": "))

    def as_json(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, indent=indent, ensure_ascii=False)

    def wrapped(value: Any) -> str:
        return json.dumps({wrapper: value}, indent=indent, ensure_ascii=False)

    def lines(value: Any) -> str:
        if isinstance(value, list):
            blocks = [lines(entry) for entry in value]
            return ("\n\n" if any("\n" in block for block in blocks) else "\n").join(blocks)
        if isinstance(value, dict):
            return "\n".join(f"{name}{mark}{flat(entry)}" for name, entry in value.items())
        return flat(value)

    def bullets(value: Any) -> str:
        if isinstance(value, list):
            return "\n".join("- " + bullets(entry) for entry in value)
        pairs = (
            [f"{name}: {flat(entry)}" for name, entry in value.items()] if isinstance(value, dict) else [flat(value)]
        )
        return ", ".join(pairs)

    def table(value: Any) -> str:
        rows = value if isinstance(value, list) else [value]
        if not rows or not isinstance(rows[0], dict):
            return lines(value)
        cells = [rows[0], *(row.values() for row in rows)]
        return "\n".join(" | ".join(flat(cell) for cell in row) for row in cells)

    return rng.choice((as_json, as_json, lines, bullets, table, wrapped))
