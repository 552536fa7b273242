"""Arguments for a server that nobody described: from the schemas, and from a small world (`world.py`).

A free text is the one that its parameter's name or description asks for, of one record of the world. A reference is a
name that the server has been given or has shown.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from contextlib import suppress
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.explore import plausible
from mcp_rl.explore.bearing import Bearing, bearing
from mcp_rl.explore.meant import meant
from mcp_rl.explore.sample import Sampler, parameter_of, samplers
from mcp_rl.explore.words import words_of
from mcp_rl.explore.world import (
    World,
    WorldRecord,
    may_take_sql,
    meaning,
    number_of,
    sql_meaning,
    statement,
    text_of,
)
from mcp_rl.scenario import ServerGroup, StdioServer

if TYPE_CHECKING:
    import random as randoms
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_rl.explore.values_seen import ValuePool
    from mcp_rl.scenario import OneServer, ToolCall
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_REFERENCE = re.compile(
    r"^(?:from|to|source|target|subject|object|parent|child|old|existing|names?|nodes?|ids?|keys?)$|"
    r"\b(?:entity|node|item|from|to|source|target|parent|related|old) (?:names?|ids?|keys?)\b|\bentity$"
)
_ENDS = (("from", "to"), ("source", "target"), ("subject", "object"), ("head", "tail"), ("parent", "child"))
"""Parameters that name the two ends of a relation."""
_NAMES = re.compile(r"name|title|key|id|entity name")
"""Parameters that name what a creating tool makes."""
_SEARCH = re.compile(r"\b(?:query|search|keywords?|term|filter|find|match|contains|phrase|prefix)\b")
_PATH = re.compile(
    r"\b(?:file|dir|folder)?paths?\b|\bfile ?names?\b|\bfile\b|\bdir(?:ectory)?\b|\bfolder\b|\bdestination\b"
)
WORLD_SEED = 0
"""Seed of the world. It is fixed, so that all runs on a server begin alike."""
_KIND = re.compile(r"\b(?:type|kind|category|status|state|mode|level|priority|format|role)$")
"""Parameters whose choices may stand in the description of their tool."""
_ENDINGS = (".txt", ".md")
_MOST_ENTRIES = 20
"""Most entries of its working directory that a server is told, which nobody gave a path."""
_LEVELS, _MOST_SCANNED = 3, 2000
"""Levels of the working directory, and entries there, among which they are chosen."""
_SHARE_OF_LONGER = 0.3
"""Probability of a list with one more entry than it must have."""
_AT_ONCE = 4
"""Most entries of a list while a server is filled."""
_SHARE_OF_OWN = 0.7
"""Probability of a number that a record has for the parameter."""
_SHARE_OF_CONSTANT = 0.85
"""Probability of the only value that a parameter seems to take: others may be found later."""
_SEEN_NAMES = ("key:name", "key:title", "key:id", "key:key")


class WorldSampler(Sampler):
    """Draws arguments for one tool, with the values of a world's records."""

    def __init__(self, tool: Tool, pool: ValuePool, world: World) -> None:
        super().__init__(tool.name, tool.input_schema, pool)
        self._words = f"{words_of(tool.name)} {tool.description[:300]}"
        self._makes = bearing(tool) is Bearing.CREATES
        self._world = world
        self._turn = 0
        self._record: WorldRecord = world.records[0]
        self._in_order: list[WorldRecord] | None = None
        self._strict = False
        self._ends: tuple[str, str] | None = None
        """The parameters of the object being drawn that name the two ends of a relation."""
        self._optional_share = 0.6 if self._makes else 0.3

    def one_by_one(self, skip: int = 0) -> None:
        """Take the records of the world in order from now on, and no other values: from the first, or where things of
        other kinds have the names of the first ones, from a later one."""
        self._in_order = list(self._world.records[skip % len(self._world.records) :])
        self._strict = self._makes = True

    @property
    def names_things(self) -> bool:
        """True if the tool needs a name for what it makes."""
        properties, required = self._schema.get("properties") or {}, self._schema.get("required") or ()
        return any(name in required and _NAMES.fullmatch(words_of(name)) for name in properties)

    @property
    def has_more(self) -> bool:
        """True if `one_by_one` has records left."""
        return bool(self._in_order)

    def _object(
        self, schema: dict[str, Any], slot: str, depth: int, random: randoms.Random, optional: bool = True
    ) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        if depth == 0 and properties and all(_holds_parts(inner) for inner in properties.values()):
            return super()._object(schema, slot, depth, random, optional)
        before = self._record, self._ends
        self._record = self._in_order.pop(0) if self._in_order else random.choice(self._world.records)
        self._turn = random.randrange(3)
        words = {words_of(name): name for name in properties}
        self._ends = next(
            ((words[a], words[b]) for one, other in _ENDS for a in words for b in words
             if a.split(" ")[0] == one and b.split(" ")[0] == other), None,
        )  # fmt: skip
        try:
            return super()._object(schema, slot, depth, random, optional)
        finally:
            self._record, self._ends = before

    def _array(self, schema: dict[str, Any], slot: str, depth: int, random: randoms.Random) -> list[Any]:
        """Draw short lists: a request that holds one says all of it. What fills a server may be longer."""
        if self._strict and _holds_parts(schema.get("items")):
            left = len(self._in_order or ())
            return super()._array({**schema, "minItems": max(1, min(_AT_ONCE, left))}, slot, depth, random)
        least = int(schema.get("minItems", 0))
        most = max(least, 1) + (random.random() < _SHARE_OF_LONGER)
        return super()._array({**schema, "maxItems": min(most, schema.get("maxItems", most))}, slot, depth, random)

    def _typed(self, schema: dict[str, Any], slot: str, depth: int, random: randoms.Random) -> Any:
        drawn = super()._typed(schema, slot, depth, random)
        if isinstance(drawn, int | float) and not isinstance(drawn, bool) and self._makes:
            own = number_of(self._record, parameter_of(slot))
            if own is not None and random.random() < _SHARE_OF_OWN:
                return own
        return drawn

    def _free_string(self, schema: dict[str, Any], slot: str, random: randoms.Random) -> str:
        parameter, description = parameter_of(slot), str(schema.get("description", ""))
        if kind := self._statement_kind(parameter, description):
            return statement(kind, self._world, tables_in(self._pool), random)
        constant = None if self._strict else self._pool.constant(parameter)
        if constant is not None and random.random() < _SHARE_OF_CONSTANT:
            return constant
        if meant(parameter, description, self._about, random) is not None:
            return super()._free_string(schema, slot, random)
        weights: dict[str, float] = {}
        own: dict[str, Sequence[str]] = {}
        for source, weight, values in self._own(parameter, description):
            if values:
                weights[source], own[source] = weight, values
        if not own:
            return super()._free_string(schema, slot, random)
        source = self._pool.choose(slot, weights | ({} if self._strict else {"other": 2.0}), random)
        if source == "other":
            return super()._free_string(schema, slot, random)
        self._choices.append((slot, source))
        chosen = random.choice(own[source])
        if source == "known" and (record := self._world.of_name(chosen)) is not None:
            self._record = record
        return chosen

    def _statement_kind(self, parameter: str, description: str) -> str | None:
        """Return the kind of SQL that a parameter takes: as errors said, or else as it is described."""
        said = self._pool.statement_kind(self._tool) if may_take_sql(parameter) else None
        return said or sql_meaning(self._tool, parameter, f"{description} {self._words}")

    def _own(self, parameter: str, description: str) -> Iterator[tuple[str, float, Sequence[str]]]:
        """Yield sources of values for a text, each with its prior weight and its values."""
        if self._ends is not None and parameter in self._ends:
            end = self._record.name if parameter == self._ends[0] else self._record.other
            if self._strict and end in self.known():
                yield "end", 1.0, [end]
                return
        itself = self._makes and _NAMES.fullmatch(parameter) is not None
        choices = [] if _PATH.search(parameter) else plausible.listed(description)
        if not choices and _KIND.search(parameter):
            choices = plausible.listed(self._words, between="or")
        yield "listed", 6.0, choices
        # What fills a server says something else of each thing, and goes into files of its own.
        if not itself and not (self._strict and (choices or meaning(parameter, description) == "fact")):
            weight = 1.0 if self._strict and _PATH.search(parameter) else 30.0
            yield "worked", weight, self._pool[f"worked:{parameter}"]
        if _PATH.search(parameter):
            folders = self._pool["path:folder"] if self._makes or "dest" in parameter else []
            name = self._record.name.lower()
            described = plausible.file_endings(description) or plausible.file_endings(self._words)
            endings = self._pool.endings(parameter) or described or _ENDINGS
            yield "new path", 4.0, [posixpath.join(at, name + end) for at in folders[:20] for end in endings[:2]]
        elif (_REFERENCE.search(parameter) is not None and not itself) or _SEARCH.search(parameter):
            yield "known", 8.0, self.known()
        elif (what := meaning(parameter, description)) is not None and (self._makes or what not in ("name", "fact")):
            self._turn += 1
            yield "world", 4.0, [text_of(self._record, what, self._turn)]

    def known(self) -> list[str]:
        """Return the names that the server has been given or has shown."""
        return list(dict.fromkeys(value for kind in ("known", *_SEEN_NAMES) for value in self._pool[kind]))


