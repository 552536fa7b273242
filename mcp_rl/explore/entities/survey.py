"""The calls that a world model is made of: listings first, then calls with the keys and values that these showed.

Whether a parameter takes a field's values is tried with two of them, and with a value that no thing has: where that one
is answered alike, the tool looks nothing up.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.answer import call_key
from mcp_rl.explore.entities.forms.rows import first_column, row_width
from mcp_rl.explore.entities.merging import merged
from mcp_rl.explore.entities.nouns import singular
from mcp_rl.explore.entities.parameters import (
    ToolParameter,
    first_values,
    likeness,
    may_be_id_of,
    openings,
    parameters_of,
)
from mcp_rl.explore.entities.sightings import Reader
from mcp_rl.explore.entities.things import Subjects, Things
from mcp_rl.explore.entities.world_model import ArgumentSlot
from mcp_rl.explore.words import words_of
from mcp_rl.explore.world import sql_parameter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.explore.entities.caller import Answered, Call, WorldCaller
    from mcp_rl.toolserver.tools.listing import Tool

_ROUNDS = 4
_MOST_DETAILS = 60
"""Most things of a kind about which one tool is asked."""
_MOST_LISTINGS = 20
"""The same, where the tool answers with a list."""
_MOST_FILTERED = 8
"""Values of a field that is no key with which a tool is called."""
_MOST_CANDIDATES = 3
"""Fields that are tried for one parameter."""
_NOBODY = "zqxjv"
_NO_NUMBER = 9_700_001
_CATALOGUES = (
    "SELECT name FROM sqlite_master WHERE type = 'table'",
    "SELECT table_name FROM information_schema.tables WHERE table_schema NOT IN ('information_schema', 'pg_catalog')",
    "SHOW TABLES",
)
_COLUMNS = (
    "SELECT column_name FROM information_schema.columns WHERE table_name = '{}' ORDER BY ordinal_position",
    "SELECT name FROM pragma_table_info('{}')",
)
_TABLE = re.compile(r"[A-Za-z_]\w{0,60}")


@dataclass(frozen=True)
class _Trial:
    """A field whose values may be arguments."""

    tool: str
    parameter: ToolParameter
    others: Mapping[str, Any]
    """The arguments beside it."""
    kind: str
    field: str
    is_key: bool

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.tool, self.parameter.name, self.kind, self.field

    def call(self, value: Any) -> Call:
        """Return the call with this value."""
        return self.tool, {**self.others, self.parameter.name: self.parameter.given(value)}


class Survey:
    """Makes the calls, and keeps what they told."""

    def __init__(
        self, caller: WorldCaller, tools: Sequence[Tool], places: Sequence[str], tables: Sequence[str]
    ) -> None:
        """`places` are paths that belong to the server, `tables` names of tables in its database."""
        self._caller, self.places, self._tables = caller, list(places), list(tables)
        self._tools = {tool.name: tool for tool in tools}
        self.reader = Reader(self._tools)
        self.accepted: list[ArgumentSlot] = []
        self._tried: set[tuple[str, str, str, str]] = set()
        self._choices: set[tuple[str, str]] = set()
        self._preferred: Counter[tuple[str, str]] = Counter()
        self.passing: set[tuple[str, str]] = set()
        """Kinds and fields whose values turned out to be others in each process."""

    @property
    def answers(self) -> list[Answered]:
        """All answers, in the order of the calls."""
        return list(self._caller.answers.values())

    async def run(self) -> None:
        """Make the calls."""
        await self._caller.all(
            (name, arguments) for name, tool in self._tools.items() for arguments in openings(tool, self.places)
        )
        self._find_choices()
        for _ in range(_ROUNDS):
            before = len(self._caller.answers)
            found = self.merged(self.answers)
            await self._query_tables(found)
            await self._try(found)
            await self._ask(self.merged(self.answers))
            if len(self._caller.answers) == before:
                return

    def merged(self, answers: Sequence[Answered], *, learn: bool = True) -> Things:
        """Return the things that these answers show."""
        if learn:
            self.reader.learn_forms(answers)
        return merged(answers, self.reader.sightings(answers), self.subjects)

    @property
    def subjects(self) -> Subjects:
        """Knowledge of the tools' arguments."""
        keyed = frozenset((slot.tool, slot.parameter) for slot in self.accepted)
        return Subjects(keyed, frozenset(self._choices), frozenset(self.passing), self._preferred)

    def _find_choices(self) -> None:
        """Find the parameters whose few values are things themselves: the answer tells something of each."""
        for name, tool in self._tools.items():
            parameters = [one for one in parameters_of(tool) if one.required]
            if len(parameters) == 1 and parameters[0].enumerated and len(parameters[0].values) > 1:
                texts = {a.text for a in self.answers if a.tool == name and a.tells}
                if len(texts) > 1:
                    self._choices.add((name, parameters[0].name))

    async def _query_tables(self, found: Things) -> None:
        """Read the tables of a database whole, where a tool takes SQL."""
        names = list(self._tables)
        for noun in ("table", "view"):
            names += [str(key) for key in found.drafts[noun].things] if noun in found.drafts else []
        for tool in self._tools.values():
            taken = sql_parameter(tool)
            if taken is None or taken[1] not in ("select", "any"):
                continue
            names = names or await self._tables_told(tool.name, taken[0])
            for name in dict.fromkeys(names[:_MOST_LISTINGS]):
                if _TABLE.fullmatch(name) and not name.startswith("sqlite_"):
                    await self._read_table(tool.name, taken[0], name)

    async def _read_table(self, tool: str, parameter: str, table: str) -> None:
        """Read a table whole, and the names of its columns where its rows come without."""
        answer = (await self._caller.all([(tool, {parameter: f"SELECT * FROM {table}"})]))[0]
        if answer is None or not answer.tells:
            return
        self.reader.nouns[answer.key] = singular(words_of(table))
        width = row_width(answer.text)
        for statement in _COLUMNS if width and answer.key not in self.reader.columns else ():
            told = (await self._caller.all([(tool, {parameter: statement.format(table)})]))[0]
            names = first_column(told.text) if told is not None and told.tells else []
            if told is not None:
                self.reader.columns[told.key] = ()  # it describes a table, and is about no thing
            if len(names) == width:
                self.reader.columns[answer.key] = tuple(names)
                return

    async def _tables_told(self, tool: str, parameter: str) -> list[str]:
        """Return the names of the tables, as the database itself lists them."""
        for statement in _CATALOGUES:
            answer = (await self._caller.all([(tool, {parameter: statement})]))[0]
            if answer is not None and answer.tells:
                self.reader.nouns[answer.key] = "table"
                self.reader.columns[answer.key] = ("name",)
                return first_column(answer.text)
        return []

    # Fields as arguments

    async def _try(self, found: Things) -> None:
        trials = [trial for trial in self._trials(found) if trial.key not in self._tried]
        self._tried.update(trial.key for trial in trials)
        values = [_values_of(found, trial) for trial in trials]
        calls: list[Call] = []
        for trial, few in zip(trials, values, strict=True):
            calls += [trial.call(value) for value in (*few, _nobody(few))] if few else []
        await self._caller.all(calls)
        self.reader.learn_forms(self.answers)
        for trial, few in zip(trials, values, strict=True):
            shown = _shown(found, trial.kind, trial.field)
            own = trial.is_key or may_be_id_of(trial.field, trial.parameter.words.removesuffix(" id"), shown)
            if few and own and self._looks_up(trial, few):
                self.accepted.append(
                    ArgumentSlot(tool=trial.tool, parameter=trial.parameter.name, kind=trial.kind, field=trial.field)
                )
                how = likeness(trial.parameter, trial.kind, trial.field, is_key=False)
                known = self._preferred[trial.kind, trial.field]
                self._preferred[trial.kind, trial.field] = max(known, how)

    def _looks_up(self, trial: _Trial, values: Sequence[Any]) -> bool:
        """Return whether the tool answered these values, and not the one that no thing has."""
        answers = [self._answer(trial.call(value)) for value in values]
        nobody = self._answer(trial.call(_nobody(values)))
        if not all(answer is not None and answer.tells for answer in answers):
            return False
        if nobody is None or not nobody.tells:
            return True
        told = [self._told(answer) for answer in answers if answer is not None]
        return all(told) and not self._told(nobody)

    def _told(self, answer: Answered) -> int:
        return sum(len(found.records) for found in self.reader.lists(answer))

    def _answer(self, call: Call) -> Answered | None:
        return self._caller.answers.get(call_key(*call))

    def _trials(self, found: Things) -> Iterator[_Trial]:
        for name, tool in self._tools.items():
            if sql_parameter(tool) is not None:
                continue
            parameters = parameters_of(tool)
            for parameter in parameters:
                others = self._others(parameters, parameter)
                if others is None or parameter.limits or parameter.enumerated or parameter.type in ("boolean", "other"):
                    continue
                ranked = sorted(self._fields(found, parameter), key=lambda one: (-one[0], one[1], one[2]))
                if not parameter.required:
                    ranked = [one for one in ranked if one[0] > 1]
                for _, kind, field in ranked[:_MOST_CANDIDATES]:
                    yield _Trial(name, parameter, others, kind, field, found.drafts[kind].key == field)

    def _others(self, parameters: Sequence[ToolParameter], parameter: ToolParameter) -> dict[str, Any] | None:
        """Return values for the other required parameters, or None where one has none."""
        arguments: dict[str, Any] = {}
        for other in parameters:
            if other.required and other is not parameter:
                values = [] if other.searches and not other.values else first_values(other, self.places)
                if not values:
                    return None
                arguments[other.name] = values[0]
        return arguments

    def _fields(self, found: Things, parameter: ToolParameter) -> Iterator[tuple[int, str, str]]:
        for kind, draft in found.drafts.items():
            names = dict.fromkeys(name for fields in list(draft.things.values())[:20] for name in fields)
            for name in names:
                how = likeness(parameter, kind, name, is_key=name == draft.key)
                if how and any(parameter.takes(value) for value in _shown(found, kind, name)):
                    yield how, kind, name

    # All things

    async def _ask(self, found: Things) -> None:
        """Call each tool that takes keys about all things, and each that takes other values with a few of them."""
        calls: list[Call] = []
        for slot in self.accepted:
            draft = found.drafts.get(slot.kind)
            parameters = parameters_of(self._tools[slot.tool])
            parameter = next(one for one in parameters if one.name == slot.parameter)
            others = self._others(parameters, parameter)
            if draft is None or others is None:
                continue
            most = _MOST_FILTERED
            if slot.field == draft.key and not parameter.searches:
                lists = [
                    found for a in self.answers if a.tool == slot.tool and a.tells for found in self.reader.lists(a)
                ]
                most = _MOST_LISTINGS if any(one.several for one in lists) else _MOST_DETAILS
                if parameter.type == "array":
                    most = _MOST_FILTERED
            for value in _shown(found, slot.kind, slot.field)[:most]:
                if parameter.takes(value):
                    calls.append((slot.tool, {**others, parameter.name: parameter.given(value)}))
        await self._caller.all(calls)


def _shown(found: Things, kind: str, field: str) -> list[Any]:
    """Return the different values of a field, those in lists one by one."""
    draft = found.drafts[kind]
    values: dict[Any, None] = {}
    for fields in draft.things.values():
        told = fields.get(field)
        value = told.value(list(told.by_tool)) if told is not None else None
        if value is not None:
            for one in value[0] if isinstance(value[0], list) else [value[0]]:
                if isinstance(one, int) or (isinstance(one, str) and 0 < len(one) <= 300):
                    values[one] = None
    return list(values)


def _values_of(found: Things, trial: _Trial) -> list[Any]:
    """Return two values to try: the first, and one from the middle."""
    values = [value for value in _shown(found, trial.kind, trial.field) if trial.parameter.takes(value)]
    return list(dict.fromkeys([values[0], values[len(values) // 2]])) if values else []


def _nobody(values: Sequence[Any]) -> Any:
    """Return a value like these that no thing has."""
    first = values[0]
    if not isinstance(first, str):
        return _NO_NUMBER
    head, slash, _ = first.rpartition("/")
    return f"{head}{slash}{_NOBODY}" if slash else _NOBODY
