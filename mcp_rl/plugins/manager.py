"""Loading plugins and collecting what they offer. A bad plugin is a sentence in `problems`, not the end of the run.

Plugins come, in this order, from the built-in parts, the bundled `plugins/` folder, the entry-point group `mcp_rl` of
installed packages, and the files that the user names. `MCP_RL_PLUGINS`, a comma-separated list of plugin names or
files, chooses exactly which of the bundled and installed ones load; set but empty, none of them loads.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import sys
import threading
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from mcp_rl.errors import PluginError
from mcp_rl.plugins import hookspecs
from mcp_rl.plugins.find import GROUP, Candidate, built_in, bundled, chosen, from_file, installed
from mcp_rl.plugins.registry import OFFERS, Offer, Registry
from mcp_rl.toolserver.tool_server import ToolServer, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mcp_rl.plugins.parts import MakeBackend, MakeTracker, ScenarioSource
    from mcp_rl.rewards.verdict import RewardFunction, VerifierFunction

log = logging.getLogger(__name__)

HOOKS = tuple(name for name, value in vars(hookspecs).items() if hasattr(value, f"{GROUP}_spec"))
"""The names of all hooks, in the order of hookspecs.py."""
_RESERVED_REWARDS = {"verifier": "the scenario's verifier", "ruler": "the judge"}
"""Parts of a reward that the run itself provides."""
_PATIENCE = 10.0
"""Seconds after which a plugin that has not returned is named in the log."""


@dataclass(frozen=True)
class Loaded:
    """A plugin that was loaded."""

    name: str
    version: str
    origin: str
    offers: dict[str, list[str]]
    """Kind ("server", "reward", …) to names."""
    hooks: list[str]
    """The hooks that it implements."""


@dataclass(frozen=True)
class Failed:
    """A plugin that was left out: its identity, the place of the error, and the error."""

    name: str
    version: str
    origin: str
    where: str
    """File and line if they are known, else the origin."""
    what: str

    @property
    def sentence(self) -> str:
        return f"Plugin {self.name!r} ({self.where}) was left out: {self.what}"


@dataclass
class Plugins:
    """The offers of the loaded plugins, by kind and name."""

    servers: Registry[ToolServer] = field(default_factory=lambda: Registry("server"))
    scenario_sources: Registry[ScenarioSource] = field(default_factory=lambda: Registry("scenario source"))
    verifiers: Registry[VerifierFunction] = field(default_factory=lambda: Registry("verifier"))
    rewards: Registry[RewardFunction] = field(default_factory=lambda: Registry("reward", _RESERVED_REWARDS))
    backends: Registry[MakeBackend] = field(default_factory=lambda: Registry("backend"))
    trackers: Registry[MakeTracker] = field(default_factory=lambda: Registry("tracker"))
    loaded: list[Loaded] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    _observers: list[_Observer] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """A sentence for each plugin that did not load."""
        return [failure.sentence for failure in self.failed]

    def server(self, name: str) -> ToolServer:
        """Return a server by name. Raises PluginError with the nearest valid name if there is none."""
        return self.servers.pick(name, self.problems)

    def notify(self, hook: str, **arguments: Any) -> list[str]:
        """Call an observer hook of all plugins: `notify("step_finished", step=1, metrics={})`.

        An observer's error does not affect the others. Returns a sentence for each one that failed for the first time.
        """
        failures = (observer.notify(arguments) for observer in self._observers if observer.hook == hook)
        return [sentence for sentence in failures if sentence]


@dataclass
class _Observer:
    plugin: str
    hook: str
    call: Callable[..., Any]
    origin: str
    failed: bool = False

    def notify(self, arguments: dict[str, Any]) -> str | None:
        try:
            with named_while_slow(f"Plugin {self.plugin!r} ({self.origin}) is still in {self.hook}"):
                self.call(**arguments)
        except (Exception, SystemExit) as error:
            if not self.failed:
                self.failed = True
                where = place(error, self.origin)
                return (
                    f"Plugin {self.plugin!r} ({where}) failed in {self.hook}, and the run goes on: {_in_words(error)}"
                )
        return None


def load_plugins(files: Iterable[str | Path] = (), *, demand: bool = True) -> Plugins:
    """Load the plugins and collect what they register.

    Raises PluginError if a plugin that was requested by name or file cannot be used; other failures are logged and kept
    in `failed`. Without `demand`, all failures are only kept there.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    plugins = Plugins()
    choice = chosen()
    demanded = {candidate.name for candidate in choice or ()}
    user_files = _distinct(from_file(Path(file)) for file in files)
    named = {candidate.name for candidate in user_files}
    others = [*bundled(), *installed()] if choice is None else choice
    # A file that the user names replaces any other plugin of its name.
    rest = _distinct(candidate for candidate in others if candidate.name not in named)
    demanded |= named
    for candidate in [*built_in(), *rest, *user_files]:
        try:
            with (
                contextlib.redirect_stdout(sys.stderr),  # stdout may be JSON
                named_while_slow(f"Plugin {candidate.name!r} ({candidate.origin}) is still loading"),
            ):
                _register(manager, plugins, candidate)
        except (Exception, SystemExit) as error:
            sentence = plugins.failed[-1].sentence
            if not demand:
                continue
            if candidate.name in demanded:
                raise PluginError(sentence) from error
            log.warning("%s", sentence)
    plugins._observers = [
        _Observer(loaded.name, hook, _alone(manager, manager.get_plugin(loaded.name), hook), loaded.origin)
        for loaded in plugins.loaded
        for hook in loaded.hooks
        if not hook.startswith("register_")
    ]
    return plugins


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Remove repetitions; candidates of one name and different origins stay."""
    return list({(candidate.name, candidate.origin): candidate for candidate in candidates}.values())


class _Misfit(PluginError):
    """An invalid implementation of a hook, and where it is written."""

    def __init__(self, function: Any, what: str) -> None:
        super().__init__(what)
        code = getattr(inspect.unwrap(function), "__code__", None)
        self.where = f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(function)


def _register(manager: pluggy.PluginManager, plugins: Plugins, candidate: Candidate) -> None:
    """Load one plugin and register all of its offers. If any fails, register none, add to `failed`, and raise."""
    taken: list[tuple[Registry[Any], str]] = []
    plugin: Any = None
    try:
        _refuse_taken_name(plugins, candidate)
        plugin = candidate.load()
        hooks = _check_hooks(manager, plugin)
        manager.register(plugin, candidate.name)
        _alone(manager, plugin, "register_servers")(register=_server_registrar(plugins, candidate, taken))
        for offer in OFFERS:
            _alone(manager, plugin, offer.hook)(register=_registrar(plugins, candidate, offer, taken))
    except (Exception, SystemExit) as error:
        if plugin is not None and manager.get_plugin(candidate.name) is plugin:
            manager.unregister(plugin)
        for registry, name in taken:
            registry.drop(name)
        file = getattr(plugin, "__file__", None)
        where = error.where if isinstance(error, _Misfit) else place(error, str(file or candidate.origin))
        plugins.failed.append(Failed(candidate.name, candidate.version, candidate.origin, where, _in_words(error)))
        raise
    version = candidate.version or str(getattr(plugin, "__version__", ""))
    offers: dict[str, list[str]] = {}
    for registry, name in taken:
        offers.setdefault(registry.kind, []).append(name)
    plugins.loaded.append(Loaded(candidate.name, version, candidate.origin, offers, hooks))


@contextlib.contextmanager
def named_while_slow(what: str) -> Iterator[None]:
    """Enclose code of a plugin, which cannot be interrupted; log `what` if it takes long."""
    timer = threading.Timer(_PATIENCE, lambda: log.warning("%s after %.0f s.", what, _PATIENCE))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _refuse_taken_name(plugins: Plugins, candidate: Candidate) -> None:
    for loaded in plugins.loaded:
        if loaded.name == candidate.name:
            raise PluginError(f"a plugin of that name is already loaded ({loaded.origin}).")


def _check_hooks(manager: pluggy.PluginManager, plugin: Any) -> list[str]:
    """Return the hooks that a plugin implements, in our order. Raises PluginError for an invalid implementation."""
    implemented = set()
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is not None:
            hook = options.get("specname") or name
            _check_hook(hook, getattr(plugin, name))
            implemented.add(hook)
        elif name in HOOKS and not hasattr(getattr(plugin, name), f"{GROUP}_spec"):
            raise _Misfit(getattr(plugin, name), f"{name} has no @hookimpl above it.")
    if not implemented:
        raise PluginError("it implements no hook: put @hookimpl above its functions, or leave it out.")
    return [hook for hook in HOOKS if hook in implemented]


def _check_hook(hook: str, function: Callable[..., Any]) -> None:
    if hook not in HOOKS:
        raise _Misfit(function, f"there is no hook named {hook!r}; {nearest(hook, HOOKS)}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise _Misfit(function, f"{hook} is asynchronous; hooks are ordinary functions.")
    offered = list(inspect.signature(getattr(hookspecs, hook)).parameters)
    for parameter in inspect.signature(function).parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if variadic or (parameter.name not in offered and parameter.default is parameter.empty):
            raise _Misfit(function, f"{hook} takes {parameter}, but the hook has only {', '.join(offered)}.")


def _alone(manager: pluggy.PluginManager, plugin: Any, hook: str) -> Callable[..., Any]:
    """Return a caller of one plugin's hook, so that its failure concerns no other. Plugins registered later join in."""
    return manager.subset_hook_caller(hook, [other for other in manager.get_plugins() if other is not plugin])


