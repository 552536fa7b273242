"""A small, consistent world: people, places, projects and things, with their dates, amounts and notes.

Empty servers are filled with it. Values are chosen by the name and the description of a parameter, and those of one
object belong to one record: the city of a person is where the notes say that the person lives. The same seed gives the
same world.
"""

# ruff: noqa: SIM905 - lists of words are read as words

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from mcp_rl.toolserver.tools.listing import Tool

_PEOPLE = "Ada Alan Grace Linus Maria Noah Olga Pablo Rosa Samir Tara Yuki".split()
_CITIES = "Paris Oslo Lima Tokyo Cairo Boston Madrid Sydney Nairobi Toronto Berlin Seoul".split()
_ROLES = "engineer teacher doctor gardener painter baker pilot lawyer".split()
_PROJECTS = "Orchard Lighthouse Compass Harbor Meadow Bridge".split()
_PLACES = "Library Museum Market Station Garden Theatre".split()
_THINGS = "lamp chair ladder kettle bicycle camera notebook umbrella".split()
_STATES = "open active done".split()
_PRIORITIES = "low medium high".split()
_COLOURS = "red blue green yellow".split()
_RELATIONS = {"person": "works_on", "project": "led_by", "place": "visited_by", "thing": "belongs_to"}
"""Name of the relation from a record of each kind to its `other`."""
_YEAR = 2025


@dataclass(frozen=True)
class WorldRecord:
    """A person, a project, a place or a thing."""

    kind: str
    name: str
    city: str
    role: str
    amount: int
    """Money in whole units, or a count."""
    day: int
    """Day of the year, 0 to 363."""
    other: str
    """The name of a record that it has to do with."""
    number: int
    """Its position in the world, from 1."""

    @property
    def date(self) -> str:
        return f"{_YEAR}-{self.day // 31 + 1:02}-{self.day % 28 + 1:02}"

    @property
    def facts(self) -> tuple[str, ...]:
        """Sentences about it."""
        return {
            "person": (
                f"{self.name} lives in {self.city}",
                f"{self.name} works as {'an' if self.role[0] in 'aeiou' else 'a'} {self.role}",
                f"{self.name} works on {self.other}",
            ),
            "project": (
                f"{self.name} has a budget of {self.amount} euros",
                f"{self.name} is led by {self.other}",
                f"{self.name} ends on {self.date}",
            ),
            "place": (
                f"The {self.name} is in {self.city}",
                f"The {self.name} has {self.amount} visitors a week",
                f"{self.other} often visits the {self.name}",
            ),
        }.get(
            self.kind,
            (
                f"The {self.name} costs {self.amount} euros",
                f"The {self.name} belongs to {self.other}",
                f"The {self.name} was bought in {self.city}",
            ),
        )