def _holds_parts(schema: Any) -> bool:
    """Return whether a schema is that of an object or a list, whose parts have values of their own."""
    return isinstance(schema, dict) and schema.get("type") in ("object", "array")


def fitted_samplers(tools: Sequence[Tool], pool: ValuePool, server: ToolServer) -> dict[str, Sampler]:
    """Return a sampler for each tool by its name: with values of the world for servers whose state was measured.

    The pool learns what is known of these servers: the paths that start them, and the calls that fill them.
    """
    found = samplers(tools, pool, server)
    world = World(WORLD_SEED)
    for one in server.members or (server,):
        if one.measured is not None or one.start:
            for params in one.transports.values():
                if not isinstance(params, ServerGroup):
                    observe_start(pool, params, one.start)
        if one.measured is not None:
            observe_setup(pool, one.measured.setup, world)
    own = server.argument_samplers
    for tool in tools:
        measured = server.owner_of(tool.name)[0].measured
        if measured is not None and measured.kept != "nothing" and tool.name not in own:
            found[tool.name] = WorldSampler(tool, pool, world)
    return found


def observe_start(pool: ValuePool, params: OneServer, start: Iterable[str]) -> None:
    """Learn where exploring begins: as is said, and at the files and folders in the command that starts a server."""
    for place in start:
        pool.observe_start(place)
    launch = params if isinstance(params, StdioServer) else params.launch
    if launch is None:
        return
    words = [word.partition("=")[2] if word.startswith("-") else word for word in launch.args]
    folder = Path(launch.cwd or ".").resolve()
    found = [folder / word for word in words if word and "{" not in word and (folder / word).exists()]
    for path in found or [folder, *_seen_in(folder)]:
        pool.observe_path(str(path.resolve()))


