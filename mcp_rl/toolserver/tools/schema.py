"""A server's tools as OpenAI function schemas, which the model reads and its arguments are validated against.

Everything that has a meaning for a model stays: types, bounds, patterns, defaults, descriptions and every keyword not
named here. `$ref` is replaced by its target (a recursive reference by `{}`, which allows anything), so `$defs` and
`definitions` are dropped. `$schema`, `$id`, `$anchor` and `$comment`, which address validators and maintainers, are
dropped too, and so is a `title` that only repeats the name of its property or tool. The bytes depend on the listed
tools alone, not on their order. `budgets` limits how far references are expanded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import referencing.exceptions

from mcp_rl.toolserver.tools.budgets import (
    DEEPEST_EXPANSION,
    LARGEST_EXPANSION,
    LARGEST_EXPANSIONS,
    Budget,
    OverBudget,
    json_size,
)
from mcp_rl.toolserver.tools.complaint import complaint
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.validation import Checker, check_schema, registry_of

log = logging.getLogger(__name__)

_MAX_NAME = 64
_DROPPED = {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$comment", "$defs", "definitions"}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_DATA = {"const", "enum", "default", "examples", "example", "required", "dependentRequired"}
"""Keywords whose values are data, even if they look like schemas."""
_NAMED = {"properties", "patternProperties", "dependentSchemas", "dependencies"}
"""Keywords whose values are objects with a schema under each name."""


def _submission(name: str) -> Tool:
    answer = {"type": "string", "description": "The whole answer to the task, as it is to be handed in."}
    return Tool(
        name,
        "Hand in the answer and end the task. Call it once, when the work is done; nothing else counts as an answer.",
        {"type": "object", "properties": {"answer": answer}, "required": ["answer"], "additionalProperties": False},
    )


class ToolSchemas:
    """The tools of a server in the form that chat templates and OpenAI-compatible engines take.

    `openai` holds `{"type": "function", "function": {"name", "description", "parameters"}}`, sorted by the server's
    names.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
        self.to_openai = openai_names(self._tools)
        """The server's name of each tool to the name that the model uses."""
        self.to_server = {ours: theirs for theirs, ours in self.to_openai.items()}
        """The name that the model uses to the server's own name."""
        self._expansions = Budget(LARGEST_EXPANSIONS)
        self.openai = [self._function(tool) for tool in self._tools.values()]
        self._checkers: dict[str, Checker | None] = {}
        self._with_submission: dict[str, ToolSchemas] = {}
        self._only: dict[frozenset[str], ToolSchemas] = {}

    def with_submission(self, name: str) -> ToolSchemas:
        """Return these tools and one that takes the answer; the same object for the same name."""
        if name not in self._with_submission:
            self._with_submission[name] = ToolSchemas([*self._tools.values(), _submission(name)])
        return self._with_submission[name]

    def only(self, names: Collection[str]) -> ToolSchemas:
        """Return those of these tools that have one of the server's names; the same object for the same names."""
        chosen = frozenset(names)
        if chosen not in self._only:
            self._only[chosen] = ToolSchemas(tool for name, tool in self._tools.items() if name in chosen)
        return self._only[chosen]

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits that depend on every name, description and schema."""
        text = json.dumps([self.openai, self.to_server], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tool(self, openai_name: str) -> Tool:
        """Return a tool by the name that the model uses. Raises KeyError."""
        return self._tools[self.to_server[openai_name]]

    def validate(self, openai_name: str, arguments: Any) -> str | None:
        """Return a sentence for the model on what is wrong with a call, or None if it may be sent."""
        if openai_name not in self.to_server:
            return f"There is no tool {openai_name!r}. The tools are: {', '.join(sorted(self.to_server))}."
        if not isinstance(arguments, Mapping):
            return f"The arguments of {openai_name} must be a JSON object, not {json.dumps(arguments)[:80]}."
        if path := _not_finite(arguments):
            return f"Argument {path!r} must be a finite number."
        if openai_name not in self._checkers:
            self._checkers[openai_name] = _checker(self.tool(openai_name))
        checker = self._checkers[openai_name]
        if checker is None:
            return None
        errors = checker.errors(arguments)
        if checker.problem is not None:
            _unchecked(openai_name, checker.problem)
            self._checkers[openai_name] = None
        known = list(self.tool(openai_name).input_schema.get("properties") or {})
        return complaint(errors, known) if errors else None

    def _function(self, tool: Tool) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {}} | inlined(tool.input_schema, tool.name, self._expansions)
        description = tool.description or tool.title or ""
        return {
            "type": "function",
            "function": {"name": self.to_openai[tool.name], "description": description, "parameters": parameters},
        }


def openai_names(names: Iterable[str]) -> dict[str, str]:
    """Map each name to a unique one of `[a-zA-Z0-9_-]{1,64}`.

    A valid name is kept. In others, `_` replaces each invalid character, and `_2`, `_3`, … resolve collisions in
    alphabetical order, so that the order of the listing does not matter.
    """
    cleaned = {name: re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:_MAX_NAME] or "tool" for name in names}
    taken = {name for name, clean in cleaned.items() if name == clean}
    result = {name: name for name in taken}
    for name in sorted(set(cleaned) - taken):
        candidate, number = cleaned[name], 2
        while candidate in taken:
            suffix = f"_{number}"
            candidate, number = cleaned[name][: _MAX_NAME - len(suffix)] + suffix, number + 1
        taken.add(candidate)
        result[name] = candidate
    return {name: result[name] for name in cleaned}


def inlined(schema: dict[str, Any], name: str = "", expansions: Budget | None = None) -> dict[str, Any]:
    """Return a schema without references and without keywords for validators; `name` is its tool's.

    Once the schema's budget or `expansions` is spent, references become `{}`. A schema that cannot be read is returned
    with its references.
    """
    expansions = expansions or Budget(LARGEST_EXPANSIONS)
    inliner = _Inliner(min(LARGEST_EXPANSION, expansions.left))
    try:
        registry, address = registry_of(schema)
        resolver = registry.resolver(address)
        result = inliner.schema(schema, resolver, name, (id(schema),))
    except Exception as error:  # a stranger's schema may raise anything, such as a RecursionError
        log.debug("Cannot expand the schema of %s: %r", name[:80], error)
        _warn(f"The schema of {name[:80]!r} is shown with its references, since it is malformed.")
        result = {key: value for key, value in schema.items() if key not in _DROPPED}
    expansions.left -= inliner.spent
    if inliner.missing:
        _warn(
            f"The schema of {name[:80]!r} refers to {inliner.missing[:80]!r}, which it does not contain; anything is "
            "accepted there."
        )
    if inliner.over:
        _warn(f"The schema of {name[:80]!r} is shown in part, since its references expand too far.")
    return result if isinstance(result, dict) else {}


@lru_cache(maxsize=1024)
def _warn(sentence: str) -> None:
    """Log a warning once, however often the schemas are read."""
    log.warning("%s", sentence)


class _Inliner:
    def __init__(self, most: int) -> None:
        self.spent = 0
        """Size of what references were expanded to."""
        self.missing = ""
        """The first reference that has no target."""
        self.over = False
        """True once a reference was not expanded for its size or depth."""
        self._most = most
        self._depth = 0

    def schema(self, schema: Any, resolver: Any, name: str, inside: tuple[int, ...]) -> Any:
        """Return one schema inlined. `inside` holds the ids of the referenced schemas around it."""
        if not isinstance(schema, dict):
            return schema
        if len(inside) > 1:  # a part of an expansion
            self.spent += _own_size(schema)
        self._depth += 1
        own = {
            key: self._keyword(key, value, resolver, inside)
            for key, value in schema.items()
            if key not in _DROPPED and key not in _REFERENCES and not (key == "title" and _repeats(value, name))
        }
        for key in sorted(_REFERENCES & schema.keys()):
            own = _merged(self._target(schema[key], resolver, name, inside), own)
        self._depth -= 1
        return own

    def _keyword(self, key: str, value: Any, resolver: Any, inside: tuple[int, ...]) -> Any:
        if key in _DATA:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: self.schema(below, resolver, name, inside) for name, below in value.items()}
        if isinstance(value, list):
            return [self.schema(below, resolver, "", inside) for below in value]
        return self.schema(value, resolver, "", inside) if isinstance(value, dict) else value

    def _target(self, reference: Any, resolver: Any, name: str, inside: tuple[int, ...]) -> Any:
        if not isinstance(reference, str):
            return {}
        try:
            found = resolver.lookup(reference)
        except (referencing.exceptions.Unresolvable, ValueError, KeyError, TypeError, IndexError):
            self.missing = self.missing or reference
            return {}
        if id(found.contents) in inside:
            return {}
        if self.spent > self._most or self._depth > DEEPEST_EXPANSION:
            self.over = True
            return {}
        return self.schema(found.contents, found.resolver, name, (*inside, id(found.contents)))


def _own_size(schema: dict[str, Any]) -> int:
    """Return the size of a schema without the schemas in it, which are counted as they are read."""
    size = json_size(dict.fromkeys(schema))
    for key, value in schema.items():
        if key in _DATA or isinstance(value, str):
            size += json_size(value)
        elif isinstance(value, list | dict):
            size += json_size([below for below in value if isinstance(below, str)])
    return size


def _merged(target: Any, own: dict[str, Any]) -> dict[str, Any]:
    """Merge the target of a reference with the keywords beside it: both apply (JSON Schema 2020-12, core, 8.2.3.1).

    Descriptive keywords beside a reference concern this use of it, so they win; rules that differ are joined by allOf.
    """
    if target is True or target == {}:
        return own
    if not isinstance(target, dict):
        return own | {"allOf": [*_listed(own.get("allOf")), target]}
    words = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    clash = [key for key in own if key in target and key not in words and own[key] != target[key]]
    if clash:
        return own | {"allOf": [*_listed(own.get("allOf")), target]}
    return target | own


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _repeats(title: Any, name: str) -> bool:
    """Return whether a title only repeats the name, as titles generated by pydantic do."""

    def bare(text: str) -> str:
        return re.sub(r"[\W_]", "", text).casefold()

    return isinstance(title, str) and bare(title) in (bare(name), bare(name) + "arguments", "")


def _checker(tool: Tool) -> Checker | None:
    """Return a checker of arguments; None if the schema is invalid, so that only the server checks them."""
    try:
        check_schema(tool.input_schema)
    except OverBudget as error:
        _unchecked(tool.name, f"its schema cannot be checked itself: {error}")
        return None
    except Exception as error:
        # not only SchemaError: malformed patterns and references raise other errors
        _unchecked(tool.name, f"its schema is not a valid JSON Schema: {str(error)[:500]}")
        return None
    return Checker(tool.input_schema)


def _unchecked(name: str, why: str) -> None:
    _warn(f"Arguments of {name[:80]} are not checked, since {why.rstrip('.')}.")


def _not_finite(value: Any, path: str = "") -> str | None:
    """Return the path of a NaN or an infinity, which JSON does not allow; None if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return path
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, below in items:
        if found := _not_finite(below, f"{path}.{key}" if path else str(key)):
            return found
    return None
