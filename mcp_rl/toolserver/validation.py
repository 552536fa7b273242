"""JSON Schema validators for schemas that come from servers: whatever a pattern is, matching it takes linear time."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]
import referencing
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, extend, validator_for


def validator_of(schema: Any) -> Validator:
    """A validator of the dialect that the schema names, 2020-12 where it names none.

    A pattern that only other engines know, such as one that looks ahead, matches everything: the server checks it.
    """
    kind = _linear(validator_for(schema, default=Draft202012Validator))
    registry: referencing.Registry[Any] = referencing.Registry()
    validator: Validator = kind(schema, registry=registry)
    return validator


@lru_cache(maxsize=16)
def _linear(kind: Any) -> Any:
    """The dialect with our own matching in the three keywords that match."""

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

    own = {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": additional}
    return extend(kind, own)  # type: ignore[no-untyped-call]


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


def _matches(pattern: Any, text: str) -> bool:
    compiled = _compiled(pattern) if isinstance(pattern, str) else None
    return compiled is None or compiled.search(text) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    """None where re2 does not know it."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error:
        return None
