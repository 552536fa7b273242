"""Records in JSON, in lines of JSON, and in Python's way of writing lists of rows."""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.forms.records import (
    CUT,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_FIELDS,
    MOST_ITEMS,
    MOST_RECORDS,
    Record,
    RecordList,
    is_scalar,
    limited,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 6
_DEEPEST_PYTHON = 30
_WRAPPERS = {"result", "results", "data", "response", "payload", "output", "items", "content", "value", "structured"}
_NAMING = ("name", "title", "label", "id", "key", "slug", "path", "uri", "url", "login", "username", "code", "symbol")
"""Fields by which a thing is called."""
_COUNTS = re.compile(
    r"(?i)(?:total|count|length|size|page|pages|limit|offset|has_?(?:more|next)|next_?(?:cursor|page)?|cursor|num_\w+|"
    r"total_?(?:hits|results|matches|found|returned)|\w+_count|\w+(?-i:Count)|success|ok|status|truncated|query|message|per_?page)"
)
"""Fields that say something of a listing, and nothing of a thing."""
_ASIDE = re.compile(
    r"(?i)_(?:meta|metadata|links|pagination|paging|debug|hints?|info|context)|pagination|paging|chunking|next_?steps?"
)
"""Names of objects that say how a call went, or what to call next, and nothing of a thing."""
_DATE = re.compile(r"\bdatetime\.(?:date|datetime)\(((?:\d{1,6}, ?){2,6}\d{1,6})\)")
_NAME_LIKE = re.compile(r"[a-z][a-z0-9_]*|[a-z]+(?:[A-Z][a-z0-9]*)+")


def read_json(text: str) -> list[RecordList]:
    """Return the records of a JSON result; of one that was cut, those before the cut."""
    text = text.strip()
    if text[:1] not in ("{", "["):
        return []
    if CUT in text or len(text) > LONGEST_TEXT:
        return _beginning(text[:LONGEST_TEXT].partition(CUT)[0])
    try:
        return records_in(json.loads(text))
    except (ValueError, RecursionError):
        return []


def read_json_lines(text: str) -> list[RecordList]:
    """Return the records of a result with an object on each line."""
    lines = [line for line in text[:LONGEST_TEXT].split("\n") if line.strip()]
    if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
        return []
    try:
        values = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return []
    return records_in(values)


def read_python(text: str) -> list[RecordList]:
    """Return the records of a list or an object as Python writes it: "[{'id': 1, 'name': 'Ada'}]"."""
    value = literal(text)
    return records_in(value) if isinstance(value, dict | list) else []


def literal(text: str) -> Any:
    """Return the JSON value of a literal of Python, or None. Nothing is evaluated."""
    text = text.strip()
    if text[:1] not in ("[", "{", "(") or len(text) > LONGEST_TEXT or CUT in text or _depth(text) > _DEEPEST_PYTHON:
        return None
    try:
        return _as_json(ast.literal_eval(_DATE.sub(_dated, text)))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _dated(found: re.Match[str]) -> str:
    """Return a date as a text, for one that Python writes as a call."""
    parts = [int(part) for part in found[1].split(",")[:6]]
    date = "-".join(f"{part:04}" if at == 0 else f"{part:02}" for at, part in enumerate(parts[:3]))
    time = ":".join(f"{part:02}" for part in parts[3:])
    return repr(f"{date} {time}" if time else date)


def records_in(value: Any, name: str = "") -> list[RecordList]:
    """Return the records of a JSON value."""
    return list(_found(value, name, 0))


def _found(value: Any, name: str, depth: int) -> Iterator[RecordList]:
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        yield from _of_list(value, name)
    elif isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), dict | list):
        key, inner = next(iter(value.items()))
        yield from _found(inner, name if str(key).lower() in _WRAPPERS else str(key), depth + 1)
    elif isinstance(value, dict):
        yield from _of_object(value, name, depth)


def _of_list(value: list[Any], name: str) -> Iterator[RecordList]:
    if not value:
        yield limited([], name)
    elif all(isinstance(entry, dict) for entry in value[:MOST_RECORDS]):
        records = [record for entry in value[:MOST_RECORDS] for record in _with_children(entry, "")]
        yield limited(records, name, cut=len(value) > MOST_RECORDS)
    elif all(isinstance(entry, str) and 0 < len(entry) <= 2 * LONGEST_NAME for entry in value[:MOST_RECORDS]):
        yield limited([{"name": entry} for entry in value], name)
    elif all(isinstance(entry, list) and len(entry) == 1 and is_scalar(entry[0]) for entry in value[:MOST_RECORDS]):
        yield limited([{"name": entry[0]} for entry in value], name)


