"""Defaults for models other than the built-in one, by size and kind, each with its reason and its source.

Size and kind are read from the model's name, or from the files of a folder; nothing is loaded or asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

SIZES = ("up to 1B", "up to 4B", "up to 14B", "larger")
_LIMITS = (1.3, 4.5, 15.0)
"""Upper limit of each size in billions of parameters, with some room, as names are rounded."""
_UNKNOWN = 2
"""Index of the size assumed where the name says none: the rates of "up to 14B" harm no smaller model."""

Value = Any
Values = tuple[Value, Value, Value, Value]


@dataclass(frozen=True)
class ModelKind:
    """A kind of model, as far as the defaults depend on it."""

    size: int
    """Index into `SIZES`."""
    thinking: bool = False
    """True if the model thinks before each answer unless told otherwise."""
    method: Literal["lora", "full"] = "lora"

    @property
    def words(self) -> str:
        return f"{SIZES[self.size]}, {'thinking' if self.thinking else 'instruct'}, {self.method}"


@dataclass(frozen=True)
class Default:
    """The default of one setting for each size; `thinking` and `full` replace it for such a run."""

    key: str
    values: Values
    why: str
    source: str = "ours"
    thinking: Values | None = None
    full: Values | None = None

    def value(self, kind: ModelKind) -> Value:
        """Return the default for a kind of model."""
        values = self.values
        if kind.method == "full" and self.full is not None:
            values = self.full
        elif kind.thinking and self.thinking is not None:
            values = self.thinking
        return values[kind.size]


def _all(value: Value) -> Values:
    return (value, value, value, value)


DEFAULTS: tuple[Default, ...] = (
    Default("steps", _all(100), "Learning curves over hundreds of tasks flatten there."),
    Default(
        "train.learning_rate",
        (1e-4, 4e-5, 2e-5, 1e-5),
        "Falls with the model's width to the power of -0.78; a tenth of it for full training.",
        "tinker-cookbook 4e-5, ART 1e-5 at 14B; LoRA Without Regret (2025) for the slope and the tenth; DAPO 1e-6",
        full=(1e-5, 4e-6, 2e-6, 1e-6),
    ),
    Default(
        "train.schedule",
        _all("constant"),
        "The policy changes its own data, so no step is known to be the last.",
        "DAPO",
    ),
    Default("train.warmup_steps", _all(3), "Adam's second moments need a few steps.", "DAPO: 20 steps"),
    Default("train.decay_steps", _all(100), "For `linear` and `cosine`: the run's steps."),
    Default(
        "train.lora.rank",
        _all(16),
        "Rewards carry few bits, so a low rank is enough; 32 takes 1.5 GB more at 7B, too much for a T4.",
        "LoRA Without Regret: rank 1 is enough in RL; Unsloth 16",
    ),
    Default(
        "train.lora.alpha",
        _all(32),
        "Fixed whatever the rank, so that the best learning rate hardly moves.",
        "LoRA Without Regret",
    ),
    Default(
        "train.lora.targets",
        _all(("all-linear",)),
        "Every linear layer; attention alone learns less.",
        "LoRA Without Regret; QLoRA, section 4",
    ),
    Default(
        "rollout.groups_per_step",
        _all(8),
        "64 episodes in a step fill one GPU's sampler.",
        "ART, TRL: 8; DAPO: 512 on a cluster",
    ),
    Default("rollout.group_size", _all(8), "Finds what works 1 time in 4.", "TRL 8; DAPO 16"),
    Default("rollout.step_tokens", _all(None), "No limit: a GPU samples long episodes side by side."),
    Default(
        "rollout.probes",
        _all(0),
        "Playing half a group first would leave a GPU idle.",
        "ours; the built-in model saves solved groups on two cores",
    ),
    Default(
        "rollout.refills",
        _all(8),
        "Groups with equal rewards teach nothing; as many as a step has may be replaced.",
        "DAPO, section 3.2 (dynamic sampling)",
    ),
    Default("rollout.max_turns", _all(10), "Five calls, their corrections and an answer."),
    Default(
        "rollout.max_turn_tokens",
        _all(1024),
        "A long answer, or a thought of a page or two.",
        "Qwen3's card: 32k for hard mathematics; tools need far less",
        thinking=_all(4096),
    ),
    Default(
        "rollout.max_tokens",
        _all(4096),
        "Some turns at their own limit.",
        thinking=_all(16_384),
    ),
    Default("rollout.max_result_tokens", _all(2048), "A page; the middle of longer results is cut."),
    Default("rollout.concurrency", _all(64), "A whole step in flight."),
    Default(
        "rollout.deadline",
        _all(1200.0),
        "Seconds, with all other episodes running; a late one is masked.",
        thinking=_all(2400.0),
    ),
    Default("train.epochs", _all(1), "More passes drift from the sampler, and sampling is cheap.", "TRL, DAPO"),
    Default(
        "train.sequence_norm",
        _all(4096),
        "The most sampled tokens of an episode.",
        "Dr. GRPO, section 3.2",
        thinking=_all(16_384),
    ),
    Default(
        "train.truncated",
        _all("mask"),
        "Half an answer says nothing about its end; punishing it teaches brevity.",
        "DAPO, section 3.4",
    ),
    Default(
        "train.sequence_cap",
        _all(3.0),
        "A sequence three times as likely as when it was sampled belongs to another policy.",
        "TRL's sequence mask; masked importance sampling (2025)",
    ),
    Default(
        "train.max_staleness",
        _all(0),
        "On one GPU overlap gains little; use 1 if the engine has GPUs of its own.",
        "AReaL (2025): 4 to 8 with corrections",
    ),
    Default(
        "train.checkpoint_every",
        (2, 5, 5, 10),
        "By size: an adapter with its moments takes 0.1 to 2 GB, a whole model 12 bytes per parameter.",
        "other trainers: 10 to 50",
        full=(10, 20, 25, 50),
    ),
    Default("train.keep_checkpoints", _all(3), "Two behind the newest; with full training one.", full=_all(2)),
    Default("scenarios.max_steps", _all(5), "The longest tasks that exploring makes."),
    Default("scenarios.unsolvable", _all(0.05), "Teaches to refuse tasks that cannot be solved."),
    Default("scenarios.without_tools", _all(0.05), "Teaches that some requests need no tool."),
    Default(
        "scenarios.levels",
        _all("mixed"),
        "Goals too, since a chat model already solves spelled-out calls.",
        "EnvFactory (2026): over-specified tasks weaken RL",
    ),
    Default("scenarios.knowledge", _all(True), "Chat models know the world, such as the time zones of cities."),
    Default(
        "evaluation.every",
        _all(10),
        "Shows a collapse within ten steps.",
        "ART's pipeline: 20",
    ),
    Default(
        "evaluation.samples_between",
        _all(0),
        "Between the full evaluations at both ends, only the greedy episode.",
    ),
)


def defaults_for(kind: ModelKind) -> dict[str, Any]:
    """Return the defaults of a kind of model, as sections."""
    found: dict[str, Any] = {}
    for default in DEFAULTS:
        *sections, name = default.key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = default.value(kind)
    return found


def kind_of(base_model: str, given: Mapping[str, Any] | None = None) -> ModelKind:
    """Return the kind of a base model by its name or folder, and by the settings given for the run."""
    given = given or {}
    method = _within(given, "train", "method") or "lora"
    switch = _within(given, "chat", "template_arguments", "enable_thinking")
    thinking = _thinks(base_model) if switch is None else bool(switch)
    return ModelKind(_size(base_model), thinking, "full" if method == "full" else "lora")


def _within(given: Any, *names: str) -> Any:
    for name in names:
        given = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
    return given


_NUMBER = re.compile(r"(?<![A-Za-z\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)


def _size(base_model: str) -> int:
    billions = _counted(base_model) or _named(base_model)
    if not billions:
        return _UNKNOWN
    return sum(billions > limit for limit in _LIMITS)


def _named(name: str) -> float | None:
    """Return the billions of parameters in a model's name: its largest number, since active experts are named too."""
    found = [
        float(times or 1) * float(count) / (1000 if unit in "mM" else 1)
        for times, count, unit in _NUMBER.findall(name.rpartition("/")[2])
    ]
    return max(found, default=None)


