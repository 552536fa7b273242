"""The settings of a fine-tuning, and those of `train` that have a meaning in it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_rl.backends.base.options import loaded_for
from mcp_rl.backends.initial import find_initial
from mcp_rl.config import TINY, ChatConfig, TrainConfig, UnslothConfig, role_of
from mcp_rl.config.load import load_section
from mcp_rl.config.loading import loading_contradictions
from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.chat_format import CHAT
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.find import find_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DECISIVE = [name for name in TrainConfig.model_fields if (role := role_of(f"train.{name}")).sft and role.identity]
"""Settings of `train` that decide the result of a fine-tuning."""
_ELSEWHERE = {"epochs": "--epochs", "minibatches": "--batch-size"}


class SftConfig(BaseModel):
    """Settings of a fine-tuning. The defaults suit a few hundred conversations."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    files: tuple[Path, ...] = ()
    """JSON Lines of conversations, or of a run's episodes."""
    from_run: Path | None = None
    """Folder of the run whose training episodes are learned from."""
    min_reward: float = 1.0
    """Lowest reward of the episodes that are learned from; by default those that succeeded."""
    base_model: str = TINY
    """The same as in a run."""
    project: str = Field(default="default", pattern=r"^[\w][\w.-]*$")
    """The same as in a run."""
    name: str = Field(pattern=r"^[\w][\w.-]*$")
    """Name of the run's folder."""
    output_dir: Path = Path(".mcp_rl")
    """The same as in a run."""
    seed: int = Field(default=0, ge=0)
    """Seed of all randomness."""
    init: Path | None = None
    """Run or checkpoint whose weights this run begins with; None for a fresh adapter."""
    epochs: int = Field(default=3, ge=1)
    """Passes over the data; more begin to overfit."""
    batch_size: int = Field(default=16, ge=1)
    """Conversations in a step."""
    held_out: float = Field(default=0.1, ge=0, lt=1)
    """Share of the prompts that are not trained on, to measure generalisation."""
    train: TrainConfig
    """Rate, schedule, optimiser, adapter and checkpoints; the rest of the section has no meaning here."""
    unsloth: UnslothConfig = UnslothConfig()
    """Loading of the base. Unset options are those of the run that this one begins with or learns from."""
    chat: ChatConfig = ChatConfig()
    """Form of the conversations, as in a run; where it is not set, that of the run to begin with or to learn from."""

    @property
    def run_dir(self) -> Path:
        """`<output_dir>/<project>/models/<name>`."""
        return self.output_dir / self.project / "models" / self.name


def sft_config(
    files: Sequence[Path],
    overrides: Sequence[str],
    *,
    from_run: str | None = None,
    base_model: str | None = None,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> SftConfig:
    """Return the settings for a command's arguments; `options` that are None were not given.

    Without `base_model` the base is that of the run to begin with or to learn from. Raises ConfigError, one sentence
    that names the value.
    """
    given: dict[str, Any] = {key: value for key, value in (options or {}).items() if value is not None}
    places = Path(given.get("output_dir", ".mcp_rl")), str(given.get("project", "default"))
    source = None if from_run is None else find_run(from_run, *places)
    if source is None and not files:
        raise ConfigError(
            "Fine-tuning needs data: name a JSON Lines file of conversations, or a run with --from-run NAME."
        )
    for given_file in files:
        if given_file.is_dir():
            raise ConfigError(f"{given_file} is a folder; name a JSON Lines file, or a run with --from-run.")
    init: Path | None = given.get("init")
    known = [base_of(find_initial(init).folder)] if init else []
    known += [base_of(source)] if source else []
    base = base_model or next(filter(None, known), TINY)
    own = [override for override in overrides if override.startswith("chat.")]
    train, unsloth = sft_sections(base, [override for override in overrides if override not in own])
    earlier = next((found for place in (init, source) if (found := _chat_of(place))), {})
    try:
        return SftConfig(
            files=tuple(files),
            from_run=source,
            base_model=base,
            name=default_name(files, source) if name is None else name,
            train=train,
            unsloth=unsloth,
            chat=load_section("chat", ChatConfig, own, earlier),
            **given,
        )
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--{str(first['loc'][0]).replace('_', '-')}"
        message = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise ConfigError(f"{option} {first['input']} does not work: {message[0].lower()}{message[1:]}.") from error


def sft_sections(base_model: str, overrides: Sequence[str] = ()) -> tuple[TrainConfig, UnslothConfig]:
    """Return the sections `train` and `unsloth` of a fine-tuning. Raises ConfigError for an override without a meaning
    here, and for two that contradict each other."""
    loading = [override for override in overrides if override.startswith("unsloth.")]
    for override in overrides:
        name = override.partition("=")[0]
        if override not in loading and "." in name and not name.startswith("train."):
            raise ConfigError(
                f"{name} cannot be set here: fine-tuning has only the settings of train, unsloth and chat."
            )
    train = sft_settings(base_model, [override for override in overrides if override not in loading])
    unsloth = load_section("unsloth", UnslothConfig, loading, {})
    if problem := next(loading_contradictions(unsloth, train), None):
        raise ConfigError(f"{problem}.")
    return train, unsloth


def sft_settings(base_model: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return the `train` section of a fine-tuning. Raises ConfigError for an override without a meaning here."""
    for override in overrides:
        key = override.partition("=")[0].removeprefix("train.").split(".")[0]
        if key in _ELSEWHERE:
            raise ConfigError(f"train.{key} has no meaning in fine-tuning: give {_ELSEWHERE[key]} instead.")
        if key in TrainConfig.model_fields and not role_of(f"train.{key}").sft:
            raise ConfigError(f"train.{key} has no meaning in fine-tuning, which has no rewards and samples nothing.")
    defaults: dict[str, Any] = {"schedule": "linear", "floor": 0.0, "checkpoint_every": 20, "decay_steps": 0}
    if base_model != TINY:
        full = any(override.replace(" ", "") in ("train.method=full", 'train.method="full"') for override in overrides)
        defaults["learning_rate"] = 1e-5 if full else 1e-4
    return load_section("train", TrainConfig, overrides, defaults)


def default_name(files: Sequence[Path], from_run: Path | None) -> str:
    """Return `sft-` and the file's or the run's name, so that the same command finds the same run again."""
    stem = from_run.name if from_run is not None else files[0].stem if files else ""
    readable = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem)[:60].strip("-.")
    return f"sft-{readable or hashlib.sha256(stem.encode()).hexdigest()[:6]}"


def _chat_of(place: Path | None) -> dict[str, Any]:
    """Return the chat format's settings of the run to begin with or to learn from."""
    found = loaded_for(place).get(CHAT)
    return found if isinstance(found, dict) else {}


def base_of(run: Path) -> str | None:
    """Return the base model of a run or of a checkpoint's run; None if it is not known."""
    folder = run if (run / "model.json").is_file() else run.parent.parent
    about = RunDirectory(folder).read_json("model.json") or {}
    return str(about["base_model"]) if about.get("base_model") else None
