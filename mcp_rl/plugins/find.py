"""The search for plugins: built in, in the bundled folder, in installed packages, in files that the user names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import PluginError
from mcp_rl.system.version import own_version
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.tool_server import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

GROUP = "mcp_rl"
CHOICE = "MCP_RL_PLUGINS"
BUILT_IN = (
    "mcp_rl.plugins.builtin",
    "mcp_rl.scenarios.builtin",
    "mcp_rl.backends.builtin",
    "mcp_rl.runs.trackers.builtin",
)


@dataclass(frozen=True)
class Candidate:
    """A plugin that may be loaded."""

    name: str
    load: Callable[[], Any]
    """Imports and returns it; raises whatever its code raises."""
    origin: str
    """"built in", "bundled", "package NAME" or the file's path."""
    version: str = ""
    """The version of its package; empty for a file, which may define `__version__`."""


def built_in() -> Iterator[Candidate]:
    """Yield the built-in plugins."""
    for name in BUILT_IN:
        yield Candidate(
            name.removesuffix(".builtin"),
            partial(importlib.import_module, name),
            "built in",
            own_version() or "checkout",
        )


def bundled() -> Iterator[Candidate]:
    """Yield the plugins of the bundled folder."""
    for path in sorted((bundled_root() / "plugins").glob("*.py")):
        yield replace(from_file(path), origin="bundled", version=own_version() or "checkout")


def installed() -> Iterator[Candidate]:
    """Yield the plugins of installed packages."""
    for point in entry_points(group=GROUP):
        package = f"package {point.dist.name}" if point.dist else point.value
        yield Candidate(point.name, point.load, package, point.dist.version if point.dist else "")


def chosen() -> list[Candidate] | None:
    """Return the plugins that MCP_RL_PLUGINS names; None if it is not set. Unknown names fail when they are loaded."""
    choice = os.environ.get(CHOICE)
    return None if choice is None else [_named(name) for name in map(str.strip, choice.split(",")) if name]


def from_file(path: Path) -> Candidate:
    """Return the plugin in a Python file. A missing file fails when it is loaded."""

    def load() -> ModuleType:
        if not path.is_file():
            raise PluginError(f"the file {path} does not exist.")
        spec = importlib.util.spec_from_file_location(f"mcp_rl_plugin_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise PluginError("it is not a Python file.")
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
        raise PluginError(f"{CHOICE} names the unknown plugin {name!r}; {nearest(name, list(offered))}")

    return Candidate(name, missing, CHOICE)
