"""A server's tools as OpenAI function schemas: what the model reads, and what its arguments are checked against.

Nothing that means something to a model is lost: types, bounds, patterns, defaults, descriptions and every keyword not
named here stay. What changes: `$ref` is replaced by what it points to (a reference into itself becomes `{}`, anything),
so `$defs` and `definitions` go; `$schema`, `$id`, `$anchor` and `$comment` speak to validators and maintainers and go;
a `title` goes where it only repeats the property's or the tool's name. The bytes depend on the listing alone, not on
the order in which the server lists its tools.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import referencing
import referencing.exceptions
import referencing.jsonschema
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for

from mcp_rl.toolserver.complaint import complaint
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.validation import validator_of

log = logging.getLogger(__name__)

_MAX_NAME = 64
_MAX_NODES = 20_000
"""Schemas that refer to each other can grow exponentially; beyond this, references become `{}`."""
_DROPPED = {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$comment", "$defs", "definitions"}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_DATA = {"const", "enum", "default", "examples", "example", "required", "dependentRequired"}
"""Keywords whose values are data, whatever they look like."""
_NAMED = {"properties", "patternProperties", "dependentSchemas", "dependencies"}
"""Keywords whose values hold a schema under each name."""


def _submission(name: str) -> Tool:
    answer = {"type": "string", "description": "The whole answer to the task, as it is to be handed in."}
    return Tool(
        name,
        "Hand in the answer and end the task. Call it once, when the work is done; nothing else counts as an answer.",
        {"type": "object", "properties": {"answer": answer}, "required": ["answer"], "additionalProperties": False},
    )


class ToolSchemas:
    """The tools of one server in the form that chat templates and OpenAI-compatible engines take.

    `openai` holds `{"type": "function", "function": {"name", "description", "parameters"}}`, sorted by the server's
    names.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
        self.to_openai = openai_names(self._tools)
        """Server's name to the name that the model uses."""
        self.to_server = {ours: theirs for theirs, ours in self.to_openai.items()}
        """The name that the model uses to the server's."""
        self.openai = [self._function(tool) for tool in self._tools.values()]
        self._validators: dict[str, Validator | None] = {}
        self._with_submission: dict[str, ToolSchemas] = {}

    def with_submission(self, name: str) -> "ToolSchemas":
        """These tools and one that takes the answer; the same object for the same name."""
        if name not in self._with_submission:
            self._with_submission[name] = ToolSchemas([*self._tools.values(), _submission(name)])
        return self._with_submission[name]

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits that depend on all names, descriptions and schemas."""
        text = json.dumps([self.openai, self.to_server], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tool(self, openai_name: str) -> Tool:
        """Raises KeyError where the model's name for a tool is none."""
        return self._tools[self.to_server[openai_name]]

    def validate(self, openai_name: str, arguments: Any) -> str | None:
        """What is wrong with a call, in one sentence for the model, or None where it may be sent."""
        if openai_name not in self.to_server:
            return f"There is no tool {openai_name!r}. The tools are: {', '.join(sorted(self.to_server))}."
        if not isinstance(arguments, Mapping):
            return f"The arguments of {openai_name} must be a JSON object, not {json.dumps(arguments)[:80]}."
        if path := _not_finite(arguments):
            return f"Argument {path!r} must be a finite number."
        validator = self._validator(openai_name)
        if validator is None:
            return None
        try:
            errors = list(validator.iter_errors(arguments))
        except (referencing.exceptions.Unresolvable, re.error, RecursionError, TypeError, ValueError) as error:
            log.debug("Arguments of %s were not checked: %s", openai_name, error)
            return None
        known = list(self.tool(openai_name).input_schema.get("properties") or {})
        return complaint(errors, known) if errors else None

    def _function(self, tool: Tool) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {}} | inlined(tool.input_schema, tool.name)
        description = tool.description or tool.title or ""
        return {
            "type": "function",
            "function": {"name": self.to_openai[tool.name], "description": description, "parameters": parameters},
        }

    def _validator(self, openai_name: str) -> Validator | None:
        if openai_name not in self._validators:
            self._validators[openai_name] = _compiled(self.tool(openai_name))
        return self._validators[openai_name]


def openai_names(names: Iterable[str]) -> dict[str, str]:
    """Each name to a unique one of `[a-zA-Z0-9_-]{1,64}`.

    A name that is fine is kept. The others lose what is not allowed and get `_2`, `_3`, … where that makes them equal
    to another, in the order of the names, so that the order of the listing does not matter.
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


def inlined(schema: dict[str, Any], name: str = "") -> dict[str, Any]:
    """A schema without references and without what only validators read; `name` is that of its tool."""
    resource = referencing.Resource.from_contents(schema, default_specification=referencing.jsonschema.DRAFT202012)
    registry: referencing.Registry[Any] = referencing.Registry()
    resolver = registry.with_resource(resource.id() or "", resource).resolver(resource.id() or "")
    result = _Inliner().schema(schema, resolver, name, (id(schema),))
    return result if isinstance(result, dict) else {}


class _Inliner:
    def __init__(self) -> None:
        self.nodes = 0

    def schema(self, schema: Any, resolver: Any, name: str, inside: tuple[int, ...]) -> Any:
        """`inside` are the identities of the referenced schemas that this one lies in."""
        if not isinstance(schema, dict):
            return schema
        self.nodes += 1
        own = {
            key: self._keyword(key, value, resolver, inside)
            for key, value in schema.items()
            if key not in _DROPPED and key not in _REFERENCES and not (key == "title" and _repeats(value, name))
        }
        for key in sorted(_REFERENCES & schema.keys()):
            own = _merged(self._target(schema[key], resolver, name, inside), own)
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
            log.warning("A tool's schema refers to %r, which is not in it; it is read as anything.", reference)
            return {}
        if id(found.contents) in inside or self.nodes > _MAX_NODES:
            return {}
        return self.schema(found.contents, found.resolver, name, (*inside, id(found.contents)))


def _merged(target: Any, own: dict[str, Any]) -> dict[str, Any]:
    """What a reference points to and the keywords beside it: both apply (JSON Schema 2020-12, core, 8.2.3.1).

    Words beside a reference are about this use of it, so they win; rules that differ are kept side by side.
    """
    if target is True or target == {}:
        return own
    if not isinstance(target, dict):
        return own | {"allOf": [*own.get("allOf", []), target]}
    words = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    clash = [key for key in own if key in target and key not in words and own[key] != target[key]]
    if clash:
        return own | {"allOf": [*own.get("allOf", []), target]}
    return target | own


def _repeats(title: Any, name: str) -> bool:
    """Whether a title says no more than the name, as those that pydantic makes up do."""

    def bare(text: str) -> str:
        return re.sub(r"[\W_]", "", text).casefold()

    return isinstance(title, str) and bare(title) in (bare(name), bare(name) + "arguments", "")


def _compiled(tool: Tool) -> Validator | None:
    """None where the schema is none: the server checks its arguments itself."""
    try:
        validator_for(tool.input_schema, default=Draft202012Validator).check_schema(tool.input_schema)
        return validator_of(tool.input_schema)
    except Exception as error:
        # jsonschema's SchemaError, but also whatever a malformed pattern or reference makes it raise
        log.warning("Arguments of %s are not checked, since its schema is no JSON Schema: %s", tool.name, error)
        return None


def _not_finite(value: Any, path: str = "") -> str | None:
    """Where a NaN or an infinity is, which JSON does not know."""
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
