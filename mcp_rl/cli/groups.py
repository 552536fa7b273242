"""Groups of options: dataclasses whose fields are options, so that several commands take them and none repeats them."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_type_hints

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


@dataclass(frozen=True)
class AskingFirst:
    """A command's job that runs once the user agrees to its servers of the registry. It has the job's attributes."""

    job: Any
    servers: Sequence[str]
    transport: str | None
    yes: bool

    def __call__(self) -> int | None:
        from mcp_rl.cli.registry import confirm_registry_servers

        confirm_registry_servers(self.servers, self.transport, yes=self.yes)
        code: int | None = self.job()
        return code

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give Typer the options of every group in place of the parameter of `command` that takes the group.

    The user is asked about servers of the registry before the command's job runs.
    """
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        name: taken.annotation for name, taken in signature.parameters.items() if is_dataclass(taken.annotation)
    }

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        asked = [server for server in given.get("server") or () if server.startswith(REGISTRY)]
        about = setting_value(given.get("transport")), bool(given.get("yes"))
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        job = command(**made, **given)
        return AskingFirst(job, asked, *about) if asked else job

    options = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, taken in signature.parameters.items()
        for option in (inspect.signature(groups[name]).parameters.values() if name in groups else [taken])
    ]
    vars(run)["__signature__"] = signature.replace(parameters=options)
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run
