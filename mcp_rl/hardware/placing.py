"""Which devices do what: what samples, where the learner is, how the two share memory. Pure functions."""

from typing import Literal

from mcp_rl.hardware.machine import GIB, Gpu, Machine
from mcp_rl.hardware.wanted import Wanted

Engine = Literal["local", "vllm"]
Loader = Literal["unsloth", "transformers"]
Sharing = Literal["sleep", "split", "apart", "alone"]
"""Of one GPU: in turn, or each a part; each its own GPU; nothing of ours samples."""


def engine_kind(machine: Machine, wanted: Wanted) -> Engine:
    """What samples."""
    if wanted.engine.kind != "auto":
        return wanted.engine.kind
    if wanted.engine.url or wanted.engine.python:
        return "vllm"
    return "vllm" if machine.usable_gpus and machine.has("vllm") else "local"


def in_process(machine: Machine, wanted: Wanted) -> bool:
    """Whether the learner is in the trainer's own process. Ranks that torchrun started are processes already."""
    if wanted.ranks > 1:
        return True
    if len(wanted.placement.learner_gpus) > 1:
        return False
    chosen = wanted.placement.in_process
    return not machine.usable_gpus if chosen is None else chosen


def devices(machine: Machine, wanted: Wanted) -> tuple[tuple[Gpu, ...], tuple[Gpu, ...]]:
    """GPUs that learn and that sample: the first where none was named; those that are not there are left out."""
    gpus = machine.usable_gpus
    learning = tuple(gpus[n] for n in wanted.placement.learner_gpus if n < len(gpus)) or gpus[: wanted.ranks]
    return learning, tuple(gpus[n] for n in wanted.placement.engine_gpus if n < len(gpus)) or learning


def sharing(machine: Machine, wanted: Wanted) -> Sharing:
    """How learner and engine come by memory. Our own engine is in the learner's process, on the learner's base."""
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


def loader(machine: Machine, wanted: Wanted) -> Loader:
    """What loads the base. Unsloth puts its own attention into the model, which our engine would then sample with."""
    there = bool(machine.usable_gpus) and machine.has("unsloth") and engine_kind(machine, wanted) == "vllm"
    return "unsloth" if (there if wanted.unsloth is None else wanted.unsloth) else "transformers"


def missing_for_4_bits(machine: Machine, wanted: Wanted) -> tuple[str, ...]:
    """Packages without which the base cannot be in 4 bits: the learner's, and where vLLM samples from this environment
    its plugin, in which it has them since 0.28."""
    ours = engine_kind(machine, wanted) == "vllm" and wanted.engine.url is None and wanted.engine.python is None
    needed = ["bitsandbytes", *(["vllm-bnb-plugin"] if ours and wanted.sampled else [])]
    return tuple(name for name in needed if not machine.has(name))


def room(gpu: Gpu) -> int:
    """Bytes that a run may use: what is free now, less a reserve for fragments and the driver."""
    return max(0, gpu.free - gpu.memory // 32 - GIB // 4)