def _of_object(value: dict[str, Any], name: str, depth: int) -> Iterator[RecordList]:
    if _is_keyed_by_name(value):
        yield limited([_flat({"name": key, **inner}) for key, inner in list(value.items())[:MOST_RECORDS]], name)
        return
    own = {key: inner for key, inner in value.items() if isinstance(inner, list) or not _COUNTS.fullmatch(str(key))}
    scalars = [key for key, inner in own.items() if is_scalar(inner)]
    named = any(key in _NAMING for key in scalars)
    lists = {key: inner for key, inner in own.items() if isinstance(inner, list)}
    if scalars or (any(isinstance(inner, dict) for inner in own.values()) and not lists):
        record = _flat(value if named or not lists else own)
        if record:
            yield limited([record], name, several=False)
    for key, inner in list(own.items())[:MOST_FIELDS]:
        if (isinstance(inner, list) and inner and all(isinstance(entry, dict) for entry in inner[:MOST_RECORDS])) or (
            isinstance(inner, list) and not named and not scalars
        ):
            yield from _of_list(inner, str(key))
        elif isinstance(inner, dict) and _is_keyed_by_name(inner):
            yield from _of_object(inner, str(key), depth + 1)
        elif isinstance(inner, dict) and str(key).lower() in _WRAPPERS and depth < _DEEPEST:
            yield from _found(inner, name, depth + 1)


def _is_keyed_by_name(value: dict[str, Any]) -> bool:
    """Return whether an object lists objects by their names, and is no record with objects in its fields."""
    inner = list(value.values())[:MOST_RECORDS]
    if len(inner) < 2 or not all(isinstance(entry, dict) and entry for entry in inner):
        return False
    shared = set.intersection(*(set(entry) for entry in inner))
    data = any(_NAME_LIKE.fullmatch(str(key)) is None for key in value)
    return bool(shared) and (data or (len(inner) > 2 and len(shared) == max(len(entry) for entry in inner)))


def _with_children(entry: dict[str, Any], above: str, depth: int = 0) -> Iterator[Record]:
    """Yield the record of an object, and those of the like objects inside it, as in a tree of folders."""
    record = _flat(entry)
    children = next(
        (
            key
            for key, inner in entry.items()
            if isinstance(inner, list) and (key == "children" or _alike(inner, entry)) and depth < 4 * _DEEPEST
        ),
        None,
    )
    called = record.get("name")
    if (children is not None or above) and isinstance(called, str) and "path" not in record:
        record["path"] = f"{above}{called}"
    if children is not None:
        record.pop(children, None)
    yield record
    for child in entry[children] if children is not None else ():
        if isinstance(child, dict):
            yield from _with_children(child, f"{above}{called}/" if isinstance(called, str) else above, depth + 1)


def _alike(inner: list[Any], entry: dict[str, Any]) -> bool:
    return bool(inner) and all(isinstance(one, dict) and len(one.keys() & entry.keys()) > 1 for one in inner)


def _flat(value: dict[str, Any], prefix: str = "", depth: int = 0) -> Record:
    """Return an object as a record: objects inside it are flattened, and lists of objects become lists of names."""
    record: Record = {}
    for key, inner in list(value.items())[:MOST_FIELDS]:
        field = f"{prefix}{key}"
        if len(field) > LONGEST_NAME or not field:
            continue
        if is_scalar(inner):
            if inner != "":
                record[field] = inner
        elif isinstance(inner, dict) and depth < 2 and not _ASIDE.fullmatch(str(key)):
            record |= _flat(inner, f"{field}.", depth + 1)
        elif isinstance(inner, list) and len(inner) <= MOST_ITEMS:
            listed = _names(inner)
            if listed is not None:
                record[field] = listed
    return record


def _names(value: list[Any]) -> list[Any] | None:
    """Return a list of texts or numbers, or of the names of objects; None for any other list."""
    if all(isinstance(entry, str | int | float) and is_scalar(entry) for entry in value):
        return value
    if all(isinstance(entry, dict) for entry in value):
        for field in _NAMING:
            if all(isinstance(entry.get(field), str | int) for entry in value):
                return [entry[field] for entry in value]
    return None


def _beginning(text: str) -> list[RecordList]:
    """Return the records before the cut in a JSON result, one after the other."""
    start = re.search(r"\[\s*\{", text[:2000])
    if start is None:
        return []
    names = re.findall(r"\"([^\"\\]{1,60})\"\s{0,20}:\s{0,20}$", text[: start.start()])
    decoder, at = json.JSONDecoder(), start.end() - 1
    records: list[Record] = []
    while at < len(text) and len(records) < MOST_RECORDS:
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict):
            break
        records.append(_flat(value))
        while at < len(text) and text[at] in " ,\n\r\t":
            at += 1
    return [limited(records, names[-1] if names else "", cut=True)] if records else []


def _depth(text: str) -> int:
    deepest = depth = 0
    for character in text:
        if character in "[{(":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]})":
            depth -= 1
    return deepest


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
