"""Resolve a model's name: a base model, a run's checkpoint, a folder, a chat model behind an API, a script."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.backends.base.base_name import base_revision, check_base_model
from mcp_rl.config import TINY
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.evaluation.scripted import SCRIPTS
from mcp_rl.inference.apis.chat_client import check_address, import_litellm, split_address
from mcp_rl.inference.apis.language_model import check_language_model
from mcp_rl.learning.disk.checkpoint import find_damage, newest_checkpoint
from mcp_rl.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.config.identity import RunIdentity
    from mcp_rl.evaluation.result import Kind
    from mcp_rl.learning.disk.checkpoint import Checkpoint

_SCRIPTED, _LITELLM, _HUB = "scripted:", "litellm:", "hf:"
_TINY_WEIGHTS = ("mcp_rl", "tiny", "weights")


@dataclass(frozen=True)
class ModelSpec:
    """A model to evaluate, found and checked as far as possible without starting anything."""

    label: str
    """The model's name in tables."""
    kind: Kind
    name: str
    """Name of the base model, LiteLLM's name, or the script's name."""
    checkpoint: Path | None = None
    """Folder of the adapter; None for a base itself."""
    step: int = 0
    base_url: str | None = None
    run: RunDirectory | None = None
    """The run of a checkpoint; None if the model was not named by its run."""
    unchecked: tuple[str, ...] = ()
    """Sentences about what of the run cannot be compared with its digest."""

    @property
    def base_model(self) -> str | None:
        return self.name if self.kind in ("base", "checkpoint") else None

    @property
    def place(self) -> Path | None:
        """The folder that tells how the base was loaded: the checkpoint, or for step 0 the run."""
        return self.checkpoint or (self.run.path if self.run else None)

    @property
    def identity(self) -> RunIdentity | None:
        """The identity of the model's run."""
        about = self.run.read_json("model.json") if self.run else None
        return self.run.identity() if self.run and about and about.get("identity") else None


def find_models(names: Sequence[str], runs: Path, base_url: str | None = None) -> list[ModelSpec]:
    """Find the models of these names. `runs` is the folder of a project's runs, `base_url` the API of all chat models.

    Raises ConfigError for an unknown name, a missing key or a model named twice, CheckpointError for a missing step.
    """
    specs = [find_model(name, runs, base_url) for name in names]
    for index, spec in enumerate(specs):
        if spec.label in [other.label for other in specs[:index]]:
            raise ConfigError(f"The model {names[index]!r} is named twice; name each model once.")
    if base_url and not any(spec.kind == "chat" for spec in specs):
        raise ConfigError(
            f"The base URL {base_url} serves none of the models {_list(names)}; leave it out, or name a chat model."
        )
    return specs


def find_model(name: str, runs: Path, base_url: str | None = None) -> ModelSpec:
    """Find the model of one name; see `find_models`."""
    if name.startswith(_SCRIPTED):
        return _script(name)
    if name == TINY:
        return ModelSpec(name, "base", name)
    if name.startswith(_LITELLM):
        return _chat(name.removeprefix(_LITELLM), base_url)
    if name.startswith(_HUB):
        check_base_model(name.removeprefix(_HUB))
        return ModelSpec(name.removeprefix(_HUB), "base", name.removeprefix(_HUB))
    if (found := _on_disk(name, runs)) is not None:
        return found
    hint = ""
    try:
        chat = "@http" in name or base_url or _is_litellms(name)
    except ConfigError as error:
        if name.startswith("openai/"):
            raise
        chat, hint = False, f" {error}"
    if chat:
        return _chat(name, base_url)
    if "/" not in name:
        raise ConfigError(f"There is no model {name!r}: no run of that name in {runs}{_nearest(name, runs)}{hint}")
    try:
        check_base_model(name)
    except ConfigError as error:
        raise ConfigError(f"{error}{hint}") from error
    return ModelSpec(name, "base", name)


def _script(name: str) -> ModelSpec:
    script = name.removeprefix(_SCRIPTED)
    if script not in SCRIPTS:
        near = difflib.get_close_matches(script, SCRIPTS, n=1, cutoff=0.4)
        hint = (
            f"did you mean {_SCRIPTED}{near[0]}?" if near else f"there are {_list([_SCRIPTED + s for s in SCRIPTS])}."
        )
        raise ConfigError(f"There is no script {script!r}; {hint}")
    return ModelSpec(name, "scripted", script)


def _chat(name: str, base_url: str | None) -> ModelSpec:
    name, address = split_address(name)
    url = address or base_url
    check_address(url)
    check_language_model(name, url, role="model")
    return ModelSpec(name, "chat", name, base_url=url)


def _is_litellms(name: str) -> bool:
    """Return whether LiteLLM knows the provider of the model. Raises ConfigError if LiteLLM is not installed."""
    litellm = import_litellm()
    try:
        litellm.get_llm_provider(name)
    except Exception:  # LiteLLM raises several kinds where it knows no provider
        return False
    return True


