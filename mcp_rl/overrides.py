"""One run configuration out of a TOML file, dotted overrides (`train.learning_rate=1e-4`) and a command's options.

Later ones win. Whatever cannot be used is a ConfigError of one sentence that names the key, the value and, where a name
is unknown, the nearest right one.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mcp_rl.config import RunConfig, config_keys, section_of
from mcp_rl.errors import ConfigError

_Section = TypeVar("_Section", bound=BaseModel)
_KIND = re.compile(r"bool|int|float|str|literal\[.*\]")
"""What pydantic adds to the place of an error for each kind that a value may be of."""


def load_config(
    *, file: Path | None = None, overrides: Iterable[str] = (), options: Mapping[str, Any] | None = None
) -> RunConfig:
    """The run that a file, dotted overrides (`train.learning_rate=1e-4`) and the command's options describe.

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
        raise ConfigError("A run needs a tool server: add --server mcp_calculator; `mcp-rl servers` lists all others.")
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from error


def load_section(key: str, section: type[_Section], overrides: Iterable[str], defaults: Mapping[str, Any]) -> _Section:
    """One section of a run's settings alone, such as `train`, out of its defaults for a purpose and of overrides.

    Raises ConfigError, one sentence that names the value, for an override of another section too.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        name, value = parse_override(override)
        if name.split(".")[0] != key:
            raise ConfigError(f"{name} cannot be set here: overrides of this command begin with {key}. alone.")
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
    """A TOML file as nested dictionaries. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} is not valid TOML: {error}.") from error


def parse_override(text: str) -> tuple[str, Any]:
    """`train.learning_rate=1e-4` as key and value; the value is TOML, and a word that is not TOML is a string."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.[\w-]+)*", key):
        raise ConfigError(f"Cannot read {text!r}: an override looks like train.learning_rate=1e-4.")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like this one, or None where none does."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key} cannot be set: {section} already has a value of its own.")
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
        f"; did you mean {guess!r}?" if guess else "; docs/configuration.md lists all."
    )


def _sentence(error: ValidationError) -> str:
    """The first problem of a ValidationError as one sentence that names key and value."""
    first, *others = error.errors()
    place, message = first["loc"], first["msg"].removeprefix("Value error, ").rstrip(".")
    if place and _KIND.fullmatch(str(place[-1])):  # of a value that may be of several kinds, each with its own message
        place = place[:-1]
        same = [other["msg"] for other in others if other["loc"][:-1] == place]
        message = " or ".join((message, *(text.removeprefix("Input should be ").partition(",")[0] for text in same)))
    where = ".".join(str(part) for part in place)
    if not where:
        return f"{message}."
    if where == "unsloth.token":  # what was given may be a token
        return "unsloth.token names a variable of the environment, HF_TOKEN, and never holds the token itself."
    return f"{where} = {first['input']!r} does not work: {message[0].lower()}{message[1:]}."
