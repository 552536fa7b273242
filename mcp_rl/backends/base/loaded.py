"""Inspects a loaded model, compares it with the request, and describes it for model.json."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from mcp_rl.backends.base.base_name import base_revision, commit_of
from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mcp_rl.backends.base.options import LoadPlan

_SIZES = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
_PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "unsloth", "unsloth_zoo")


def quantisation_of(model: PreTrainedModel) -> str:
    """Return "none", "8-bit", "4-bit", or the name of another method by which the weights are stored."""
    kinds = {type(module).__name__ for module in model.modules()}
    if "Linear4bit" in kinds:
        return "4-bit"
    if "Linear8bitLt" in kinds:
        return "8-bit"
    return _stored_method(model.config)


def _stored_method(config: Any) -> str:
    stored = getattr(config, "quantization_config", None)
    if not stored:
        return "none"
    method = stored.get("quant_method") if isinstance(stored, Mapping) else getattr(stored, "quant_method", None)
    return str(getattr(method, "value", method) or "unknown")


def check_asked(model: PreTrainedModel, plan: LoadPlan, asked: Any) -> None:
    """Raise ConfigError if the model is not the requested one. `asked` is the configuration at the requested place."""
    name, found = plan.name, quantisation_of(model)
    if plan.quantisation is not None and found != plan.quantisation:
        raise ConfigError(
            f"{name} was to be loaded {_in_words(plan.quantisation)} and was loaded {_in_words(found)} "
            f"by {plan.loader}: nothing was trained."
        )
    precision = str(model.dtype).removeprefix("torch.")
    if plan.dtype not in ("auto", precision) and precision != "float32":  # more bits than requested do no harm
        raise ConfigError(
            f"{name} was to be loaded in {plan.dtype}, and {plan.loader} loaded it in {precision}: set "
            f"unsloth.dtype={precision}, or load it with unsloth.use=false."
        )
    got = getattr(model.config, "_name_or_path", "") or getattr(model, "name_or_path", "")
    if plan.options.use_exact_model_name and got and not _same_place(str(got), plan.location):
        raise ConfigError(f"{name} was asked for, and {plan.loader} loaded {got} in its place; nothing was trained.")
    theirs, ours = model.config.get_text_config(), asked.get_text_config()
    for size in _SIZES:
        if size == "vocab_size" and plan.options.resize_model_vocab:
            continue
        if getattr(theirs, size, None) != getattr(ours, size, None):
            raise ConfigError(
                f"{name} has {size} = {getattr(ours, size, None)} in its configuration, and what {plan.loader} loaded "
                f"has {getattr(theirs, size, None)}; nothing was trained."
            )


def check_stands_for(plan: LoadPlan, base: Any, other: Any) -> None:
    """Raise ConfigError if `unsloth.model_name` is not a copy of the base model: configurations differ."""
    ours, theirs = base.get_text_config(), other.get_text_config()
    for size in _SIZES:
        if getattr(ours, size, None) != getattr(theirs, size, None):
            raise ConfigError(
                f"unsloth.model_name = {plan.name} is not a copy of {plan.base_model}: it has {size} = "
                f"{getattr(theirs, size, None)} and not {getattr(ours, size, None)}; name it as --base-model."
            )


def describe(model: PreTrainedModel, plan: LoadPlan, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Describe the loaded model for model.json, so that the same can be loaded again; without the path of a bundled
    model, and without secrets.

    Raises ConfigError if an earlier session of the run loaded another model.
    """
    place = str(getattr(model.config, "_name_or_path", "") or plan.location)
    replaced = not _same_place(place, plan.location)  # by Unsloth, with a copy of another name
    about: dict[str, Any] = {
        "base_model": plan.base_model,
        "model_name": place if replaced else plan.name,
        "loader": plan.loader,
        "quantisation": quantisation_of(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "full_finetuning": plan.full,
        "max_seq_length": getattr(model, "max_seq_length", None) or plan.max_seq_length,
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "revision": commit_of(place) if replaced else commit_of(plan.location, plan.revision) or plan.revision,
        "versions": _versions(),
    }
    if plan.name != plan.base_model and (weights := base_revision(plan.name)):
        about["weights"] = weights
    given = {"rope_scaling": plan.options.rope_scaling, "resize_model_vocab": plan.options.resize_model_vocab}
    about |= {key: value for key, value in given.items() if value is not None}
    for key in ("model_name", "quantisation", "architecture", "parameters"):
        if before and key in before and before[key] != about[key]:
            raise ConfigError(
                f"The run was begun with {key} = {before[key]}, and now {about[key]} was loaded: load what it was, or "
                "start a new run with --name."
            )
    return about


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _in_words(quantisation: str) -> str:
    match quantisation:
        case "none":
            return "without quantisation"
        case "4-bit" | "8-bit":
            return f"in {quantisation.replace('-', ' ')}s"
        case other:
            return f"quantised by {other}"


def _same_place(one: str, other: str) -> bool:
    if one == other:
        return True
    first, second = Path(one).expanduser(), Path(other).expanduser()
    return first.is_dir() and second.is_dir() and first.resolve() == second.resolve()


def dtype_for(plan: LoadPlan) -> torch.dtype:
    """Return the type to load in: by default float32 on a CPU, and on a GPU bfloat16 if it computes that, else float16.
    Raises ConfigError for a type that the device does not compute."""
    cuda = torch.cuda.is_available()
    if plan.dtype == "auto":
        if not cuda:
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if plan.dtype == "float16" and not cuda:
        raise ConfigError("unsloth.dtype = float16 needs a GPU: on a CPU take float32 or bfloat16, or leave it out.")
    if plan.dtype == "bfloat16" and cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError("unsloth.dtype = bfloat16: this GPU computes no bfloat16; take float16, or leave it out.")
    return cast("torch.dtype", getattr(torch, plan.dtype))
