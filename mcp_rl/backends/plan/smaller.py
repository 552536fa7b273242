"""Find changes with which a plan would fit, by planning again with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.backends.plan.memory import weights
from mcp_rl.backends.plan.outcome import gib
from mcp_rl.backends.plan.placing import engine_kind, missing_for_4_bits, sharing
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.shape import KNOWN, ModelShape, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.backends.plan.machine import Machine
    from mcp_rl.backends.plan.outcome import RunPlan
    from mcp_rl.backends.plan.wanted import WantedSettings


def smaller(machine: Machine, shape: ModelShape, wanted: WantedSettings) -> Iterator[str]:
    """Yield a sentence for each single change of settings, machine or model with which the plan holds, the mildest
    first."""
    for change, there, updated in _changes(machine, wanted):
        if plan(there, shape, updated).fits:
            yield f"{change} it fits."
    for name, config in reversed(KNOWN.items()):
        other = shape_of(name, config, "its published configuration")
        made = plan(machine, other, wanted)
        if other.parameters < shape.parameters and made.fits:
            yield f"{name} fits in {made.bits} bits."
            return


def refusal(machine: Machine, shape: ModelShape, wanted: WantedSettings, made: RunPlan) -> str | None:
    """Return one sentence for a model that is too large for the machine, with what would fit; None where it is not. On
    a CPU, whose memory can be swapped out, only for weights that are larger than it."""
    if made.fits:
        return None
    size = weights(shape, made.quantisation, made.dtype)
    if made.device == "cpu" and size <= machine.memory:
        return None
    said = made.problems[0].rstrip(".")
    if made.device == "cpu":
        said = (
            f"{shape.name} in {made.bits} bits takes {gib(size)}, and the machine has {gib(machine.memory)} of memory"
        )
    found = [mend.rstrip(".") for mend in smaller(machine, shape, wanted)]
    what = "; ".join([*found[:2], *found[2:][-1:]])  # the mildest changes, and the largest model that fits
    return f"{said}; {what or 'no model that is known here fits'}."


def _changes(machine: Machine, wanted: WantedSettings) -> Iterator[tuple[str, Machine, WantedSettings]]:
    if wanted.microbatch_tokens is not None:
        yield "Without train.microbatch_tokens", machine, _with(wanted, microbatch_tokens=None)
    if wanted.context is not None:
        yield "Without engine.max_context", machine, _with(wanted, context=None)
    if wanted.activation_checkpointing is False:
        yield "With train.activation_checkpointing=true", machine, _with(wanted, activation_checkpointing=None)
    if wanted.engine.memory_share is not None:
        engine = wanted.engine.model_copy(update={"memory_share": None})
        yield "Without engine.memory_share", machine, _with(wanted, engine=engine)
    if wanted.offload == "keep":
        yield "Without train.offload_while_sampling", machine, _with(wanted, offload="auto")
    if wanted.engine.sharing == "sleep":
        engine = wanted.engine.model_copy(update={"sharing": "split"})
        yield "With engine.sharing=split", machine, _with(wanted, engine=engine)
    if wanted.overlapping:
        yield "Without train.max_staleness", machine, _with(wanted, overlapping=False)
    if wanted.method == "lora" and wanted.quantisation in (None, "none"):
        missing = missing_for_4_bits(machine, wanted)
        with_it = machine.model_copy(update={"packages": {**machine.packages, **dict.fromkeys(missing, "0")}})
        install = f", and {' and '.join(missing)} installed," if missing else ""
        yield f"With unsloth.load_in_4bit=true{install}", with_it, _with(wanted, quantisation="4-bit")
    if wanted.method == "full":
        yield "With train.method=lora", machine, _with(wanted, method="lora")
    gpus = len(machine.usable_gpus)
    if gpus > 1 and not wanted.placement.engine_gpus and engine_kind(machine, wanted) == "vllm":
        used = wanted.placement.learner_gpus or (0,)
        if free := next((number for number in range(gpus) if number not in used), None):
            placement = wanted.placement.model_copy(update={"engine_gpus": (free,)})
            yield f"With --engine-gpus {free}", machine, _with(wanted, placement=placement)
    if gpus > 1 and wanted.method == "full" and len(wanted.placement.learner_gpus) < gpus:
        numbers = tuple(range(gpus))
        placement = wanted.placement.model_copy(update={"learner_gpus": numbers})
        yield f"With --learner-gpus {','.join(map(str, numbers))}", machine, _with(wanted, placement=placement)
    if machine.usable_gpus and sharing(machine, wanted) in ("sleep", "split") and wanted.engine.kind != "local":
        engine = wanted.engine.model_copy(update={"kind": "local", "python": None})
        if engine_kind(machine, wanted) == "vllm":
            yield "With --engine local, which samples on the learner's own base,", machine, _with(wanted, engine=engine)


def _with(wanted: WantedSettings, **changes: Any) -> WantedSettings:
    return wanted.model_copy(update=changes)
