"""Listings of all settings, by dotted key."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from mcp_rl.config.run import JUDGE_PRESET, RunConfig, preset_for
from mcp_rl.config.section import UNMARKED, Role


def config_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and pydantic field of every setting, without the sections themselves."""
    for name, field in model.model_fields.items():
        if section := section_of(field.annotation):
            yield from config_keys(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def role_of(key: str) -> Role:
    """Return the role that a setting plays in a run, for a section or an entry of a table too."""
    role = UNMARKED
    section: type[BaseModel] | None = RunConfig
    for name in key.split("."):
        if section is None or name not in section.model_fields:
            break
        field = section.model_fields[name]
        role = next((mark for mark in field.metadata if isinstance(mark, Role)), Role()).within(role)
        section = section_of(field.annotation)
    return role


def settings(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield every dotted key with its value as TOML, as an override takes it; None if it is not set."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from settings(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            pairs = (f"{json.dumps(key)} = {json.dumps(entry)}" for key, entry in value.items())
            yield f"{prefix}{name}", f"{{{', '.join(pairs)}}}"
        else:
            yield f"{prefix}{name}", None if value is None else json.dumps(value, default=str, ensure_ascii=False)


def chosen_settings(config: RunConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that the user set and those of presets, by dotted key, with their values as TOML.

    A setting that the user set to its preset's value is one of the preset's.
    """
    presets = dict(_flat(preset_for(config.base_model, dict(config))))
    if config.judge.model is not None:
        presets |= dict(_flat(JUDGE_PRESET))
    now = {key: value for key, value in settings(config) if value is not None}
    given = [key for key in _given_keys(config) if key in now]
    preset = {key: now[key] for key in given if key in presets and json.dumps(presets[key]) == now[key]}
    return {key: now[key] for key in given if key not in preset}, preset


def _given_keys(config: BaseModel, prefix: str = "") -> Iterator[str]:
    for name in type(config).model_fields:
        if name in config.model_fields_set:
            value = getattr(config, name)
            if isinstance(value, BaseModel):
                yield from _given_keys(value, f"{prefix}{name}.")
            else:
                yield prefix + name


def flat_values(config: BaseModel) -> dict[str, Any]:
    """Return every value as JSON, by dotted key; the entries of tables have keys of their own."""
    return dict(_flat(config.model_dump(mode="json")))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds, or None if it holds a value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
