"""JSON Schema validation against servers' schemas, within a budget.

Patterns are matched with re2, in linear time whatever they are.
"""

from __future__ import annotations

import json
import logging
import re
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import re2  # type: ignore[import-untyped]
import referencing
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing.jsonschema import DRAFT202012

from mcp_rl.toolserver.tools.budgets import (
    LARGEST_CHECKED,
    MOST_SCHEMA_STEPS,
    MOST_STEPS,
    Budget,
    OverBudget,
    json_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsonschema.protocols import Validator

log = logging.getLogger(__name__)

_MOST_ERRORS = 100
_steps: ContextVar[Budget | None] = ContextVar("steps left", default=None)


class Checker:
    """Checks values against one schema.

    A schema that cannot be used, or takes more than the budget, accepts everything, and `problem` says why.
    """

    def __init__(self, schema: Any) -> None:
        self.problem: str | None = None
        """Why values are not checked, as the rest of a sentence after "since"; None while they are."""
        self._size = json_size(schema, LARGEST_CHECKED)
        self._validator: Validator | None = None
        try:
            if self._size > LARGEST_CHECKED:
                raise OverBudget("it is too large")
            self._validator = validator_of(schema)
        except Exception as error:  # a stranger's schema may raise anything
            self.problem = f"its schema cannot be used: {error}"

    def errors(self, value: Any) -> list[ValidationError]:
        """Return what is wrong with a value, at most 100 errors; nothing if it cannot be checked."""
        if self.problem is not None or self._validator is None:
            return []
        size = json_size(value, LARGEST_CHECKED)
        if size > LARGEST_CHECKED:
            return []
        # Each step may look at the whole value.
        token = _steps.set(Budget(MOST_STEPS // (1 + size // 4096)))
        try:
            return list(islice(self._validator.iter_errors(value), _MOST_ERRORS))
        except OverBudget:
            self.problem = "its schema takes too many steps to check"
        except Exception as error:
            log.debug("A value was not checked: %s", error)
        finally:
            _steps.reset(token)
        return []

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid, or cannot be checked."""
        return not self.errors(value)


def check_schema(schema: Any) -> None:
    """Raise an error if the schema is not a valid JSON Schema, or too large to tell.

    Beside jsonschema's SchemaError, malformed references raise others.
    """
    if json_size(schema, LARGEST_CHECKED) > LARGEST_CHECKED:
        raise OverBudget(f"it is longer than {LARGEST_CHECKED // 1024} kB")
    dialect = validator_for(schema, default=Draft202012Validator)
    rules = _for_schemas(dialect)(dialect.META_SCHEMA)
    token = _steps.set(Budget(MOST_SCHEMA_STEPS))
    try:
        for error in rules.iter_errors(schema):
            raise SchemaError.create_from(error)
    finally:
        _steps.reset(token)


def validator_of(schema: Any) -> Validator:
    """Return a validator of the dialect that the schema names, by default 2020-12.

    A pattern that re2 does not support, such as a lookahead, matches everything and is left to the server.
    """
    kind = _linear(validator_for(schema, default=Draft202012Validator))
    validator: Validator = kind(schema, registry=registry_of(schema)[0])
    return validator


def registry_of(schema: Any) -> tuple[referencing.Registry[Any], str]:
    """Return a registry that holds the schema and what has an address in it, and the schema's own address.

    Without it, each reference to an address searches the whole schema again.
    """
    registry: referencing.Registry[Any] = referencing.Registry()
    resource = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
    address = resource.id() or ""
    return registry.with_resource(address, resource).crawl(), address


@lru_cache(maxsize=16)
def _linear(kind: Any) -> Any:
    """Return the dialect with re2 in the three keywords that match patterns, and with its steps counted."""

    def additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        patterns = schema.get("patternProperties")
        if not patterns or not isinstance(instance, dict):
            yield from kind.VALIDATORS["additionalProperties"](validator, allowed, instance, schema) or ()
            return
        known = schema.get("properties", {})
        for name in instance:
            if name in known or any(_matches(pattern, name) for pattern in patterns):
                continue
            if allowed is False:
                yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
            else:
                yield from validator.descend(instance[name], allowed, path=name)

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": additional,
        "uniqueItems": _unique_items,
    }
    counted = {keyword: _counted(check) for keyword, check in {**kind.VALIDATORS, **own}.items()}
    return _closed(extend(kind, counted), _linear)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=16)
def _for_schemas(dialect: Any) -> Any:
    """Return a dialect's own rules for its schemas, which say that patterns must be regular expressions."""
    rules = _linear(validator_for(dialect.META_SCHEMA, default=dialect))
    return _closed(extend(rules, {"format": _format}), _for_schemas)  # type: ignore[no-untyped-call]


def _closed(kind: Any, family: Callable[[Any], Any]) -> Any:
    """Return the validator class `kind`, whose parts of a schema are checked by its `family` too.

    jsonschema checks a part that names its dialect with its own class for that dialect, with Python's `re` and
    uncounted.
    """

    def evolve(self: Any, **changes: Any) -> Any:
        schema = changes.setdefault("schema", self.schema)
        named = validator_for(schema, default=kind)
        new: Any = kind if named is kind else family(named)
        for field in new.__attrs_attrs__:
            if field.init and field.alias not in changes:
                changes[field.alias] = getattr(self, field.name)
        return new(**changes)

    kind.evolve = evolve
    return kind


def _counted(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return the check of a keyword with its steps counted: its value may be a list to search."""

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if (steps := _steps.get()) is not None:
            steps.spend(1 + (len(value) // 16 if isinstance(value, list | dict | str) else 0))
        return check(validator, value, instance, schema)

    return counted


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, below in patterns.items():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, below, path=name, schema_path=pattern)


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if unique and isinstance(instance, list):
        seen = {json.dumps(_canonical(item), sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _canonical(value: Any) -> Any:
    """Return a value in the one form of all values that JSON Schema calls equal, such as 1 and 1.0."""
    if isinstance(value, dict):
        return {key: _canonical(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_canonical(below) for below in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if name != "regex" or not isinstance(instance, str):
        return
    if (steps := _steps.get()) is not None:
        steps.spend(4 * len(instance))
    try:
        re.compile(instance)
    except (re.error, RecursionError, OverflowError) as error:
        if compiled_pattern(instance) is None:
            yield ValidationError(f"{instance[:200]!r} is not a regular expression ({error})")


def _matches(pattern: Any, text: str) -> bool:
    compiled = compiled_pattern(pattern) if isinstance(pattern, str) else None
    return compiled is None or compiled.search(text) is not None


@lru_cache(maxsize=1024)
def compiled_pattern(pattern: str) -> Any:
    """Return a pattern compiled by re2, or None if re2 does not support it."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error:
        return None