def _seen_in(folder: Path) -> list[Path]:
    """Return some of the entries of a folder and of the two levels below it that are not hidden: of each kind of file
    the first ones, and folders."""
    kinds: dict[str, list[Path]] = defaultdict(list)
    level, left = [folder], _MOST_SCANNED
    for _ in range(_LEVELS):
        entries = list(islice(_entries(level), left))
        left -= len(entries)
        level = [path for path in entries if path.is_dir()]
        for path in entries:
            kinds["" if path.is_dir() else path.suffix.lower()].append(path)
    in_turn = (path for row in zip_longest(*kinds.values()) for path in row if path is not None)
    return list(islice(in_turn, _MOST_ENTRIES))


def _entries(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        with suppress(OSError):
            yield from (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))


def observe_arguments(pool: ValuePool, arguments: dict[str, Any]) -> None:
    """Learn the texts with which a call worked, by their parameters: `repo_path` often means the same elsewhere."""
    for name, value in arguments.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                pool.observe_worked(words_of(name), text)


def observe_setup(pool: ValuePool, calls: Iterable[ToolCall], world: World) -> None:
    """Learn the names, files, tables and columns that these calls gave to the server."""
    for call in calls:
        text = repr(call.arguments)
        for name, value in call.arguments.items():
            if isinstance(value, str) and value.startswith("/") and _PATH.search(words_of(name)):
                pool.observe_path(value)
        for record in world.records:
            if re.search(rf"\b{record.name}\b", text):
                pool.observe_known(record.name)
        for table, columns in re.findall(r"CREATE TABLE (\w+) \(([^)]*)\)", text):
            pool.observe_table(table, re.findall(r"(?:^|, )(\w+)", columns))


def tables_in(pool: ValuePool) -> dict[str, tuple[str, ...]]:
    """Return the tables that the server has, as far as they were seen, with their columns."""
    return {table: tuple(columns.split(",")) for table, _, columns in (one.partition(":") for one in pool["tables"])}