def _server_registrar(
    plugins: Plugins, candidate: Candidate, taken: list[tuple[Registry[Any], str]]
) -> Callable[[ToolServer], None]:
    def register(server: ToolServer) -> None:
        if not isinstance(server, ToolServer):
            raise PluginError(f"register() takes a ToolServer, not {server!r:.80}.")
        plugins.servers.add(server.name, replace(server, origin=candidate.origin, by_plugin=True), candidate.origin)
        taken.append((plugins.servers, server.name))
        (verifiers,) = (offer for offer in OFFERS if offer.registry == "verifiers")
        for kind, function in server.verifiers.items():
            _registrar(plugins, candidate, verifiers, taken)(kind, function)

    return register


def _registrar(
    plugins: Plugins, candidate: Candidate, offer: Offer, taken: list[tuple[Registry[Any], str]]
) -> Callable[[str, Callable[..., Any]], None]:
    registry: Registry[Any] = getattr(plugins, offer.registry)

    def register(name: str, function: Callable[..., Any]) -> None:
        offer.check(name, function)
        registry.add(name, function, candidate.origin)
        taken.append((registry, name))

    return register


def place(error: BaseException, otherwise: str) -> str:
    """Return the plugin's file and line that raised, if the traceback shows them, else `otherwise`."""
    package = Path(__file__).parents[1]
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    own = [f for f in frames if not f.filename.startswith("<") and not re.search(r"\b(importlib|pluggy)\b", f.filename)]
    own = [f for f in own if package not in (folders := Path(f.filename).parents) or package / "bundled" in folders]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else otherwise


def _in_words(error: BaseException) -> str:
    """Return the error in one line."""
    text = " ".join(str(error).split())
    return (
        text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}" if text else type(error).__name__
    )
