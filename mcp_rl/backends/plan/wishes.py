"""Refuse, before a run starts, settings that ask explicitly for something that this machine cannot do, and base models
whose files say that they cannot be trained."""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mcp_rl.backends.base.options import INSTALL, base_location, follow, loaded_before, loaded_for, plan_loading
from mcp_rl.backends.plan.choices import engine_for, engine_kind, ranks
from mcp_rl.backends.plan.detect import detect
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.shape import check_weights, model_shape
from mcp_rl.backends.plan.smaller import refusal
from mcp_rl.backends.plan.wanted import wanted
from mcp_rl.config import TINY
from mcp_rl.config.engine_arguments import argument_name
from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.backends.plan.machine import Machine
    from mcp_rl.config import EngineConfig, PlacementConfig, RunConfig, UnslothConfig

_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
_DEVICE = re.compile(r"(?P<kind>cpu|cuda|mps|xpu|npu|hpu)(?::(?P<number>\d{1,3}))?")


def check_wishes(config: RunConfig, machine: Machine | None = None, *, fresh: bool = False) -> None:
    """Raise ConfigError, one sentence, for what the settings ask for explicitly and this machine cannot do, for a base
    model without a chat format, or for one with layers that the engine cannot sample.

    `fresh` means that an earlier run of the same name is to be removed.
    """
    if config.backend != "local":
        return
    here = functools.cache(lambda: machine or detect())
    _check_gpus(config.placement, here)
    engine, unsloth = config.engine, config.unsloth
    if engine.url is None and (engine.kind == "vllm" or engine.python is not None):
        from mcp_rl.inference.vllm.installed import find_vllm

        find_vllm(engine.python)
    if unsloth.use and not here().usable_gpus:
        raise ConfigError(f"unsloth.use = true needs a GPU, but {_gpus_there(here())}: leave it out.")
    if unsloth.dtype == "float16" and not here().usable_gpus:
        raise ConfigError(f"unsloth.dtype = float16 needs a GPU, but {_gpus_there(here())}: leave it out.")
    if unsloth.dtype == "bfloat16" and (old := next((g for g in here().usable_gpus if not g.bfloat16), None)):
        raise ConfigError(f"unsloth.dtype = bfloat16: {old.name} does not support it; use float16.")
    if unsloth.device_map is not None:
        _check_device_map(unsloth.device_map, config.placement, here)
    asked = unsloth if unsloth.use else unsloth.model_copy(update={"use": False})
    sampled_by_vllm = engine_kind(engine_for(config.base_model, engine)) == "vllm"
    plan_loading(config.base_model, asked, config.train, unsloth_allowed=sampled_by_vllm)
    before = {} if fresh else loaded_before(config.run_dir)
    loaded = follow(unsloth, before or loaded_for(config.init), config.base_model)
    if config.base_model != TINY:
        from mcp_rl.backends.base.chat_files import chat_of_files, check_sampled

        chat_of_files(config.base_model, config.chat.model_dump(), unsloth.revision)
        if not sampled_by_vllm:
            check_sampled(config.base_model, unsloth.revision)
    if sampled_by_vllm and (how := unlike_vllm(loaded, engine)) is not None:
        raise ConfigError(
            f"The base is loaded {how}, but vLLM would load it differently and sample another model than the one "
            "that learns: leave that out, or add --engine local."
        )
    if engine.url is not None and engine.kind != "local":
        _check_remote(config, loaded)


def check_size(config: RunConfig, machine: Machine | None = None, *, fresh: bool = False) -> None:
    """Raise ConfigError, one sentence, if a new run's weights are another model's than they say, or, with what would
    fit, if the model is too large for this machine. A size that is not known is reported where the run is planned."""
    begun = config.init is not None or (not fresh and loaded_before(config.run_dir))
    if config.backend != "local" or config.base_model == TINY or begun:
        return
    try:
        shape = model_shape(config.unsloth.model_name or config.base_model)
    except ConfigError:
        return
    check_weights(shape)
    machine, asked = machine or detect(), wanted(config, ranks=ranks())
    if why := refusal(machine, shape, asked, plan(machine, shape, asked)):
        raise ConfigError(why)


def _check_gpus(placement: PlacementConfig, here: Callable[[], Machine]) -> None:
    asked = {"learner_gpus": placement.learner_gpus, "engine_gpus": placement.engine_gpus}
    for name, numbers in asked.items():
        if numbers and (missing := [number for number in numbers if number >= len(here().usable_gpus)]):
            raise ConfigError(f"placement.{name} names GPU {missing[0]}, but {_gpus_there(here())}.")


def _check_device_map(asked: str, placement: PlacementConfig, here: Callable[[], Machine]) -> None:
    """Raise ConfigError unless it is a device that is there, or a mode of spreading that transformers and accelerate
    know."""
    whose = f"unsloth.device_map = {asked!r}"
    device = _DEVICE.fullmatch(asked)
    if asked not in _SPREAD and device is None:
        raise ConfigError(f"{whose} is neither one of {', '.join(_SPREAD)} nor a device, such as cpu or cuda:0.")
    if device is not None and device["kind"] == "cuda":
        seen = len(here().usable_gpus)
        if placement.learner_gpus and not placement.in_process:
            seen = min(seen, len(placement.learner_gpus))
        if int(device["number"] or 0) >= seen:
            there = f"the learner sees {seen}, counted from 0" if seen else _gpus_there(here())
            raise ConfigError(f"{whose} does not exist: {there}.")
    if find_spec("accelerate") is None:
        raise ConfigError(f"{whose} needs accelerate, which is not installed: {INSTALL['accelerate']}")


def unlike_vllm(unsloth: UnslothConfig, engine: EngineConfig) -> str | None:
    """Return how the base is loaded that a vLLM started here would load differently.

    None where both load it the same way, or where `engine.args` tells vLLM.
    """
    told = {argument_name(name) for name in engine.args}
    if engine.url is not None:
        return None
    if unsloth.load_in_8bit and "quantization" not in told:
        return "in 8 bits"
    if unsloth.rope_scaling is not None and "hf-overrides" not in told:
        return "with scaled positions (unsloth.rope_scaling)"
    return None if unsloth.resize_model_vocab is None else "with another vocabulary (unsloth.resize_model_vocab)"


def _check_remote(config: RunConfig, loaded: UnslothConfig) -> None:
    """Raise ConfigError unless the run can use the vLLM server that runs already."""
    from mcp_rl.inference.vllm.remote import RemoteServer, check_remote

    rank = config.train.lora.rank if config.train.method == "lora" else None
    model = base_location(loaded.model_name or config.base_model)
    check_remote(
        RemoteServer(str(config.engine.url), model=model, lora_rank=rank, max_context=config.engine.max_context)
    )


def _gpus_there(machine: Machine) -> str:
    if machine.gpus and machine.cuda_build is None:
        return "the installed torch was built without CUDA"
    match len(machine.gpus):
        case 0:
            return "this machine has no GPU that CUDA programs see"
        case 1:
            return "this machine has 1 GPU, numbered 0"
        case several:
            return f"this machine has {several} GPUs, numbered 0 to {several - 1}"
