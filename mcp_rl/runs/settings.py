"""Rebuild the configuration of a run from its identity, and the command that continues it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.config import RunConfig, config_keys, flat_values, role_of, settings
from mcp_rl.config.load import load_config, parse_override
from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.run_directory import RunDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.config.identity import RunIdentity

_HIDDEN = "server.address"
"""Key of an identity: the hash of a server's command or URL, which may hold a secret."""
_NO_SETTING = (_HIDDEN, "init", "judge.rubric", "replay.of")
"""Keys of an identity that are hashes and names instead of values of a configuration."""

_NAMED_OPTIONS = ("base_model", "seed", "project", "output_dir")
"""Settings whose option has their name."""
_KEPT_OPTIONS = {
    "transport": "--transport",
    "tools.server_config": "--server-config",
    "tools.replay": "--replay",
    "scenarios.file": "--scenarios",
    "init": "--init",
}


@dataclass(frozen=True)
class Origin:
    """A run that a fork or a replay is made from."""

    run: RunDirectory
    identity: RunIdentity
    about: Mapping[str, Any] = field(default_factory=dict)
    """model.json without the identity."""

    @staticmethod
    def of(folder: Path) -> Origin:
        """Read a run. Raises RunDirectoryError if it is a fine-tuning, or its model.json cannot be read."""
        run = RunDirectory(folder)
        content = run.read_json("model.json") or {}
        if "identity" not in content:
            if "sft" in content:
                raise RunDirectoryError(
                    f"The run in {folder} is a supervised fine-tuning, which has no episodes: "
                    f"`mcp-rl sft` continues it, and --init {folder} begins another run with its adapter."
                )
            raise RunDirectoryError(f"The run in {folder} has no identity in its model.json.")
        identity = run.identity()
        assert identity is not None
        return Origin(run, identity, {key: value for key, value in content.items() if key != "identity"})

    @property
    def command(self) -> Mapping[str, Any]:
        """Settings of the command outside the identity, dotted; empty if an earlier version made the run."""
        found = self.about.get("command")
        return found if isinstance(found, Mapping) else {}

    @property
    def servers(self) -> list[str]:
        return self.identity.server.split("+")

    @property
    def server_words(self) -> list[str] | None:
        """The words of --server; None if they may hold a secret and were not recorded."""
        if _HIDDEN not in self.identity.settings:
            return self.servers
        found = self.command.get("server")
        return [str(word) for word in found] if isinstance(found, list) else None

    def config(self, overrides: Mapping[str, Any] | None = None) -> RunConfig:
        """Return the run's configuration with these settings changed. Raises ConfigError."""
        values: dict[str, Any] = {"server": tuple(self.servers), "base_model": self.identity.base_model}
        values |= {"seed": self.identity.seed, **_values(self.identity.settings)}
        values |= {key: value for key, value in self.command.items() if goes_on(key)}
        return load_config(options={**values, **(overrides or {})})


def server_options(origin: Origin) -> dict[str, Any]:
    """Return the settings that name a run's server and its tools, by dotted key; empty if they were not recorded."""
    if (servers := origin.server_words) is None:
        return {}
    names = ("transport", "plugins", "tools.server_config")
    given = {name: origin.command[name] for name in names if name in origin.command}
    chosen = {key: value for key, value in _values(origin.identity.settings).items() if key.startswith("tools.")}
    return {"server": tuple(servers), **chosen, **given}


