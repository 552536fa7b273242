"""Make the plan: a pure function of a machine, a model's shape and the settings asked for.

On a GPU it chooses in this order: the finest precision in which a good pass of the learner and episodes of some length
fit, else the one that holds the larger pass; activations kept where a full pass and whole episodes fit with them, else
recomputed; and the remaining memory for the engine. More memory therefore never makes a pass smaller or the base
coarser. What was set explicitly never changes; where it does not fit, the plan says so.

Without a GPU everything stays as the settings have it, as far as it fits (`on_cpu.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_rl.backends.plan import memory
from mcp_rl.backends.plan.fitting import GRAIN, LEAST_CONTEXT, Fitting, precision
from mcp_rl.backends.plan.on_cpu import plan_on_cpu
from mcp_rl.backends.plan.outcome import RunPlan, gib
from mcp_rl.backends.plan.placing import devices, in_process, loader, may_rest, missing_for_4_bits
from mcp_rl.backends.plan.sheets import HOST_BANDWIDTH
from mcp_rl.backends.plan.wanted import FULL_PASS, GOOD_PASS, WantedSettings
from mcp_rl.config import TINY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.backends.plan.machine import Machine
    from mcp_rl.backends.plan.memory import Dtype, Quantisation
    from mcp_rl.backends.plan.shape import ModelShape


def plan(machine: Machine, shape: ModelShape, wanted: WantedSettings) -> RunPlan:
    """Return the plan of a run on a machine. `check_wishes` refuses settings that the machine cannot meet."""
    if not machine.usable_gpus:
        return plan_on_cpu(machine, shape, wanted)
    made = _on_gpus(machine, shape, wanted)
    if made.host > _usable_host_memory(machine) and made.offload and wanted.offload == "auto":
        kept = _on_gpus(machine, shape, wanted.model_copy(update={"offload": "keep"}))
        made = kept if kept.fits or not made.fits else made
    if made.host <= _usable_host_memory(machine) or wanted.engine.sharing != "auto":
        return made
    engine = wanted.engine.model_copy(update={"sharing": "split"})
    why = f"asleep, vLLM would keep {gib(made.host)} in the machine's memory, which has {gib(machine.memory)}"
    beside = _on_gpus(machine, shape, wanted.model_copy(update={"engine": engine}), split_because=why)
    return beside if beside.fits else made


def _on_gpus(machine: Machine, shape: ModelShape, wanted: WantedSettings, *, split_because: str = "") -> RunPlan:
    bfloat16 = all(gpu.bfloat16 for side in devices(machine, wanted) for gpu in side)
    dtype: Dtype = wanted.dtype or ("bfloat16" if bfloat16 else "float16")
    if wanted.dtype is None and shape.name == TINY:
        dtype = "float32"  # as pretrained: halving a million parameters saves nothing
    tried = [_best(machine, shape, wanted, dtype, kind) for kind in _precisions(machine, shape, wanted)]
    chosen = next((fitting for fitting in tried if fitting.good), None)
    chosen = chosen or max(reversed(tried), key=lambda fitting: (fitting.fits, fitting.microbatch, fitting.context))
    return RunPlan(
        device="gpu",
        where=_where(machine, wanted),
        model=shape.name,
        engine=chosen.engine,
        in_process=in_process(machine, wanted),
        loader=loader(machine, wanted, chosen.quantisation),
        quantisation=chosen.quantisation,
        stored=shape.stored is not None,
        dtype=dtype,
        sharing=chosen.sharing,
        memory_share=chosen.share,
        split=chosen.split if chosen.share is not None else 1,
        context=chosen.context,
        rows=chosen.rows,
        kv_tokens=chosen.kv_tokens,
        microbatch_tokens=chosen.microbatch,
        activation_checkpointing=chosen.checkpointing,
        table=chosen.table,
        available=chosen.available,
        offload=chosen.offload,
        moved=chosen.moved,
        host=chosen.host,
        reasons=tuple(_reasons(chosen, several=len(tried) > 1, split_because=split_because)),
        problems=tuple(_problems(chosen)),
    )


def _precisions(machine: Machine, shape: ModelShape, wanted: WantedSettings) -> list[Quantisation]:
    """Return the precisions to try, from fine to coarse. 8 bits only where asked for: 4 take less, and 16 are exact."""
    if (fixed := shape.stored or wanted.quantisation) is not None:
        return [fixed]
    return ["none", "4-bit"] if wanted.method == "lora" and not missing_for_4_bits(machine, wanted) else ["none"]


def _best(
    machine: Machine, shape: ModelShape, wanted: WantedSettings, dtype: Dtype, quantisation: Quantisation
) -> Fitting:
    """Keep activations where a full pass and whole episodes fit with them, else recompute them.

    A coarser precision takes no larger pass than a finer one needs, so that a pass never shrinks where more memory
    allows the finer.
    """
    fixed = (shape.stored or wanted.quantisation) is not None
    most = FULL_PASS if fixed or quantisation == "none" else GOOD_PASS

    def fitted(checkpointing: bool) -> Fitting:
        staying = Fitting(machine, shape, wanted, quantisation, dtype, checkpointing, most)
        if not may_rest(machine, wanted):
            return staying
        resting = replace(staying, offload=True)
        return resting if wanted.offload == "host" or _pays(staying, resting) else staying

    if wanted.activation_checkpointing is not None:
        return fitted(wanted.activation_checkpointing)
    kept = fitted(False)
    if kept.good and kept.context == kept.whole and kept.microbatch >= kept.asked_pass:
        return kept
    return fitted(True)


def _pays(staying: Fitting, resting: Fitting) -> bool:
    """Return whether more fits while the learner rests in the machine's memory, and the moves take less time than
    waiting for rows that would not fit otherwise."""
    if (resting.fits, resting.good, resting.context) > (staying.fits, staying.good, staying.context):
        return True
    rows = staying.wanted.rows
    saved = math.ceil(rows / staying.rows) - math.ceil(rows / resting.rows)
    return saved * staying.wave_seconds > staying.move_seconds(resting.moved)


def _where(machine: Machine, wanted: WantedSettings) -> str:
    names = {gpu.number: gpu.name for side in devices(machine, wanted) for gpu in side}
    kinds = dict.fromkeys(names.values())
    counts = {kind: list(names.values()).count(kind) for kind in kinds}
    return ", ".join(kind if count == 1 else f"{count} of {kind}" for kind, count in counts.items())


def _reasons(chosen: Fitting, *, several: bool, split_because: str) -> Iterator[str]:
    machine, shape, wanted = chosen.machine, chosen.shape, chosen.wanted
    learning, sampling = devices(machine, wanted)
    used = {gpu.number: gpu for gpu in (*learning, *sampling)}
    if wanted.dtype is None and chosen.dtype == "float16":
        yield f"float16: {learning[0].name} does not support bfloat16."
    if several and chosen.quantisation != "none":
        size = gib(memory.weights(shape, "none", chosen.dtype))
        both = chosen.engine == "vllm" and chosen.sharing in ("sleep", "split")
        yield f"4 bits: in 16 bits the base takes {size}{', for the learner and again for vLLM' if both else ''}."
    elif (
        not several
        and chosen.quantisation == "none"
        and wanted.quantisation is None
        and wanted.method == "lora"
        and not chosen.good
    ):
        missing = " and ".join(missing_for_4_bits(machine, wanted))
        yield f"16 bits: 4 bits need {missing}, not installed here."
    if chosen.sharing == "sleep":
        short = f", of which only {gib(machine.free_memory)} are free" if chosen.host > machine.free_memory else ""
        yield (
            "vLLM sleeps while the learner works, so they use the memory in turn; its weights"
            f"{' and the learner' if chosen.offload else ''}, {gib(chosen.host)}, wait in the machine's memory{short}."
        )
    elif chosen.engine == "vllm" and chosen.sharing == "split":
        going = split_because or (
            "rollouts go on while the learner works" if wanted.overlapping else "the settings say so"
        )
        yield f"Learner and vLLM each have a part of the memory: {going}."
    elif chosen.sharing == "apart":
        over = f", its weights over {chosen.split} of them" if chosen.split > 1 else ""
        yield f"Learner and vLLM have GPUs of their own{over}."
    elif chosen.sharing == "alone":
        yield "vLLM runs already: its memory is not counted."
    elif wanted.engine.kind == "auto":
        yield "The in-process engine samples: vLLM is not installed."
    if chosen.offload:
        known = "as measured" if machine.host_bandwidth else "assumed until a run has measured it"
        rate = (machine.host_bandwidth or HOST_BANDWIDTH) / 1e9
        yield (
            f"While vLLM samples, the learner's {gib(chosen.moved)} are in the machine's memory, which takes "
            f"{chosen.move_seconds(chosen.moved):.1f} s of each step at {rate:.0f} GB/s, {known} "
            "(train.offload_while_sampling)."
        )
    if wanted.activation_checkpointing is None and chosen.checkpointing:
        kept = Fitting(machine, shape, wanted, chosen.quantisation, chosen.dtype, False)
        size = gib(max(chosen.microbatch, GRAIN) * kept.per_token)
        yield f"Activations are recomputed: keeping those of {chosen.microbatch:,} tokens would take {size}."
    if chosen.fits and chosen.context < chosen.whole:
        yield (
            f"Episodes end at {chosen.context:,} tokens; the limits of a rollout allow {chosen.whole:,}, for "
            "which there is too little memory."
        )
    if chosen.fits and chosen.rows < wanted.rows:
        yield (
            f"Keys and values of {chosen.kv_tokens:,} tokens fit: {chosen.rows} of {wanted.rows} episodes in flight, "
            f"at {chosen.context // 4:,} tokens each; the others wait."
        )
    if len(machine.usable_gpus) > len(used):
        free = min(set(range(len(machine.usable_gpus))) - set(used))
        count = f"{len(used)} of {len(machine.usable_gpus)} GPUs {'is' if len(used) == 1 else 'are'} used"
        two = f"{learning[0].number},{free}"
        yield f"{count}: --engine-gpus {free} gives vLLM its own, --learner-gpus {two} learns on two."
    if any(gpu.free < 0.9 * gpu.memory for gpu in used.values()):
        yield "Only free memory is counted: other processes use some of the GPU's."


def _problems(chosen: Fitting) -> Iterator[str]:
    if not chosen.fits:
        yield _misfit(chosen)
    if chosen.host > _usable_host_memory(chosen.machine):
        asleep = "vLLM asleep and the learner at rest" if chosen.offload else "vLLM asleep"
        yield (
            f"{asleep} would keep {gib(chosen.host)} in the machine's memory, which has {gib(chosen.machine.memory)}: "
            "set engine.sharing=split, or give vLLM a GPU of its own with --engine-gpus."
        )


def _usable_host_memory(machine: Machine) -> int:
    """Return the bytes of host memory that may be counted on.

    As on a CPU, total memory counts and not what is free now, so that a continued run computes the same.
    """
    return machine.memory - machine.memory // 8


def _misfit(chosen: Fitting) -> str:
    wanted, where = chosen.wanted, _where(chosen.machine, chosen.wanted)
    model = f"{chosen.shape.name} in {precision(chosen.quantisation, chosen.dtype)}"
    has, has_engine = chosen.available
    if wanted.microbatch_tokens is not None and GRAIN <= chosen.capacity < wanted.microbatch_tokens:
        return (
            f"train.microbatch_tokens = {wanted.microbatch_tokens} does not fit {where}: beside {model}, "
            f"{gib(has)} hold {chosen.capacity // GRAIN * GRAIN}."
        )
    if wanted.context is not None and GRAIN <= chosen.longest < chosen.whole:
        return (
            f"Episodes of {chosen.whole} tokens (engine.max_context) do not fit {where}: beside {model}, "
            f"{gib(min(has, has_engine))} hold {chosen.longest}."
        )
    if chosen.capacity < min(LEAST_CONTEXT, chosen.whole):
        need = sum(chosen.resident.values()) + (memory.ASLEEP if chosen.sharing == "sleep" else 0)
        least = min(LEAST_CONTEXT, chosen.whole)
        need += least * chosen.per_token + memory.logit_bytes(chosen.shape, least)
        return f"{model} cannot learn on {where}: with an episode of {least} tokens it takes {gib(need)} of {gib(has)}."
    beside = "" if chosen.sharing == "apart" else " beside the learner"
    need = sum(chosen.fixed.values()) + (0 if chosen.sharing == "apart" else sum(chosen.resident.values()))
    return (
        f"{model} cannot be sampled{beside} on {where}: it takes {gib(need)} before any keys and values, of "
        f"{gib(has_engine)}."
    )
