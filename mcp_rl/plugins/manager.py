"""Finds the plugins and collects what they offer. One bad plugin is a sentence in `problems`, not the end of the run.

Looked for in this order: the parts that are built in, the bundled `plugins/` folder, the entry-point group `mcp_rl`
of installed packages, and the files that the user names. `MCP_RL_PLUGINS`, a comma-separated list of plugin names or
files, chooses exactly which of these load besides the built-in ones; set but empty, it loads none of them.
"""

import importlib
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from mcp_rl.errors import PluginError
from mcp_rl.plugins import hookspecs
from mcp_rl.plugins.bundled import bundled_root
from mcp_rl.plugins.server import ToolServer, nearest

log = logging.getLogger(__name__)
T = TypeVar("T")

GROUP = "mcp_rl"
CHOICE = "MCP_RL_PLUGINS"
_BUILT_IN = ("mcp_rl.rewards.builtin",)


@dataclass
class Plugins:
    """What the loaded plugins offer."""

    hook: pluggy.HookRelay
    """Calls a hook of all plugins: `plugins.hook.step_finished(step=1, metrics={})`."""
    names: list[str]
    """Of the plugins that loaded."""
    servers: dict[str, ToolServer] = field(default_factory=dict)
    verifiers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """A sentence for each plugin that did not load, or not wholly: who, what and where."""

    def server(self, name: str) -> ToolServer:
        """Raises PluginError with the nearest right name where there is no such server."""
        if name in self.servers:
            return self.servers[name]
        sentence = f"There is no server named {name!r}; {nearest(name, list(self.servers))}"
        raise PluginError(" ".join([sentence, *self.problems]))


@dataclass(frozen=True)
class _Candidate:
    name: str
    load: Callable[[], Any]
    where: str


def load_plugins(files: Iterable[str | Path] = ()) -> Plugins:
    """Load the plugins and collect what they register.

    Raises PluginError where a plugin that was asked for by name or file cannot be used; the others are only reported.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    plugins = Plugins(manager.hook, [])
    asked = [_from_file(Path(file)) for file in files]
    demanded = {candidate.name for candidate in asked}
    if (choice := os.environ.get(CHOICE)) is None:
        chosen = [*_bundled(), *_installed()]
    else:
        chosen = [_chosen(name.strip()) for name in choice.split(",") if name.strip()]
        demanded |= {candidate.name for candidate in chosen}
    for candidate in _distinct([*_built_in(), *chosen, *asked]):
        try:
            _register(manager, plugins, candidate)
        except PluginError as error:
            if candidate.name in demanded:
                raise
            log.warning("%s", error)
            plugins.problems.append(str(error))
    return plugins


def _register(manager: pluggy.PluginManager, plugins: Plugins, candidate: _Candidate) -> None:
    """Load one plugin and take over what it offers, all of it or nothing."""
    before = (dict(plugins.servers), dict(plugins.verifiers))
    module: Any = None
    try:
        module = candidate.load()
        manager.register(module, candidate.name)
        _refuse_unknown_hooks(manager, module)
        _collect(manager, module, "register_servers", _server_registrar(plugins, candidate))
        _collect(manager, module, "register_verifiers", _verifier_registrar(plugins))
    except (Exception, SystemExit) as error:
        if module is not None and manager.is_registered(module):
            manager.unregister(module)
        plugins.servers, plugins.verifiers = before
        what = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        raise PluginError(
            f"Plugin {candidate.name!r} ({_place(error, candidate.where)}) was left out: {what}"
        ) from error
    plugins.names.append(candidate.name)


def _refuse_unknown_hooks(manager: pluggy.PluginManager, module: Any) -> None:
    known = [name for name, _ in vars(hookspecs).items() if hasattr(vars(hookspecs)[name], "mcp_rl_spec")]
    for caller in manager.get_hookcallers(module) or []:
        if not caller.has_spec():
            raise PluginError(f"there is no hook named {caller.name!r}; {nearest(caller.name, known)}")


def _collect(manager: pluggy.PluginManager, module: Any, hook: str, register: Callable[..., None]) -> None:
    """Call one hook of this plugin alone, so that it can only fail for itself."""
    others = [plugin for plugin in manager.get_plugins() if plugin is not module]
    manager.subset_hook_caller(hook, others)(register=register)


def _server_registrar(plugins: Plugins, candidate: _Candidate) -> Callable[[ToolServer], None]:
    def register(server: ToolServer) -> None:
        if not isinstance(server, ToolServer):
            raise PluginError(f"register() takes a ToolServer, not {server!r}.")
        _add(plugins.servers, server.name, replace(server, origin=candidate.where), "server")

    return register


def _verifier_registrar(plugins: Plugins) -> Callable[[str, Callable[..., Any]], None]:
    def register(kind: str, function: Callable[..., Any]) -> None:
        if not isinstance(kind, str) or not callable(function):
            raise PluginError(f"register() takes the verifier's name and a function, not {kind!r} and {function!r}.")
        _add(plugins.verifiers, kind, function, "verifier")

    return register


def _add(registry: dict[str, T], name: str, value: T, what: str) -> None:
    if name in registry:
        origin = getattr(registry[name], "origin", "") or "another plugin"
        raise PluginError(f"the {what} {name!r} is already offered by {origin}.")
    registry[name] = value


def _built_in() -> Iterator[_Candidate]:
    for name in _BUILT_IN:
        yield _Candidate(name, lambda name=name: importlib.import_module(name), "built in")  # type: ignore[misc]


def _bundled() -> Iterator[_Candidate]:
    for path in sorted((bundled_root() / "plugins").glob("*.py")):
        yield replace(_from_file(path), where="bundled")


def _installed() -> Iterator[_Candidate]:
    for point in entry_points(group=GROUP):
        distribution = f"package {point.dist.name}" if point.dist else point.value
        yield _Candidate(point.name, point.load, distribution)


def _chosen(name: str) -> _Candidate:
    if name.endswith(".py"):
        return _from_file(Path(name))
    offered = {candidate.name: candidate for candidate in [*_installed(), *_bundled()]}
    if name not in offered:
        raise PluginError(f"{CHOICE} names no plugin {name!r}; {nearest(name, list(offered))}")
    return offered[name]


def _from_file(path: Path) -> _Candidate:
    if not path.is_file():
        raise PluginError(f"There is no plugin file {path}.")

    def load() -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"mcp_rl_plugin_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise PluginError("it is no Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return _Candidate(path.stem, load, str(path))


def _distinct(candidates: Sequence[_Candidate]) -> Iterator[_Candidate]:
    """One of each name, the later ones first choice: what the user names replaces what is bundled."""
    yield from {candidate.name: candidate for candidate in candidates}.values()


def _place(error: BaseException, where: str) -> str:
    """The plugin's file and line that raised, as far as the traceback tells."""
    here = Path(__file__).parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith("<") and not re.search(r"\b(importlib|pluggy)\b", f.filename)]
    own = [f for f in own if here not in Path(f.filename).parents]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else where
