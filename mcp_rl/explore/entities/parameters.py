"""Parameters of tools: the values that they take before anything is known, and the fields that may fit them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.nouns import common, singular
from mcp_rl.explore.plausible import quoted_examples, takes_address
from mcp_rl.explore.words import words_of
from mcp_rl.explore.world import sql_parameter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.toolserver.tools.listing import Tool

_STAGES = {"category", "kind", "level", "priority", "role", "stage", "state", "status", "type"}
"""Words of fields whose numbers stand for a few choices."""
_FEWEST_IDS = 3
"""Different numbers under another name, below which they are not taken for ids."""
_LIMIT = re.compile(
    r"\b(?:limit|max(?:imum)?(?: \w+)?|count|(?:page|per page) ?size|per page|first|top(?: k)?|n|num \w+)$"
)
_LENGTH = re.compile(r"\b(?:length|char(?:acter)?s|bytes|tokens|depth|width|height|age)$")
_PLACE = re.compile(
    r"\b(?:path|dir|directory|folder|root|repo|repository|workspace|cwd|file|filename|filepath|source|destination)\b"
)
_FOLDER = re.compile(r"(?:^|.* )(?:path|dir|directory|folder|root)$")
SEARCH = re.compile(r"\b(?:query|search|keywords?|term|pattern|text|q|contains|match|phrase|filter)\b")
"""Names of parameters that take words to search for."""
_ALLOWED = re.compile(r"(?i)\b(?:one of|either|choose|possible|values?|options?|e\.g\.|such as|can be|must be|\bor\b)")
_MOST_OPENINGS = 6
_MANY = 1000
_COMMON = ("e", "a", "o", "i", "*")
"""Texts that a search finds in most things."""
_FEW = 3
"""A number for a required parameter of which nothing else is known."""


@dataclass(frozen=True)
class ToolParameter:
    """A parameter of a tool, as far as its schema says it plainly."""

    name: str
    type: str
    """"string", "integer", "number", "boolean", "array" of strings, or "other"."""
    required: bool
    description: str
    values: tuple[Any, ...] = ()
    """The values that the schema, its default or its description names."""
    most: float | None = None
    enumerated: bool = False
    """True if it takes nothing but these values."""
    is_address: bool = False
    """True if it seems to take the address of a page."""

    @property
    def words(self) -> str:
        """The name in words."""
        return words_of(self.name)

    @property
    def limits(self) -> bool:
        """True if it seems to be the most entries of a listing."""
        return (
            self.type in ("integer", "number")
            and _LIMIT.search(self.words) is not None
            and (_LENGTH.search(self.words) is None)
        )

    @property
    def is_place(self) -> bool:
        """True if it seems to take a path."""
        return self.type == "string" and _PLACE.search(self.words) is not None

    @property
    def is_folder(self) -> bool:
        """True if it seems to take the path of a folder whose entries are listed."""
        return self.type == "string" and _FOLDER.fullmatch(self.words) is not None and "repo" not in self.words

    @property
    def searches(self) -> bool:
        """True if it seems to take words to search for."""
        return self.type == "string" and SEARCH.search(self.words) is not None

    def takes(self, value: Any) -> bool:
        """Return whether a value has the type."""
        if isinstance(value, bool):
            return self.type == "boolean"
        if isinstance(value, int):
            return self.type in ("integer", "number")
        return self.type in ("string", "array") and isinstance(value, str)

    def given(self, value: Any) -> Any:
        """Return the argument for a single value."""
        return [value] if self.type == "array" else value


def parameters_of(tool: Tool) -> list[ToolParameter]:
    """Return the parameters of a tool, in the order of its schema."""
    required = tool.input_schema.get("required") or []
    properties = tool.input_schema.get("properties") or {}
    return [_parameter(str(name), schema, name in required, tool) for name, schema in properties.items()]


def _parameter(name: str, schema: Any, required: bool, tool: Tool) -> ToolParameter:
    fields: dict[str, Any] = schema if isinstance(schema, dict) else {}
    for choice in ("anyOf", "oneOf"):
        options = fields.get(choice)
        if isinstance(options, list):
            real = [one for one in options if isinstance(one, dict) and one.get("type") != "null"]
            fields = {**fields, **(real[0] if real else {})}
    kind = fields.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), None)
    description = str(fields.get("description") or "")[:2000]
    enum = fields.get("enum")
    values: list[Any] = list(enum)[:50] if isinstance(enum, list) else [fields["const"]] if "const" in fields else []
    enumerated = bool(values)
    if not values and kind == "string":
        examples = fields.get("examples")
        values = [one for one in examples if isinstance(one, str)] if isinstance(examples, list) else []
        values += quoted_examples(description) if _ALLOWED.search(description) or _documented(name, tool) else []
        values += _documented(name, tool)
    if fields.get("default") is not None and fields["default"] not in values:
        values.insert(0, fields["default"])
    if kind == "array":
        inner = fields.get("items")
        kind = "array" if isinstance(inner, dict) and inner.get("type", "string") == "string" else "other"
    most = fields.get("maximum")
    return ToolParameter(
        name, str(kind) if kind in ("string", "integer", "number", "boolean", "array") else "other", required,
        description, tuple(values[:12]), most if isinstance(most, int | float) else None, enumerated,
        takes_address(words_of(name), fields),
    )  # fmt: skip


def _documented(name: str, tool: Tool) -> list[str]:
    """Return the examples that a tool's description gives for a parameter, on a line that begins with its name."""
    found = re.search(rf"(?m)^\W*{re.escape(name)}\b[^\n]{{0,20}}:([^\n]{{1,300}})", tool.description[:5000])
    return quoted_examples(found[1]) if found and _ALLOWED.search(found[1]) else []