def read_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` words into dotted keys and values. Raises ConfigError."""
    return dict(map(parse_override, words))


def check_forkable(overrides: Mapping[str, Any]) -> None:
    """Raise ConfigError, with the reason, for a setting that a fork cannot change."""
    for key in overrides:
        if reason := role_of(key).fixed:
            raise ConfigError(f"A fork cannot change {key}: {reason}.")


def goes_on(key: str) -> bool:
    """Return whether the command in model.json decides this setting of a fork: the steps, and what is carried."""
    return key == "steps" or bool(role_of(key).carried)


def changed_settings(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the value before and after of every setting that differs, by dotted key."""
    was, now = flat_values(before), flat_values(after)
    return {key: (was.get(key), now.get(key)) for key in {**was, **now} if was.get(key) != now.get(key)}


def measured_otherwise(changed: Iterable[str]) -> list[str]:
    """Return the settings among these on which evaluations depend."""
    return [key for key in changed if role_of(key).measured]


def with_settings(identity: RunIdentity, changed: Mapping[str, tuple[Any, Any]]) -> RunIdentity:
    """Return the identity with new values of the settings that are part of it."""
    every = {key for key, _ in config_keys()}
    mine = dict(identity.settings)
    for key, (_, now) in changed.items():
        if key in mine or key not in every:
            mine[key] = now
    gone = {key for key, (_, now) in changed.items() if key not in every and now is None}
    return identity.model_copy(update={"settings": {key: value for key, value in mine.items() if key not in gone}})


def train_command(origin: Origin, config: RunConfig, *, steps: int | None = None) -> tuple[str, list[str]]:
    """Return the `mcp-rl train` command of a configuration, and a sentence for each word that was not recorded."""
    identity, given, missing = origin.identity, origin.command, []
    words = ["mcp-rl", "train", *_server_words(origin)]
    if origin.server_words is None:
        missing.append("SERVER is the command or the URL that the run was made with, which is not recorded.")
    plain = load_config(options={"server": tuple(origin.servers)})
    for name in _NAMED_OPTIONS:
        if getattr(config, name) != getattr(plain, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
    words += ["--name", config.name]
    if steps is not None:
        words += ["--steps", str(steps)]
    for key, option in _KEPT_OPTIONS.items():
        if key in given:
            words += [option, str(given[key])]
    words += _plugin_words(origin)
    if identity.scenarios_hash != "explored" and not given:
        words += ["--scenarios", "FILE"]
        missing.append("FILE is the scenarios file that the run was made with, unless its server brings one.")
    if identity.settings.get("init") and "init" not in given:
        words += ["--init", "PATH"]
        missing.append("PATH is what the run began with.")
    if _is_hash(identity.settings.get("judge.rubric")):
        words += ["--judge-rubric", "RUBRIC"]
        missing.append("RUBRIC is the file with the judge's rubric that the run was made with.")
    if config.judge.model is not None and config.judge.base_url is None:
        missing.append("If the judge has its own address, add --judge-base-url.")
    return shlex.join([*words, *_override_words(config)]), missing


def evaluate_command(origin: Origin, *others: Path) -> str:
    """Return the `mcp-rl evaluate` command that compares a run with the runs in `others` on its held-out scenarios.

    SERVER stands for a server that is not recorded.
    """
    words = ["mcp-rl", "evaluate", *_server_words(origin), "--scenarios", str(origin.run.path / "val.jsonl")]
    words += [word for path in (origin.run.path, *others) for word in ("--model", str(path))]
    return shlex.join([*words, *_plugin_words(origin)])


def _server_words(origin: Origin) -> list[str]:
    servers = ["SERVER"] if origin.server_words is None else origin.server_words
    return [word for server in servers for word in ("--server", server)]


def _plugin_words(origin: Origin) -> list[str]:
    return [word for plugin in origin.command.get("plugins", ()) for word in ("--plugin", str(plugin))]


def _override_words(config: RunConfig) -> list[str]:
    """Return every setting that differs from its default and has no option of its own, as an override."""
    named = {"server": config.server, "base_model": config.base_model, "judge.model": config.judge.model}
    plain = dict(settings(load_config(options=named)))
    as_options = {*_NAMED_OPTIONS, "server", "name", "steps", "init", "transport", "plugins"}
    return [
        f"{key}={'none' if value is None else _unquoted(value)}"
        for key, value in settings(config)
        if key not in as_options and (value != plain.get(key) or (key == "judge.model" and value is not None))
    ]


def _unquoted(value: str) -> str:
    """Remove the quotes of a plain word, which needs none in an override."""
    found = re.fullmatch(r'"([A-Za-z][\w./-]*)"', value)
    return found[1] if found and found[1] not in ("true", "false", "inf", "nan") else value


def _values(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an identity as values of a configuration, with the entries of tables put together."""
    every = {key for key, _ in config_keys()}
    values: dict[str, Any] = {}
    for key, value in flat.items():
        if key in _NO_SETTING:
            continue
        if key in every:
            values[key] = value
        elif table := next((name for name in every if key.startswith(f"{name}.")), None):
            values.setdefault(table, {})[key.removeprefix(f"{table}.")] = value
    if isinstance(rubric := flat.get("judge.rubric"), str) and not _is_hash(rubric):
        values["judge.rubric"] = rubric
    return values


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16}", value) is not None
