"""Where plugins are found: built in, in the bundled folder, in installed packages, in files that the user names."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any

from mcp_rl.errors import PluginError
from mcp_rl.plugins.bundled import bundled_root
from mcp_rl.plugins.server import nearest

GROUP = "mcp_rl"
CHOICE = "MCP_RL_PLUGINS"
BUILT_IN = ("mcp_rl.rewards.builtin", "mcp_rl.scenarios.builtin", "mcp_rl.backends.builtin", "mcp_rl.tracking.builtin")


@dataclass(frozen=True)
class Candidate:
    """A plugin that may be loaded."""

    name: str
    load: Callable[[], Any]
    """Imports it; raises whatever its code raises."""
    origin: str
    """"built in", "bundled", "package NAME" or the file's path."""
    version: str = ""
    """Of its package; empty for a file, which may say it itself in `__version__`."""


def built_in() -> Iterator[Candidate]:
    for name in BUILT_IN:
        yield Candidate(
            name.removesuffix(".builtin"), partial(importlib.import_module, name), "built in", _own_version()
        )


def bundled() -> Iterator[Candidate]:
    for path in sorted((bundled_root() / "plugins").glob("*.py")):
        yield replace(from_file(path), origin="bundled", version=_own_version())


def installed() -> Iterator[Candidate]:
    for point in entry_points(group=GROUP):
        package = f"package {point.dist.name}" if point.dist else point.value
        yield Candidate(point.name, point.load, package, point.dist.version if point.dist else "")


def chosen() -> list[Candidate] | None:
    """What the environment variable asks for, by name or file; None where it is not set. Names that are not there fail
    when they are loaded."""
    choice = os.environ.get(CHOICE)
    return None if choice is None else [_named(name) for name in map(str.strip, choice.split(",")) if name]


def from_file(path: Path) -> Candidate:
    """A Python file; that it is not there is said when it is loaded."""

    def load() -> ModuleType:
        if not path.is_file():
            raise PluginError(f"there is no file {path}.")
        spec = importlib.util.spec_from_file_location(f"mcp_rl_plugin_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise PluginError("it is no Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(spec.name, None)
            raise
        return module

    return Candidate(path.stem, load, str(path))


def _named(name: str) -> Candidate:
    if name.endswith(".py"):
        return from_file(Path(name))
    offered = {candidate.name: candidate for candidate in [*bundled(), *installed()]}
    if name in offered:
        return offered[name]

    def missing() -> Any:
        raise PluginError(f"{CHOICE} names it, and there is no plugin {name!r}; {nearest(name, list(offered))}")

    return Candidate(name, missing, CHOICE)


def _own_version() -> str:
    try:
        return version("mcp-rl")
    except PackageNotFoundError:
        return "checkout"