class World:
    """The records of a world, people first."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"{seed}:world")

    @cached_property
    def records(self) -> tuple[WorldRecord, ...]:
        """The records, in turns of the four kinds."""
        pick = self._random
        people, projects = pick.sample(_PEOPLE, 6), pick.sample(_PROJECTS, 4)
        places, things = pick.sample(_PLACES, 3), pick.sample(_THINGS, 4)
        named = [
            *(("person", name, projects[at % 4]) for at, name in enumerate(people)),
            *(("project", name, people[at]) for at, name in enumerate(projects)),
            *(("place", name, people[-1 - at]) for at, name in enumerate(places)),
            *(("thing", name, people[at + 1]) for at, name in enumerate(things)),
        ]
        cities = pick.sample(_CITIES, len(_CITIES))
        made = [
            WorldRecord(
                kind, name, cities[at % len(cities)], pick.choice(_ROLES), 10 * pick.randint(2, 90),
                pick.randint(0, 363), other, at + 1,
            )
            for at, (kind, name, other) in enumerate(named)
        ]  # fmt: skip
        # The kinds in turns, so that a server that takes only a few of them gets some of each.
        turns = {record: (sum(one.kind == record.kind for one in made[:at]), at) for at, record in enumerate(made)}
        return tuple(sorted(made, key=turns.__getitem__))

    def of_name(self, name: str) -> WorldRecord | None:
        """Return the record of that name, or None."""
        return next((record for record in self.records if record.name == name), None)


_TEXTS: tuple[tuple[str, str], ...] = (
    (r"e-?mail", "email"),
    (r"\bphone|\btel\b|\bmobile", "phone"),
    (r"\bur[li]\b|\blink\b|\bwebsite\b|\bhref\b", "url"),
    (r"relation|predicate|\bedge\b", "relation"),
    (r"priority|importance|severity", "priority"),
    (r"status|\bstate\b|\bstage\b", "status"),
    (r"colou?r", "colour"),
    (r"currency", "currency"),
    (r"\b(?:due|start|end|birth|created?)?_? ?(?:date|day|deadline|on)\b|\bdue$|yyyy-mm-dd", "date"),
    (r"\btime\b|hh:mm", "time"),
    (r"\bkind\b|\btype\b|category|\bclass\b|\bgroup\b", "kind"),
    (r"\btags?\b|\blabels?\b|keyword|\btopics?\b", "tag"),
    (r"\bcity\b|\bplace\b|location|\bwhere\b|address|country|\btown\b", "city"),
    (r"\brole\b|\bjob\b|profession|occupation", "role"),
    (r"amount|price|\bcost\b|budget|salary|balance|\btotal\b", "amount"),
    (r"\b(?:assignee|owner|author|user|person|people|customer|member|lead|attendees?|contact)\b", "person"),
    (r"\bcontents?\b|\btext\b|\bbody\b|\bnotes?\b|description|message|comment|observation|\bfacts?\b|insight|summary"
     r"|details?|memory|thought|\bmarkdown\b|\bvalue\b|\bdata\b|sentence|\bentry\b|reason|\binfo\b", "fact"),
    (r"\bnames?\b|\btitles?\b|subject|\bentity\b|\bkey\b|heading|\blabel\b|\bitem\b|\btask\b|\btodo\b", "name"),
)  # fmt: skip


def meaning(parameter: str, description: str) -> str | None:
    """Return what a text parameter of this name, or else of this description, stands for; None if neither says."""
    for text in (parameter, description.lower()[:300]):
        for hint, found in _TEXTS:
            if re.search(hint, text):
                return found
    return None


def text_of(record: WorldRecord, what: str, turn: int) -> str:
    """Return the text that a record has for a meaning; `turn` chooses one of its facts."""
    simple = {
        "email": f"{record.name.lower()}@example.com",
        "phone": f"555-01{record.number:02}",
        "url": f"https://example.com/{record.name.lower()}",
        "relation": _RELATIONS[record.kind],
        "priority": _PRIORITIES[record.number % 3],
        "status": _STATES[record.number % 3],
        "colour": _COLOURS[record.number % 4],
        "currency": "EUR",
        "date": record.date,
        "time": f"{8 + record.number % 10:02}:30",
        "kind": record.kind,
        "tag": record.kind,
        "city": record.city,
        "role": record.role,
        "amount": str(record.amount),
        "person": record.name if record.kind == "person" else record.other,
        "name": record.name,
    }
    return simple.get(what) or record.facts[turn % len(record.facts)]


def number_of(record: WorldRecord, parameter: str) -> int | None:
    """Return the number that a record has for a parameter; None if its name says nothing."""
    if re.search(r"amount|price|\bcost\b|budget|salary|balance|total|\bvalue\b", parameter):
        return record.amount
    if re.search(r"quantity|\bcount\b|stock|number|\bqty\b", parameter):
        return record.amount // 10
    if re.search(r"\byear\b", parameter):
        return _YEAR
    if re.search(r"\bage\b", parameter):
        return 20 + record.number * 3
    return None


# Statements for servers that take SQL

TABLES = {
    "people": ("id INTEGER PRIMARY KEY, name TEXT, city TEXT, role TEXT", "person"),
    "projects": ("id INTEGER PRIMARY KEY, name TEXT, budget INTEGER, lead TEXT", "project"),
    "things": ("id INTEGER PRIMARY KEY, name TEXT, price INTEGER, owner TEXT", "thing"),
}
_COLUMNS = {
    "people": ("name", "city", "role"),
    "projects": ("name", "budget", "lead"),
    "things": ("name", "price", "owner"),
}
_NEW_COLUMNS = (
    "remark TEXT",
    "rank INTEGER",
    "email TEXT",
    "phone TEXT",
    "weight INTEGER",
    "colour TEXT",
    "since TEXT",
)
_TAKES_SQL = re.compile(
    r"sql|\b(?:select|insert into|create table)\b|duckdb|mariadb|postgres|"
    r"\b(?:execute|run)s? (?:an? |any |the )?(?:\w+ )?(?:query|statement)\b.*\bdatabase\b|\balter.?table\b|"
    r"\b(?:insert|update|delete)(?:,? (?:or |and )?(?:insert|update|delete)){1,2} (?:quer|statement|operation|command)"
)
_SQL_PARAMETERS = frozenset({"query", "sql", "statement", "sql query", "command"})


def may_take_sql(parameter: str) -> bool:
    """Return whether a parameter of this name may take a statement."""
    return parameter in _SQL_PARAMETERS


def sql_meaning(tool: str, parameter: str, description: str) -> str | None:
    """Return the statement that a parameter takes: "create", "alter", "change", "select" or "any"; None if it takes no
    SQL."""
    if not may_take_sql(parameter):
        return None
    text = f"{words_of(tool)} {description}".lower()
    if not _TAKES_SQL.search(text):
        return None
    if re.search(r"alter.?table", tool.lower()):
        return "alter"
    if "create table" in text or re.search(r"create.?table", tool.lower()):
        return "create"
    if re.search(r"\binsert\b|\bupdate\b|\bdelete\b|write|execute.?(?:update|write)", text):
        return "any" if re.search(r"\bselect\b", description.lower()) and "insert" in text else "change"
    return "select" if re.search(r"select|read", text) else "any"


def sql_parameter(tool: Tool) -> tuple[str, str] | None:
    """Return the parameter of a tool that takes SQL, and what kind of statement; None if it takes none."""
    for name, schema in (tool.input_schema.get("properties") or {}).items():
        described = schema.get("description", "") if isinstance(schema, dict) else ""
        if kind := sql_meaning(tool.name, words_of(name), f"{described} {tool.description[:300]}"):
            return name, kind
    return None


def fill_statements(world: World) -> list[tuple[str, str]]:
    """Return the statements that make and fill the tables, each with its kind: "create" or "change"."""
    made = []
    for table, (columns, kind) in TABLES.items():
        made.append(("create", f"CREATE TABLE {table} ({columns})"))
        for record in world.records:
            if record.kind == kind:
                number = sum(one.kind == kind for one in world.records[: world.records.index(record)]) + 1
                made.append(("change", _insert(table, record, number)))
    return made


def _insert(table: str, record: WorldRecord, number: int | None = None) -> str:
    values = {
        "people": (record.name, record.city, record.role),
        "projects": (record.name, record.amount, record.other),
        "things": (record.name, record.amount, record.other),
    }[table]
    written = ", ".join(str(value) if isinstance(value, int) else f"'{value}'" for value in values)
    if number is None:
        return f"INSERT INTO {table} ({', '.join(_COLUMNS[table])}) VALUES ({written})"
    return f"INSERT INTO {table} (id, {', '.join(_COLUMNS[table])}) VALUES ({number}, {written})"


def statement(kind: str, world: World, tables: dict[str, tuple[str, ...]], random: random.Random) -> str:
    """Return a statement of that kind on one of these tables (name to columns; none: the world's own).

    A statement of kind "any" reads.
    """
    tables = tables or {name: ("id", *columns) for name, columns in _COLUMNS.items()}
    table = random.choice(list(tables))
    columns = tables[table] or ("*",)
    if kind == "create":
        name = random.choice(["visits", "payments", "letters", "meetings", "tools", "trips", "songs", "rooms"])
        extra = random.choice(["amount INTEGER", "day TEXT", "city TEXT", "person TEXT"])
        return f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, name TEXT, {extra})"
    if kind == "alter":
        return f"ALTER TABLE {table} ADD COLUMN {random.choice(_NEW_COLUMNS)}"
    record = random.choice(world.records)
    if kind == "change":
        if table in _COLUMNS:
            of_kind = random.choice([one for one in world.records if one.kind == TABLES[table][1]])
            name, column = of_kind.name, _COLUMNS[table][1]
            value = f"'{record.city}'" if table == "people" else str(record.amount)
            return random.choice(
                [
                    f"UPDATE {table} SET {column} = {value} WHERE name = '{name}'",
                    f"DELETE FROM {table} WHERE name = '{name}'",
                    _insert(table, WorldRecord(**{**vars(of_kind), "name": f"{record.name} {random.randint(2, 9)}"})),
                ]
            )
        return f"DELETE FROM {table} WHERE {columns[0]} = {random.randint(1, 5)}"
    column, where = random.choice(columns), random.choice(columns)
    choices = [f"SELECT COUNT(*) FROM {table}", f"SELECT {column} FROM {table}"]
    if table in _COLUMNS:
        of_kind = random.choice([one for one in world.records if one.kind == TABLES[table][1]])
        choices += 3 * [f"SELECT {column} FROM {table} WHERE name = '{of_kind.name}'"]
        if table != "people":
            number = _COLUMNS[table][1]
            choices += 2 * [
                f"SELECT name FROM {table} WHERE {number} > {record.amount}",
                f"SELECT {random.choice(['MAX', 'MIN', 'SUM'])}({number}) FROM {table}",
            ]
    else:
        choices += [f"SELECT {column} FROM {table} ORDER BY {where} LIMIT {random.randint(1, 3)}"]
        choices += [f"SELECT COUNT(DISTINCT {column}) FROM {table}"]
    return random.choice(choices)
