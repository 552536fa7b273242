"""Load a run's configuration from a TOML file, dotted overrides (`train.learning_rate=1e-4`) and a command's options.

Later sources win. Anything unusable raises a ConfigError of one sentence that names the key, the value and, if a name
is unknown, the nearest known one.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from mcp_rl.config import RunConfig, config_keys, section_of
from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_Section = TypeVar("_Section", bound=BaseModel)
_TYPE_PART = re.compile(r"(?:constrained-)?(?:bool|int|float|str)|literal\[.*\]")
"""The last part of an error's location in pydantic if a value may be of several types."""


def load_config(
    *, file: Path | None = None, overrides: Iterable[str] = (), options: Mapping[str, Any] | None = None
) -> RunConfig:
    """Return the configuration that a file, dotted overrides and a command's options describe.

    Keys of `options` are dotted; None means not given. Raises ConfigError, one sentence that names the value.
    """
    values = read_toml(file) if file else {}
    for override in overrides:
        _set(values, *parse_override(override))
    for key, value in (options or {}).items():
        if value is not None:
            _set(values, key, value)
    _check_keys(values, RunConfig)
    if "server" not in values:
        raise ConfigError("A run needs a tool server: add --server mcp_calculator; `mcp-rl servers` lists the others.")
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from error


def load_section(key: str, section: type[_Section], overrides: Iterable[str], defaults: Mapping[str, Any]) -> _Section:
    """Return one section of a run's settings, such as `train`, from special defaults and overrides.

    Raises ConfigError, one sentence that names the value, also for an override of another section.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        name, value = parse_override(override)
        if name.split(".")[0] != key:
            raise ConfigError(f"{name} cannot be set here: this command takes settings of {key} only.")
        _set(values, name, value)
    own = values.get(key, {})
    if not isinstance(own, dict):
        raise ConfigError(f"{key} is a section: set one of its keys, such as {_example(section, key)}.")
    _check_keys(own, section, f"{key}.")
    try:
        return section.model_validate({**defaults, **own})
    except ValidationError as error:
        raise ConfigError(f"{key}.{_sentence(error)}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as nested dictionaries. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} is not valid TOML: {error}.") from error


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `train.learning_rate=1e-4` into key and value; the value is TOML, or a string if it is not valid TOML."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.[\w-]+)*", key):
        raise ConfigError(f"Cannot read {text!r}: an override looks like train.learning_rate=1e-4.")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to this one, or None if none is similar."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key} cannot be set: {section} already has a value.")
    values[leaf] = value


def _check_keys(values: Mapping[str, Any], model: type[BaseModel], prefix: str = "") -> None:
    for key, value in values.items():
        if key not in model.model_fields:
            raise ConfigError(_unknown_key(prefix + key, key, prefix, model))
        section = section_of(model.model_fields[key].annotation)
        if section and isinstance(value, Mapping):
            _check_keys(value, section, f"{prefix}{key}.")
        elif section:
            raise ConfigError(f"{prefix}{key} is a section: set one of its keys, such as {_example(section, key)}.")


def _example(section: type[BaseModel], name: str) -> str:
    return f"{name}.{next(iter(section.model_fields))}"


def _unknown_key(dotted: str, leaf: str, prefix: str, model: type[BaseModel]) -> str:
    every = [key for key, _ in config_keys()]
    by_leaf = {key.rpartition(".")[2]: key for key in every}
    near = nearest(leaf, model.model_fields)
    guess = prefix + near if near else by_leaf.get(nearest(leaf, by_leaf) or "", nearest(dotted, every))
    return f"There is no setting {dotted!r}" + (
        f"; did you mean {guess!r}?" if guess else "; docs/configuration.md lists all settings."
    )


def _sentence(error: ValidationError) -> str:
    """Return the first problem of a ValidationError as one sentence that names key and value."""
    first, *others = error.errors()
    place, message = first["loc"], first["msg"].removeprefix("Value error, ").rstrip(".")
    if place and _TYPE_PART.fullmatch(str(place[-1])):  # the value may be of several types, each with its own message
        place = place[:-1]
        same = [other["msg"] for other in others if other["loc"][:-1] == place]
        message = " or ".join((message, *(text.removeprefix("Input should be ").partition(",")[0] for text in same)))
    where = ".".join(str(part) for part in place)
    if not where:
        return f"{message}."
    if where == "unsloth.token":  # the value may be a token
        return "unsloth.token names a variable of the environment, HF_TOKEN, and never holds the token itself."
    end = "" if message.endswith("?") else "."
    return f"{where} = {first['input']!r} does not work: {message[0].lower()}{message[1:]}{end}"
