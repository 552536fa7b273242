"""Every setting of the tree by its dotted key."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from mcp_rl.config.run import RunConfig


def config_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of the tree with its pydantic field, sections themselves left out."""
    for name, field in model.model_fields.items():
        if section := section_of(field.annotation):
            yield from config_keys(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def settings(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Every dotted key with its value as TOML, which an override would take; None where it is not set."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from settings(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            pairs = (f"{json.dumps(key)} = {json.dumps(entry)}" for key, entry in value.items())
            yield f"{prefix}{name}", f"{{{', '.join(pairs)}}}"
        else:
            yield f"{prefix}{name}", None if value is None else json.dumps(value, default=str, ensure_ascii=False)


def flat_values(config: BaseModel) -> dict[str, Any]:
    """Dotted key to value, as JSON has it; the entries of tables have keys of their own."""
    return dict(_flat(config.model_dump(mode="json")))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, or None where it holds a value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
