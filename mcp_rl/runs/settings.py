"""From what a run was made for back to a configuration, and from there to the command that goes on with it."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_rl.config import RunConfig, config_keys, flat_values, settings
from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.overrides import load_config, parse_override
from mcp_rl.run_directory import RunDirectory, RunIdentity
from mcp_rl.training.preparation import CARRIED

_LOADED = "the checkpoint is of its base model as it was loaded"
_FIXED = {
    "server": "the scenarios and the episodes so far are of its server",
    "transport": "it is no part of what is learned; give it to `mcp-rl train`",
    "tools": "the scenarios and the episodes so far are of its tools as they were offered",
    "base_model": "the checkpoint is of its base model",
    "backend": "the checkpoint is of its backend",
    "init": "that is where a run begins",
    "seed": "the base was evaluated with its random numbers, and what comes after is to be paired with that",
    "scenarios": "its scenarios are made",
    "evaluation": "the base was evaluated in its way, and what comes after is to be compared with that",
    "train.method": "the checkpoint's weights are of its kind",
    "train.lora": "the checkpoint's adapter has its shape",
    "train.optimizer": "the checkpoint holds the state of its optimiser",
    "unsloth.model_name": _LOADED,
    "unsloth.revision": _LOADED,
    "unsloth.load_in_4bit": _LOADED,
    "unsloth.load_in_8bit": _LOADED,
    "unsloth.rope_scaling": _LOADED,
    "unsloth.resize_model_vocab": _LOADED,
    "unsloth.random_state": "the adapter is made",
    "name": "the option --name says it",
    "project": "the option --project says it",
    "output_dir": "the option --output-dir says it",
}
"""Settings, and sections, that a fork has from its run; and why."""
_FREE = ("evaluation.every",)
KEPT = ("steps", *CARRIED)
"""Settings that may change between two sessions, and go on as they were all the same."""
_MEASURES = ("rollout.temperature", "rollout.max_", "reward.", "judge.")
"""Beginnings of settings that an evaluation depends on too."""
_HIDDEN = "server.address"
"""In an identity, of a server whose command or URL may hold what must not be written down."""
_NO_SETTING = (_HIDDEN, "init", "judge.rubric", "replay.of")
"""Keys of an identity that are hashes and names, and no values of a configuration."""

_NAMED_OPTIONS = {
    "base_model": "--base-model",
    "seed": "--seed",
    "project": "--project",
    "output_dir": "--output-dir",
}
_KEPT_OPTIONS = {
    "transport": "--transport",
    "tools.server_config": "--server-config",
    "tools.replay": "--replay",
    "scenarios.file": "--scenarios",
    "init": "--init",
}


@dataclass(frozen=True)
class Origin:
    """A run that goes on elsewhere."""

    run: RunDirectory
    identity: RunIdentity
    about: Mapping[str, Any] = field(default_factory=dict)
    """model.json without the identity."""

    @staticmethod
    def of(folder: Path) -> "Origin":
        """Raises RunDirectoryError where it is a run of another kind, or its model.json cannot be read."""
        run = RunDirectory(folder)
        content = run.read_json("model.json") or {}
        if "identity" not in content:
            if "sft" in content:
                raise RunDirectoryError(
                    f"The run in {folder} is of supervised fine-tuning, which has no episodes: "
                    f"`mcp-rl sft` goes on with it, and --init {folder} begins another run with what it learned."
                )
            raise RunDirectoryError(f"The run in {folder} says nothing of what it was made for in its model.json.")
        identity = run.identity()
        assert identity is not None
        return Origin(run, identity, {key: value for key, value in content.items() if key != "identity"})

    @property
    def command(self) -> Mapping[str, Any]:
        """What of the command is no part of the identity, dotted; empty where an earlier version made the run."""
        found = self.about.get("command")
        return found if isinstance(found, Mapping) else {}

    @property
    def servers(self) -> list[str]:
        return self.identity.server.split("+")

    def config(self, overrides: Mapping[str, Any] | None = None) -> RunConfig:
        """The run's configuration, with other values in their places. Raises ConfigError."""
        values: dict[str, Any] = {"server": tuple(self.servers), "base_model": self.identity.base_model}
        values |= {"seed": self.identity.seed, **_values(self.identity.settings)}
        values |= {key: self.command[key] for key in KEPT if key in self.command}
        return load_config(options={**values, **(overrides or {})})


