"""Groups of options: dataclasses whose fields are options, so that several commands take them and none repeats them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

_Result = TypeVar("_Result")
REGISTRY = "registry:"
"""Begins the words of --server that name a server of the MCP registry."""


def setting_value(given: Any) -> Any:
    """Return the value of a setting for what Typer read; None if the option was not given."""
    if isinstance(given, list):
        return tuple(map(setting_value, given)) or None
    return given.value if isinstance(given, Enum) else None if given is False else given


@dataclass(frozen=True)
class Sets:
    """The setting that an option sets, as part of the `Annotated` of its field: a dotted key, or a field of a class."""

    key: str
    convert: Callable[[Any], Any] = setting_value


def settings(*groups: object) -> dict[str, Any]:
    """Return the settings that the options of these groups set, by dotted key; None for an option that was not given.

    Raises ConfigError for a value that cannot be read.
    """
    return {
        mark.key: mark.convert(getattr(group, name))
        for group in groups
        for name, hint in get_type_hints(type(group), include_extras=True).items()
        for mark in get_args(hint)
        if isinstance(mark, Sets)
    }


def with_groups(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Give Typer the options of every group in place of the parameter of `command` that takes the group.

    The user is asked about servers of the registry before the command is called.
    """
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        name: taken.annotation for name, taken in signature.parameters.items() if is_dataclass(taken.annotation)
    }

    @functools.wraps(command)
    def run(**given: Any) -> _Result:
        if any(server.startswith(REGISTRY) for server in given.get("server") or ()):
            from mcp_rl.cli.registry import confirm_registry_servers

            confirm_registry_servers(given["server"], setting_value(given.get("transport")), yes=given["yes"])
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**made, **given)

    options = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, taken in signature.parameters.items()
        for option in (inspect.signature(groups[name]).parameters.values() if name in groups else [taken])
    ]
    vars(run)["__signature__"] = signature.replace(parameters=options)
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run
