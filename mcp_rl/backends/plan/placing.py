"""Assign devices: which engine samples, where the learner runs, how the two share memory. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mcp_rl.backends.plan.machine import GIB, Gpu, Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.backends.plan.wanted import WantedSettings
    from mcp_rl.config import EngineConfig, PlacementConfig

Engine = Literal["local", "vllm"]
Loader = Literal["unsloth", "transformers"]
Sharing = Literal["sleep", "split", "apart", "alone"]
"""Memory of learner and engine: in turn on one GPU, a part of it each, separate GPUs, or no engine of this run."""


def engine_of(engine: EngineConfig, vllm_usable: Callable[[], bool]) -> Engine:
    """Return which engine samples. `vllm_usable` is asked only where the settings leave it open."""
    if engine.kind != "auto":
        return engine.kind
    if engine.url or engine.python:
        return "vllm"
    return "vllm" if vllm_usable() else "local"


def learns_in_process(placement: PlacementConfig, ranks: int, has_gpu: Callable[[], bool]) -> bool:
    """Return whether the learner runs in the trainer's own process. Each rank that torchrun started has its own."""
    if ranks > 1:
        return True
    if len(placement.learner_gpus) > 1:
        return False
    return not has_gpu() if placement.in_process is None else placement.in_process


def engine_kind(machine: Machine, wanted: WantedSettings) -> Engine:
    """Return which engine samples on a machine."""
    return engine_of(wanted.engine, lambda: bool(machine.usable_gpus) and machine.has("vllm"))


def in_process(machine: Machine, wanted: WantedSettings) -> bool:
    """Return whether the learner runs in the trainer's own process on a machine."""
    return learns_in_process(wanted.placement, wanted.ranks, lambda: bool(machine.usable_gpus))


def devices(machine: Machine, wanted: WantedSettings) -> tuple[tuple[Gpu, ...], tuple[Gpu, ...]]:
    """Return the GPUs that learn and that sample. The default is the first; missing ones are left out."""
    gpus = machine.usable_gpus
    learning = tuple(gpus[n] for n in wanted.placement.learner_gpus if n < len(gpus)) or gpus[: wanted.ranks]
    return learning, tuple(gpus[n] for n in wanted.placement.engine_gpus if n < len(gpus)) or learning


def sharing(machine: Machine, wanted: WantedSettings) -> Sharing:
    """Return how learner and engine share memory. The in-process engine samples on the learner's own base."""
    if wanted.engine.url is not None or not wanted.sampled:
        return "alone"
    if engine_kind(machine, wanted) == "local":
        return "split"
    learning, sampling = devices(machine, wanted)
    if not {gpu.number for gpu in learning} & {gpu.number for gpu in sampling}:
        return "apart"
    if wanted.engine.sharing != "auto":
        return wanted.engine.sharing
    return "split" if wanted.overlapping else "sleep"


def may_rest(machine: Machine, wanted: WantedSettings) -> bool:
    """Return whether the learner can rest in the machine's memory while vLLM samples: on a GPU that they use in turn,
    unless its weights are divided among several learners."""
    divided = wanted.method == "full" and wanted.learners > 1
    return sharing(machine, wanted) == "sleep" and wanted.offload != "keep" and not divided


def loader(machine: Machine, wanted: WantedSettings, quantisation: str) -> Loader:
    """Return the library that loads the base.

    Unless it is set, Unsloth loads quantised bases only: it replaces attention, so the in-process engine cannot sample
    the modules, and shared prefixes cannot be computed once.
    """
    there = bool(machine.usable_gpus) and machine.has("unsloth") and engine_kind(machine, wanted) == "vllm"
    open_choice = there and quantisation != "none" and wanted.method == "lora"
    return "unsloth" if (open_choice if wanted.unsloth is None else wanted.unsloth) else "transformers"


def missing_for_4_bits(machine: Machine, wanted: WantedSettings) -> tuple[str, ...]:
    """Return the packages without which the base cannot be in 4 bits.

    The learner needs bitsandbytes, and a vLLM of this environment its plugin, which holds its support since 0.28.
    """
    ours = engine_kind(machine, wanted) == "vllm" and wanted.engine.url is None and wanted.engine.python is None
    needed = ["bitsandbytes", *(["vllm-bnb-plugin"] if ours and wanted.sampled else [])]
    return tuple(name for name in needed if not machine.has(name))


def room(gpu: Gpu) -> int:
    """Return the bytes that a run may use: the free memory, less a reserve for fragments and the driver."""
    return max(0, gpu.free - gpu.memory // 32 - GIB // 4)
