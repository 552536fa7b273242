"""Forms of servers (elicitation), filled in from texts: what a user knows, or what a model that plays it writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mcp_rl.toolserver.elicitation import Form, Question

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_YES_NO = {"yes": True, "true": True, "y": True, "no": False, "false": False, "n": False}


def words(text: str) -> set[str]:
    """Return the words of a text without regard to case; `tableSize` and `table_size` are two each."""
    return {word.casefold() for word in _WORD.findall(_HUMP.sub(" ", text))}


def told_by_facts(knows: Mapping[str, str], question: Question) -> Form | None:
    """Fill a form in from facts; None if a required field has neither a fact nor a default.

    A field is about a fact if its name, title and description hold all words of the fact's name; with a single field,
    the server's message counts too.
    """
    facts = {name: words(name) for name in knows}
    fields = _fields(question.schema)

    def known(name: str, field: Mapping[str, Any]) -> str | None:
        texts = (name, field.get("title"), field.get("description"), question.message if len(fields) == 1 else None)
        about = words(" ".join(text for text in texts if isinstance(text, str)))
        found = [fact for fact, parts in facts.items() if parts and parts <= about]
        return knows[max(found, key=lambda fact: len(facts[fact]))] if found else None

    filled, missing = _filled(question.schema, known)
    return None if missing else filled


def told_by_name(values: Mapping[str, str], schema: Mapping[str, Any]) -> Form | str:
    """Fill a form in from the fields' values as texts; a sentence's end on what is wrong if that is impossible."""
    if strange := sorted(values.keys() - _fields(schema).keys()):
        return f"the form has no field {strange[0]!r:.60}"
    wrong = [
        f"{text!r:.60} is no value for the field {name!r:.60}"
        for name, text in values.items()
        if _value(text, _fields(schema)[name]) is None
    ]
    filled, missing = _filled(schema, lambda name, field: values.get(name))
    if wrong or missing:
        return wrong[0] if wrong else f"the field {missing[0]!r:.60} is required"
    return filled


def listed(schema: Mapping[str, Any]) -> str:
    """Return the fields of a form as lines for a language model."""
    return "\n".join(_line(name, field, schema) for name, field in _fields(schema).items()) or "- none: yes or no"


def _line(name: str, field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    notes = [str(field.get("type", "string"))]
    if choices := [text for text, _ in _choices(field)]:
        notes.append("one of " + ", ".join(map(repr, choices)))
    notes += ["required"] if name in _required(schema) else []
    about = " ".join(str(field[key]) for key in ("title", "description") if isinstance(field.get(key), str))
    return f"- {name} ({'; '.join(notes)}){': ' if about else ''}{about}"


def _filled(
    schema: Mapping[str, Any], known: Callable[[str, Mapping[str, Any]], str | None]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a form's fields, and the required fields that have none."""
    filled: dict[str, Any] = {}
    for name, field in _fields(schema).items():
        text = known(name, field)
        value = None if text is None else _value(text, field)
        if value is None:
            value = field.get("default")
        if value is not None:
            filled[name] = value
    return filled, [name for name in _required(schema) if name not in filled]


def _fields(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = schema.get("properties")
    found = properties.items() if isinstance(properties, dict) else ()
    return {name: field if isinstance(field, dict) else {} for name, field in found}


def _required(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _value(text: str, field: Mapping[str, Any]) -> Any:
    """Return a text as a value of a field's type; None if it is not one."""
    kind = field.get("type")
    if kind == "array":
        items = field.get("items")
        parts = [_value(part.strip(), items if isinstance(items, dict) else {}) for part in text.split(",")]
        return None if None in parts else parts
    if choices := list(_choices(field)):
        return next((value for shown, value in choices if text.strip().casefold() in (shown, value.casefold())), None)
    if kind == "boolean":
        return _YES_NO.get(text.strip().casefold())
    if kind in ("number", "integer"):
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            return None
    return text


def _choices(field: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the choices of a field, each as it is shown, in lower case, and as it is sent."""
    names = field.get("enumNames")
    plain = field.get("enum")
    if isinstance(plain, list):
        shown = names if isinstance(names, list) and len(names) == len(plain) else plain
        yield from ((str(name).casefold(), one) for name, one in zip(shown, plain, strict=True) if isinstance(one, str))
    for key in ("oneOf", "anyOf"):
        titled = field.get(key)
        for one in titled if isinstance(titled, list) else ():
            if isinstance(one, dict) and isinstance(one.get("const"), str):
                yield str(one.get("title", one["const"])).casefold(), one["const"]
