"""Statements of SQL that change one row of a table, as effects: their texts, and the values read back from them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.world_model import Effect
from mcp_rl.explore.world import sql_parameter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.explore.entities.world_model import Entity, EntityKind, WorldModel
    from mcp_rl.toolserver.tools.listing import Tool

WHOLE_TABLE = re.compile(r"(?i)SELECT \* FROM ([A-Za-z_]\w{0,60})")
"""A statement that reads a table whole."""
_COLUMN = re.compile(r"[A-Za-z_]\w{0,60}")
_BLANK = re.compile(r"\{(\w+)\}")
_MOST_KINDS, _MOST_FIELDS = 4, 3
_VALUE = r"('(?:[^']|'')*'|-?\d+(?:\.\d+)?)"


def filled(statement: str, values: Mapping[str, Any]) -> str | None:
    """Return a statement with a literal for each `{field}`; None where a value is missing or no literal can be made."""
    blanks = _BLANK.findall(statement)
    if any(not _can_be_written(values.get(name)) for name in blanks):
        return None
    return _BLANK.sub(lambda found: _literal(values[found[1]]), statement)


def values_in(statement: str, text: str) -> dict[str, Any] | None:
    """Read the values of a statement's fields back from a text; None if the text is another statement."""
    pattern, names = "", list[str]()
    for position, part in enumerate(_BLANK.split(statement)):
        pattern += _VALUE if position % 2 else re.escape(part)
        names += [part] if position % 2 else []
    found = re.fullmatch(pattern, text)
    return dict(zip(names, map(_read, found.groups()), strict=True)) if found else None


def _can_be_written(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _literal(value: str | int | float) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def _read(literal: str) -> str | int | float:
    if literal.startswith("'"):
        return literal[1:-1].replace("''", "'")
    return float(literal) if "." in literal else int(literal)


def row_effects(tool: Tool, world: WorldModel) -> Iterator[tuple[Effect, Entity]]:
    """Yield candidate effects of statements on the rows of each table, each with a row to try it on."""
    found = sql_parameter(tool)
    if found is None or found[1] not in ("change", "any"):
        return
    parameter = found[0]
    for kind, table in list(_tables(world).items())[:_MOST_KINDS]:
        about, rows = world.kinds[kind], world.of_kind(kind)
        if not rows or not _COLUMN.fullmatch(about.key):
            continue
        columns = [name for name in about.fields if _COLUMN.fullmatch(name)]
        settable = [name for name in columns if name != about.key and not _is_key(name, kind, world)]
        where = f"WHERE {about.key} = {{{about.key}}}"
        for name in settable[:_MOST_FIELDS]:
            yield (
                _effect(
                    tool, parameter, f"UPDATE {table} SET {name} = {{{name}}} {where}", "sets", about, [name], name
                ),
                rows[-1],
            )
        yield _effect(tool, parameter, f"DELETE FROM {table} {where}", "removes", about, []), rows[-1]
        given = [name for name in columns if name != about.key or about.fields[name].kind == "text"]
        given = [name for name in given if not _is_key(name, kind, world)]
        if len(given) == len(columns) - (about.fields[about.key].kind == "number"):
            blanks = ", ".join(f"{{{name}}}" for name in given)
            insert = f"INSERT INTO {table} ({', '.join(given)}) VALUES ({blanks})"
            yield _effect(tool, parameter, insert, "creates", about, given), rows[-1]


def _tables(world: WorldModel) -> dict[str, str]:
    """Return the kinds whose whole table an observation shows, with the names of the tables."""
    found: dict[str, str] = {}
    for seen in world.observations:
        for value in seen.arguments.values():
            whole = WHOLE_TABLE.fullmatch(value) if isinstance(value, str) else None
            if whole and seen.lists in world.kinds:
                found.setdefault(str(seen.lists), whole[1])
    return found


def _is_key(name: str, kind: str, world: WorldModel) -> bool:
    """Return whether a column holds keys of another table, or ids."""
    return name == "id" or any((one.kind, one.field) == (kind, name) for one in world.references)


def _effect(
    tool: Tool,
    parameter: str,
    statement: str,
    does: Any,
    kind: EntityKind,
    given: Sequence[str],
    name: str | None = None,
) -> Effect:
    return Effect(
        tool=tool.name,
        does=does,
        kind=kind.name,
        field=name,
        keyed_by=None if does == "creates" else parameter,
        valued_by={f"{parameter} {one}": one for one in given},
        example={parameter: ""},
        statement=statement,
    )
