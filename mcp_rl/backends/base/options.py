"""Turns settings into an exact plan of what to load, the same for both loaders.

Imports no torch. The plan holds no secret: a token stays in the environment until it is used.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.backends.base.base_name import base_revision, commit_of
from mcp_rl.config import TINY, TrainConfig, UnslothConfig
from mcp_rl.errors import ConfigError
from mcp_rl.tiny import weights_path

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Quantisation = Literal["none", "8-bit", "4-bit"]
Loader = Literal["transformers", "unsloth"]
DTYPES = ("float32", "bfloat16", "float16")
INSTALL = {
    "unsloth": "pip install 'mcp-rl[gpu]'",
    "bitsandbytes": "pip install 'bitsandbytes>=0.46'",
    "accelerate": "pip install accelerate",
}


@dataclass(frozen=True)
class LoadPlan:
    """The plan by which one base model is loaded."""

    base_model: str
    """The base model that the run trains."""
    name: str
    """The model that is loaded for it: the same, or `unsloth.model_name`."""
    location: str
    """The argument of `from_pretrained`: a folder, or a name on the hub."""
    loader: Loader = "transformers"
    quantisation: Quantisation | None = "none"
    """The precision of the weights; None: as they are stored."""
    dtype: str = "auto"
    """A torch dtype, or "auto" for the hardware's."""
    revision: str | None = None
    full: bool = False
    """True if every weight is trained."""
    max_seq_length: int | None = None
    options: UnslothConfig = field(default_factory=UnslothConfig)
    seed: int = 0
    rank: int = 16
    checkpointing: bool = False
    """True if activations are recomputed or offloaded instead of kept (`train.activation_checkpointing`)."""
    sampled: bool = True
    """True if an engine in this process samples the loaded modules."""

    def token(self) -> str | bool | None:
        """Return the access token, as `token_of` does."""
        return token_of(self.options)


def token_of(options: UnslothConfig) -> str | bool | None:
    """Return the token in the environment; None for the one of a login, False for none at all."""
    return os.environ.get(options.token) or None if options.token else False


def base_location(name: str) -> str:
    """Return the argument of `from_pretrained`: the shipped folder for `mcp-rl/tiny`, else the model's name."""
    return str(weights_path()) if name == TINY else name


def plan_loading(
    base_model: str,
    options: UnslothConfig | None = None,
    train: TrainConfig | None = None,
    *,
    max_seq_length: int | None = None,
    seed: int = 0,
    before: Mapping[str, Any] | None = None,
    unsloth_allowed: bool = True,
) -> LoadPlan:
    """Plan what to load. `before` describes the model that the run loaded earlier: what the settings leave open is
    loaded as it was then. `unsloth_allowed` is False if the engine samples the very modules that are loaded.

    Raises ConfigError for an impossible plan, such as a missing extra or a folder with two models in it.
    """
    options, train = options or UnslothConfig(), train or TrainConfig()
    if before:
        options = begun_with(options, before, base_model, dtypes=_computed_here() if "dtype" in before else ())
    name = options.model_name or base_model
    location = base_location(name)
    _check_folder(name, location)
    plan = LoadPlan(
        base_model,
        name,
        location,
        loader=_loader(options, allowed=unsloth_allowed),
        quantisation=_quantisation(options),
        dtype=options.dtype,
        revision=options.revision,
        full=train.method == "full",
        max_seq_length=options.max_seq_length or max_seq_length,
        options=options,
        seed=seed if options.random_state is None else options.random_state,
        rank=max(train.lora.rank, options.max_lora_rank or 0),
        checkpointing=train.activation_checkpointing,
        sampled=not unsloth_allowed,
    )
    if name == TINY and plan.dtype == "auto":
        plan = replace(plan, dtype="float32")  # a million parameters save nothing by half of the bits
    if plan.quantisation in ("8-bit", "4-bit"):
        loading = f"Loading {name} in {plan.quantisation.replace('-', ' ')}s"
        _need("bitsandbytes", loading)
        _need("accelerate", loading)
    return plan


