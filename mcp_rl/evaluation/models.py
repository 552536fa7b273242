"""What a model's name means: the base, a run's checkpoint, a folder, a chat model behind an API, a script."""

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_rl.config import TINY
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.evaluation.result import Kind
from mcp_rl.evaluation.scripted import SCRIPTS
from mcp_rl.language_model import check_language_model, import_litellm
from mcp_rl.learning.checkpoint import find_damage, newest_checkpoint
from mcp_rl.run_directory import RunDirectory, RunIdentity
from mcp_rl.training.preparation import base_revision, check_base_model

_SCRIPTED, _LITELLM, _HUB = "scripted:", "litellm:", "hf:"
_TINY_WEIGHTS = ("mcp_rl", "tiny", "weights")


@dataclass(frozen=True)
class ModelSpec:
    """One model to evaluate, found and checked as far as that goes without starting anything."""

    label: str
    """What tables call it."""
    kind: Kind
    name: str
    """What sampling needs: the base model, LiteLLM's name or the script's."""
    checkpoint: Path | None = None
    """Folder of the adapter; None for a base itself."""
    step: int = 0
    base_url: str | None = None
    run: RunDirectory | None = None
    """The run that a checkpoint belongs to, where the model was named by it."""

    @property
    def base_model(self) -> str | None:
        return self.name if self.kind in ("base", "checkpoint") else None

    @property
    def place(self) -> Path | None:
        """Where it is told how the base was loaded: the checkpoint, or for its step 0 the run."""
        return self.checkpoint or (self.run.path if self.run else None)

    @property
    def identity(self) -> RunIdentity | None:
        """What its run was made for."""
        about = self.run.read_json("model.json") if self.run else None
        return self.run.identity() if self.run and about and about.get("identity") else None


def find_models(names: Sequence[str], runs: Path, base_url: str | None = None) -> list[ModelSpec]:
    """The models of these names. `runs` is the folder of a project's runs, `base_url` where all chat models are asked.

    Raises ConfigError for a name that means nothing, a key that is missing or a model that is named twice,
    CheckpointError for a step that is not there.
    """
    specs = [find_model(name, runs, base_url) for name in names]
    for index, spec in enumerate(specs):
        if spec.label in [other.label for other in specs[:index]]:
            raise ConfigError(f"The model {names[index]!r} is there twice; name each model once.")
    if base_url and not any(spec.kind == "chat" for spec in specs):
        raise ConfigError(f"A base URL is given ({base_url}), but none of the models is asked there: {_list(names)}.")
    return specs


def find_model(name: str, runs: Path, base_url: str | None = None) -> ModelSpec:
    """The model of one name; see `find_models`."""
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
    if "@http" in name or base_url or _is_litellms(name):
        return _chat(name, base_url)
    if "/" in name:
        check_base_model(name)
        return ModelSpec(name, "base", name)
    raise ConfigError(f"There is no model {name!r}: no run of that name in {runs}{_nearest(name, runs)}")


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
    name, at, address = name.partition("@http")
    url = f"http{address}" if at else base_url
    if url and re.match(r"https?://[^/?#]*@", url):
        raise ConfigError("A base URL holds a user name or password, which must not reach a file; use the environment.")
    check_language_model(name, url, role="model")
    return ModelSpec(name, "chat", name, base_url=url)


def _is_litellms(name: str) -> bool:
    try:
        import_litellm().get_llm_provider(name)
    except Exception:  # LiteLLM raises several kinds where it knows no provider
        return False
    return True


def _on_disk(name: str, runs: Path) -> ModelSpec | None:
    """A folder or a run; None where the name is neither, nor looks like a path."""
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
    about = run.read_json("model.json") or {}
    base = str(about.get("base_model") or "")
    if step is not None and not step.isdigit():
        raise CheckpointError(f"{label}@{step} names no step; write it as a number, as in {label}@5.")
    number = int(step) if step is not None else _newest(run, label)
    checkpoint = run.checkpoints / f"{number:04d}"
    spec = ModelSpec(f"{label}@{number}", "checkpoint", base, checkpoint, number, run=run)
    if not checkpoint.is_dir():
        if number > 0 or about.get("init"):  # which is where its step 0 began
            raise CheckpointError(f"The run {label} has no checkpoint of step {number}; {_kept(run)}.")
        spec = ModelSpec(spec.label, "base", base, run=run)
    elif damage := find_damage(checkpoint):
        raise CheckpointError(f"The checkpoint {checkpoint} is damaged ({damage}); {_kept(run)}.")
    _check_base(spec, about.get("base_revision", ""))
    return spec


def _check_base(spec: ModelSpec, revision: str) -> None:
    """An adapter means nothing on other weights than those that it was trained on."""
    if spec.name != TINY:
        check_base_model(spec.name)
    made_for = (spec.identity.base_revision if spec.identity else revision) or ""
    if made_for and made_for != base_revision(spec.name):
        raise CheckpointError(
            f"{spec.label} was trained on other weights of {spec.name!r} than are installed now; train it again."
        )


def _newest(run: RunDirectory, label: str) -> int:
    checkpoint = newest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"The run {label} has no checkpoint yet; {label}@0 is its base model.")
    return checkpoint.step


def _kept(run: RunDirectory) -> str:
    steps = sorted(int(path.name) for path in run.checkpoints.glob("[0-9]*") if path.name.isdigit())
    kept = f"it keeps {_list([str(step) for step in steps])}" if steps else "it keeps none"
    based = 0 not in steps and not (run.read_json("model.json") or {}).get("init")
    return f"{kept}, and step 0 is its base model" if based else kept


def _adapter(folder: Path) -> ModelSpec:
    """A folder that PEFT can load, wherever it came from."""
    try:
        base = str(json.loads((folder / "adapter_config.json").read_bytes())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
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