def read_overrides(words: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` words as dotted keys and values. Raises ConfigError."""
    return dict(map(parse_override, words))


def check_forkable(overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError for a setting that a fork has from its run, with the reason."""
    for key in overrides:
        for fixed, reason in _FIXED.items():
            if (key == fixed or key.startswith(f"{fixed}.")) and key not in _FREE:
                raise ConfigError(f"A fork cannot change {key}: {reason}.")


def changed_settings(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted key to what it was and what it is, of those that differ."""
    was, now = flat_values(before), flat_values(after)
    return {key: (was.get(key), now.get(key)) for key in {**was, **now} if was.get(key) != now.get(key)}


def measured_otherwise(changed: Iterable[str]) -> list[str]:
    """The settings among these that the evaluation of the base was made with."""
    return [key for key in changed if key.startswith(_MEASURES) and key not in ("judge.concurrency", "judge.cache")]


def with_settings(identity: RunIdentity, changed: Mapping[str, tuple[Any, Any]]) -> RunIdentity:
    """The identity with new values of those settings that are part of it."""
    every = {key for key, _ in config_keys()}
    mine = dict(identity.settings)
    for key, (_, now) in changed.items():
        if key in mine or key not in every:
            mine[key] = now
    gone = {key for key, (_, now) in changed.items() if key not in every and now is None}
    return identity.model_copy(update={"settings": {key: value for key, value in mine.items() if key not in gone}})


def train_command(origin: Origin, config: RunConfig, *, steps: int | None = None) -> tuple[str, list[str]]:
    """The `mcp-rl train` command of a configuration, and a sentence for each word of it that nobody wrote down."""
    identity, given, missing = origin.identity, origin.command, []
    words = ["mcp-rl", "train"]
    if _HIDDEN in identity.settings:
        words += ["--server", "SERVER"]
        missing.append("SERVER is the command or the URL that the run was made with, which is kept nowhere.")
    else:
        words += [word for server in origin.servers for word in ("--server", server)]
    plain = load_config(options={"server": tuple(origin.servers)})
    for name, option in _NAMED_OPTIONS.items():
        if getattr(config, name) != getattr(plain, name):
            words += [option, str(getattr(config, name))]
    words += ["--name", config.name]
    if steps is not None:
        words += ["--steps", str(steps)]
    for key, option in _KEPT_OPTIONS.items():
        if key in given:
            words += [option, str(given[key])]
    words += [word for plugin in given.get("plugins", ()) for word in ("--plugin", str(plugin))]
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
        missing.append("Where the judge has an address of its own, add --judge-base-url.")
    return shlex.join([*words, *_override_words(config)]), missing


def _override_words(config: RunConfig) -> list[str]:
    """Every setting that the command would not have by itself, as an override."""
    named = {"server": config.server, "base_model": config.base_model, "judge.model": config.judge.model}
    plain = dict(settings(load_config(options=named)))
    said = {"server", "base_model", "seed", "project", "name", "output_dir", "steps", "init", "transport", "plugins"}
    return [
        f"{key}={_unquoted(value)}"
        for key, value in settings(config)
        if value is not None and key not in said and (value != plain.get(key) or key == "judge.model")
    ]


def _unquoted(value: str) -> str:
    """A plain word needs no quotes in an override."""
    found = re.fullmatch(r'"([A-Za-z][\w./-]*)"', value)
    return found[1] if found and found[1] not in ("true", "false", "inf", "nan") else value


def _values(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an identity as values of a configuration; tables are put together again."""
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
