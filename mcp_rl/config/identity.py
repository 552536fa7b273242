"""The identity of a run: the settings that it was made with, and how another one differs, in words."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from mcp_rl.config.listing import config_keys, flat_values
from mcp_rl.config.run import RunConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


class RunIdentity(BaseModel):
    """The settings that a run was made with. A run can only be continued with the same ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: str
    base_model: str
    base_revision: str = ""
    """Hash of the base model's weights, or the revision that was loaded."""
    seed: int
    schema_hash: str
    scenarios_hash: str
    settings: dict[str, Any] = {}
    """The settings that change the result of learning, flat: dotted name to value."""

    def differences(self, other: RunIdentity) -> list[str]:
        """Return the differences to `other`, each as `name (was A, is B)`."""
        return [f"{name} (was {was!r}, is {now!r})" for name, was, now in self._different(other)]

    def difference(self, other: RunIdentity) -> str | None:
        """Return the rest of a sentence that begins "cannot be continued": why, and what to do. None if it can."""
        if not (found := self._different(other)):
            return None
        differing = "; ".join(self.differences(other))
        advice = ["start over with --fresh", "choose another name with --name"]
        keys = list(dict.fromkeys(_setting(name) for name, *_ in found))
        options = {} if "replay.of" in self.settings else _OPTIONS  # `mcp-rl replay` takes settings alone
        defaults = self._defaults()
        words = [_typed(key, self._value(key), options, defaults) for key in keys]
        if keys == ["schema_hash"]:
            advice.insert(0, "to go on with the server's new tools, add --allow-schema-change")
        elif None not in words:
            add = [word for word in words if word]
            leave = [key for key, word in zip(keys, words, strict=True) if word == ""]
            how = [*([f"add {' '.join(add)}"] if add else []), *([f"leave out {', '.join(leave)}"] if leave else [])]
            advice.insert(0, f"to go on with it, {' and '.join(how)}")
        said = f"{', '.join(advice[:-1])}, or {advice[-1]}"
        return f"because it was made with another {differing}. {said[0].upper()}{said[1:]}."

    def _value(self, key: str) -> Any:
        """Return the value of a setting or another part of the identity; of a table, its entries by name."""
        flat = self._flat()
        entries = {name.removeprefix(f"{key}."): value for name, value in flat.items() if name.startswith(f"{key}.")}
        return entries or flat.get(key, _EARLIER.get(key))

    def _different(self, other: RunIdentity) -> list[tuple[str, Any, Any]]:
        """Return name, own value and other value of each difference.

        A setting that one side lacks, because a later version added it or dropped it from the identity, had the value
        in `_EARLIER`, else its default.
        """
        defaults = {**self._defaults(), **_EARLIER}
        mine, theirs = self._flat(), other._flat()
        names = [name for name in dict.fromkeys([*mine, *theirs]) if name not in _NO_LONGER]
        for flat in (mine, theirs):
            flat |= {name: defaults[name] for name in names if name in defaults and name not in flat}
        return [(name, mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)]

    def _defaults(self) -> dict[str, Any]:
        return flat_values(RunConfig(server=("any",), base_model=self.base_model))

    def _flat(self) -> dict[str, Any]:
        fields = self.model_dump(mode="json")
        return {**{k: v for k, v in fields.items() if k != "settings"}, **fields["settings"]}


_OPTIONS = {
    "seed": "--seed",
    "base_model": "--base-model",
    "held_out": "--held-out",
    "batch_size": "--batch-size",
    "epochs": "--epochs",
}


_NO_LONGER = frozenset(
    f"unsloth.{name}"
    for name in (
        "use", "dtype", "max_seq_length", "full_finetuning", "token", "device_map", "trust_remote_code",
        "use_gradient_checkpointing", "fast_inference", "gpu_memory_utilization", "float8_kv_cache", "max_lora_rank",
        "disable_log_stats",
    )
)  # fmt: skip
"""Settings that earlier versions recorded in an identity, and that no longer distinguish runs."""


_EARLIER: dict[str, Any] = {"rollout.step_tokens": None}
"""Settings that earlier versions lacked, with the values that say what these did, where that is not the default."""


def _setting(name: str) -> str:
    """Return the setting that a flat name is, or is an entry of."""
    return next((key for key, _ in config_keys() if name.startswith(f"{key}.")), name)


def _typed(name: str, value: Any, options: Mapping[str, str], defaults: Mapping[str, Any]) -> str | None:
    """Return the command-line word that restores this part of an identity: "" to leave the setting out, None if there
    is no such word."""
    if name in options:
        return shlex.join([options[name], str(value)])
    if name == "judge.rubric" and isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16}", value):
        return None  # the hash of a file
    if name in ("server", "init") or name not in {
        key for key, _ in config_keys()
    }:  # names and hashes of something else
        return None
    if value is None:
        return "" if defaults.get(name) is None else f"{name}=none"
    if isinstance(value, dict):
        entries = ", ".join(f"{json.dumps(key)} = {json.dumps(entry)}" for key, entry in value.items())
        return shlex.quote(f"{name}={{{entries}}}")
    plain = isinstance(value, str) and re.fullmatch(r"(?!(true|false|inf|nan)$)[A-Za-z][\w./-]*", value)
    return shlex.quote(f"{name}={value if plain else json.dumps(value, ensure_ascii=False)}")