def openings(tool: Tool, places: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield arguments with which a tool can be called before any of the server's things is known.

    `places` are paths that belong to the server. There are none for a tool that needs a value that nobody told.
    """
    if sql_parameter(tool) is not None:
        return
    parameters = parameters_of(tool)
    choices: dict[str, Sequence[Any]] = {}
    for one in parameters:
        if one.required:
            found = first_values(one, places)
            if not found:
                return
            choices[one.name] = found
    limit = next((one for one in parameters if one.limits and not one.required), None)
    for values in itertools.islice(itertools.product(*choices.values()), _MOST_OPENINGS):
        arguments = dict(zip(choices, values, strict=True))
        yield arguments
        if limit is not None:
            yield {**arguments, limit.name: int(min(_MANY, limit.most or _MANY))}


def first_values(parameter: ToolParameter, places: Sequence[str]) -> list[Any]:
    """Return the values that a required parameter takes before any of the server's things is known."""
    fitting = [place for place in places if ("://" in place) == parameter.is_address]
    if (parameter.is_place or parameter.is_address) and fitting:
        return [parameter.given(place) for place in fitting[:2]]
    if parameter.limits:
        return [int(min(_MANY if parameter.most else 10, parameter.most or 10))]
    if parameter.values:
        return [parameter.given(value) if parameter.type == "array" else value for value in parameter.values]
    if parameter.searches and parameter.type == "string":
        return list(_COMMON)
    if parameter.type == "boolean":
        return [True, False]
    if parameter.type in ("integer", "number") and re.search(r"\b(?:count|number of)\b", parameter.words):
        return [_FEW]
    return []


def may_be_id_of(field: str, noun: str, values: Sequence[Any]) -> bool:
    """Return whether numbers under a field such as `author_id` may be ids of things of another noun.

    Small numbers are ids of everything, so there must be several, and not those of a status or a type.
    """
    said = words_of(field.rpartition(".")[2]).split(" ")
    if noun in said or not all(isinstance(value, int) for value in values):
        return True
    return not _STAGES & set(said) and len(set(values)) >= _FEWEST_IDS


def likeness(parameter: ToolParameter, kind: str, field: str, *, is_key: bool) -> int:
    """Return how well a field fits a parameter by their names, 0 to 3."""
    wanted, offered = parameter.words, words_of(field)
    single = singular(wanted) if parameter.type == "array" else wanted
    said = words_of(parameter.description)[:300]
    names = {offered, f"{kind} {offered}", kind if is_key else "", f"{kind} id" if is_key else ""}
    if single in names or common(single) in names:
        return 3
    if single.split(" ")[-1] == offered.split(" ")[-1] or singular(offered) == single:
        return 2
    if is_key and (
        (parameter.is_place and offered == "path") or re.search(rf"\b{re.escape(kind)}\b", f"{single} {said}")
    ):
        return 2
    if re.search(rf"\b{re.escape(offered)}\b", said) and len(offered) > 1:
        return 2
    if parameter.searches and offered in ("name", "title", "text", "content", "description", "path", "subject"):
        return 1
    return 1 if is_key and parameter.type != "integer" else 0