def loaded_before(run: Path) -> dict[str, Any]:
    """Return the description of the base in a run's model.json; empty if it has none."""
    try:
        content = json.loads((run / "model.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    loaded = content.get("loaded") if isinstance(content, dict) else None
    return loaded if isinstance(loaded, dict) else {}


def loaded_for(place: Path | None) -> dict[str, Any]:
    """Return the description of the base that a run loaded, for the folder of the run or of one of its checkpoints;
    empty if there is none."""
    if place is None:
        return {}
    place = place.expanduser().resolve()
    return loaded_before(place if (place / "model.json").is_file() else place.parent.parent)


def follow(asked: UnslothConfig, loaded: Mapping[str, Any], base_model: str, *, verify: bool = True) -> UnslothConfig:
    """Return the settings, with the weights that they leave open as they were `loaded`: the model, its revision, its
    precision, its positions and its vocabulary. A description of another base model is ignored.

    `trust_remote_code` is never taken from a file: it must be asked for each time. Raises ConfigError, with `verify`,
    if other weights lie in their place now.
    """
    name = loaded.get("model_name")
    if loaded.get("base_model", name) != base_model or not isinstance(name, str):
        return asked
    found: dict[str, Any] = {}
    if asked.model_name is None and name != base_model:
        found["model_name"] = name
    same = name == (asked.model_name or name)
    if verify and same:
        check_same_weights(name, loaded)
    if asked.revision is None and same and isinstance(revision := loaded.get("revision"), str):
        found["revision"] = revision
    if asked.load_in_4bit is None and not asked.load_in_8bit and same:
        match loaded.get("quantisation"):
            case "4-bit":
                found["load_in_4bit"] = True
            case "8-bit":
                found["load_in_8bit"] = True
    for key, kind in (("rope_scaling", dict), ("resize_model_vocab", int)):
        if getattr(asked, key) is None and same and isinstance(value := loaded.get(key), kind):
            found[key] = value
    return asked.model_copy(update=found)


def check_same_weights(name: str, loaded: Mapping[str, Any]) -> None:
    """Raise ConfigError if a folder holds other weights than those that were loaded from it."""
    if (then := loaded.get("weights")) and then != (now := base_revision(name)):
        found = "holds other weights now" if now else "is not there any more"
        raise ConfigError(f"{name}, which was loaded for {loaded.get('base_model')}, {found}: put them back there.")


def begun_with(
    asked: UnslothConfig, loaded: Mapping[str, Any], base_model: str, *, dtypes: Collection[str]
) -> UnslothConfig:
    """Return the settings of `follow` for a learner: with the same loader too, in the same type if it is among the
    `dtypes` that this machine computes, and never in fewer bits."""
    if loaded.get("base_model", base_model) != base_model:
        return asked
    options = follow(asked, loaded, base_model)
    found: dict[str, Any] = {}
    if options.use is None and loaded.get("loader") == "transformers":
        found["use"] = False
    if options.dtype == "auto" and (dtype := loaded.get("dtype")) in DTYPES and dtype in dtypes:
        found["dtype"] = dtype
    if loaded.get("quantisation") == "none" and options.load_in_4bit is None and not options.load_in_8bit:
        found["load_in_4bit"] = False
    return options.model_copy(update=found)


def trained_revision(base_model: str, place: Path | None) -> str | None:
    """Return the commit of the base that a run or checkpoint was trained on, by its model.json, else by the cache; None
    if neither has one."""
    loaded = loaded_for(place)
    named = loaded.get("model_name") == base_model and isinstance(loaded.get("revision"), str)
    return str(loaded["revision"]) if named else commit_of(base_model)


def trained_options(base_model: str, place: Path | None) -> UnslothConfig:
    """Return the options that load the base as it was when a run's checkpoint was trained; the type follows from the
    machine."""
    options = follow(UnslothConfig(), loaded_for(place), base_model)
    if options.model_name is not None:
        return options
    return options.model_copy(update={"revision": trained_revision(base_model, place)})


def trained_dtype(checkpoint: Path | None) -> str | None:
    """Return the type in which a run's checkpoint was trained; None if the run does not say."""
    found = loaded_for(checkpoint).get("dtype")
    return found if found in DTYPES else None


def _computed_here() -> Collection[str]:
    import torch

    if not torch.cuda.is_available():
        return computed_dtypes(gpu=False)
    return computed_dtypes(gpu=True, bfloat16=torch.cuda.is_bf16_supported(including_emulation=False))


def computed_dtypes(*, gpu: bool, bfloat16: bool = True) -> Collection[str]:
    """Return the types that a machine computes: a CPU no float16, an older GPU no bfloat16."""
    return {"float32", *(["float16"] if gpu else []), *(["bfloat16"] if bfloat16 else [])}


def _loader(options: UnslothConfig, *, allowed: bool) -> Loader:
    named = os.environ.get("IMPORT_UNSLOTH")
    if options.use:
        if named == "0":
            raise ConfigError("unsloth.use = true and IMPORT_UNSLOTH=0 contradict each other: leave one of them out.")
        _need("unsloth", "unsloth.use = true")
        if not allowed:
            raise ConfigError(
                "unsloth.use = true needs vLLM to sample, since Unsloth puts its own attention into the model: set "
                "engine.kind=vllm, or leave unsloth.use out."
            )
        return "unsloth"
    if options.use is False or named == "0" or not allowed or find_spec("unsloth") is None:
        return "transformers"
    if not (options.load_in_4bit or options.load_in_8bit or named == "1"):
        return "transformers"  # its attention cannot share prefixes, which saves more
    import torch

    return "unsloth" if torch.cuda.is_available() else "transformers"


def _quantisation(options: UnslothConfig) -> Quantisation | None:
    if options.load_in_8bit:
        return "8-bit"
    if options.load_in_4bit is None:
        return None
    return "4-bit" if options.load_in_4bit else "none"


def _need(package: str, what: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"{what} needs {package}, which is not installed: {INSTALL[package]}")


def _check_folder(name: str, location: str) -> None:
    folder = Path(location).expanduser()
    if not folder.is_dir():
        return
    whole, adapter = (folder / "config.json").is_file(), (folder / "adapter_config.json").is_file()
    if whole and adapter:
        raise ConfigError(
            f"The folder {name} holds both a whole model (config.json) and an adapter (adapter_config.json), so it is "
            "not clear which is meant: move one of them elsewhere."
        )
    if adapter:
        raise ConfigError(
            f"The folder {name} holds an adapter, not a base model: name the model it was made for, and begin "
            "with the adapter by --init."
        )