def _on_disk(name: str, runs: Path) -> ModelSpec | None:
    """Find a model folder or a run; None if the name is neither and does not look like a path."""
    plain, at, step = name.partition("@")
    for folder in (Path(name).expanduser(), Path(plain).expanduser()):
        if (folder / "adapter_config.json").is_file():
            return _adapter(folder)
        if (folder / "config.json").is_file():
            return ModelSpec(name, "base", str(folder))
        if (folder / "model.json").is_file():
            return _run_step(folder, plain, step if at else None)
        if folder.is_dir() and (folder.is_absolute() or folder.name != str(folder)):
            raise ConfigError(
                f"The folder {folder} holds no model: no adapter_config.json, no config.json, and no run's model.json."
            )
    if re.fullmatch(r"\w[\w.-]*", plain) and (runs / plain / "model.json").is_file():
        return _run_step(runs / plain, plain, step if at else None)
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"There is no model in {name}: there is no such folder.")
    if at and not step.startswith("http"):
        raise ConfigError(f"There is no run {plain!r} in {runs}{_nearest(plain, runs)}")
    return None


def _run_step(folder: Path, label: str, step: str | None) -> ModelSpec:
    run = RunDirectory(folder)
    unchecked = tuple(run.check_whole(episodes=False))
    about = run.read_json("model.json") or {}
    base = str(about.get("base_model") or "")
    if step is not None and not step.isdigit():
        raise CheckpointError(f"{label}@{step} names no step; write the step as a number, such as {label}@5.")
    if step is None:
        newest = _newest(run, label)
        number, unchecked = newest.step, (*unchecked, *newest.skipped)
    else:
        number = int(step)
    checkpoint = run.checkpoints / f"{number:04d}"
    spec = ModelSpec(f"{label}@{number}", "checkpoint", base, checkpoint, number, run=run, unchecked=unchecked)
    if not checkpoint.is_dir():
        if number > 0 or about.get("init"):  # its step 0 is what it was initialized from
            raise CheckpointError(f"The run {label} has no checkpoint of step {number}; {_kept(run)}.")
        spec = ModelSpec(spec.label, "base", base, run=run, unchecked=unchecked)
    elif damage := find_damage(checkpoint):
        raise CheckpointError(f"The checkpoint {checkpoint} is damaged ({damage}); {_kept(run)}.")
    _check_base(spec, about.get("base_revision", ""))
    return spec


def _check_base(spec: ModelSpec, revision: str) -> None:
    """Check that the installed base has the weights that the adapter was trained on. Raises CheckpointError."""
    if spec.name != TINY:
        check_base_model(spec.name)
    made_for = (spec.identity.base_revision if spec.identity else revision) or ""
    if made_for and made_for != base_revision(spec.name):
        raise CheckpointError(
            f"{spec.label} was trained on other weights of {spec.name!r} than are installed now; train it again."
        )


def _newest(run: RunDirectory, label: str) -> Checkpoint:
    checkpoint = newest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"The run {label} has no checkpoint yet; {label}@0 is its base model.")
    return checkpoint


def _kept(run: RunDirectory) -> str:
    steps = sorted(int(path.name) for path in run.checkpoints.glob("[0-9]*") if path.name.isdigit())
    kept = f"it keeps {_list([str(step) for step in steps])}" if steps else "it keeps none"
    based = 0 not in steps and not (run.read_json("model.json") or {}).get("init")
    return f"{kept}, and step 0 is its base model" if based else kept


def _adapter(folder: Path) -> ModelSpec:
    """Return the model of a folder that PEFT can load. Raises CheckpointError."""
    try:
        base = str(json.loads((folder / "adapter_config.json").read_bytes())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"Cannot read {folder / 'adapter_config.json'}: it names no base model.") from error
    if not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(f"The folder {folder} holds no adapter_model.safetensors.")
    if (folder / "manifest.json").is_file() and (damage := find_damage(folder)):
        raise CheckpointError(f"The checkpoint {folder} is damaged ({damage}).")
    base = TINY if Path(base).parts[-len(_TINY_WEIGHTS) :] == _TINY_WEIGHTS else base
    if base.startswith("./") and (folder / base / "config.json").is_file():
        base = str(folder / base)  # an export with its base beside it
    check_base_model(base)
    step = int(folder.name) if folder.name.isdigit() else 1
    return ModelSpec(str(folder), "checkpoint", base, folder, step)


def _nearest(name: str, runs: Path) -> str:
    known = [path.parent.name for path in runs.glob("*/model.json")]
    near = difflib.get_close_matches(name, [*known, TINY], n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {_list(sorted(known))}." if known else ", which holds none."


def _list(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