def _counted(base_model: str) -> float | None:
    """Estimate the billions of parameters from a folder's config.json; None if this is no folder."""
    config = _json(Path(base_model).expanduser() / "config.json")
    config = {**config, **(config.get("text_config") or {})} if config else {}
    try:
        hidden, layers, words = (int(config[name]) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
        inner = int(config.get("intermediate_size") or 4 * hidden)
    except (KeyError, TypeError, ValueError):
        return None
    return (layers * (3 * hidden * hidden + 3 * hidden * inner) + words * hidden) / 1e9


_INSTRUCT = re.compile(r"instruct|coder|-base|-pt\b|-it\b", re.IGNORECASE)
_THINKING = re.compile(r"think|reason|qwq|\br1\b|gpt-oss|magistral|qwen3|smollm3|glm-4\.[5-9]", re.IGNORECASE)


def _thinks(base_model: str) -> bool:
    """Return whether a model thinks unless told otherwise, by its name, else by the template in its folder."""
    name = base_model.rstrip("/").rpartition("/")[2]
    if re.search("think", name, re.IGNORECASE):
        return True
    if _INSTRUCT.search(name):
        return False
    folder = Path(base_model).expanduser()
    if folder.is_dir():
        template = _text(folder / "chat_template.jinja") or _text(folder / "tokenizer_config.json")
        return "<think>" in template
    return bool(_THINKING.search(name))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""
