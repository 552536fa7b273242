"""The plan without a GPU: the settings unchanged, and a smaller update only where theirs cannot fit.

The choice depends on the memory that the machine has, not on what is free at the moment, so that a continued run
computes the same. The built-in model always fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.backends.plan import memory
from mcp_rl.backends.plan.fitting import FEW_ROWS, GRAIN, LEAST_CONTEXT, Item, resident
from mcp_rl.backends.plan.machine import GIB, Machine
from mcp_rl.backends.plan.outcome import RunPlan, gib
from mcp_rl.backends.plan.placing import engine_kind, in_process, loader
from mcp_rl.config import TINY, EngineConfig
from mcp_rl.inference.vllm.arguments import cpu_cache

if TYPE_CHECKING:
    from mcp_rl.backends.plan.memory import Dtype, Quantisation
    from mcp_rl.backends.plan.shape import ModelShape
    from mcp_rl.backends.plan.wanted import WantedSettings

_LARGE_PASS = 2048
"""Tokens of a pass beyond which a CPU gains nothing but what sequences share."""


def plan_on_cpu(machine: Machine, shape: ModelShape, wanted: WantedSettings) -> RunPlan:
    """Return the plan. What is set stays.

    Of what is left open it takes all episodes in flight and a whole pass if they fit; else fewer rows, then a smaller
    pass, then recomputed activations.
    """
    tried = _ways(machine, shape, wanted)
    roomy = [way for way in tried if way.total[0] <= machine.memory - machine.memory // 8]
    chosen = roomy[0] if roomy else tried[-1]
    need, least = chosen.total[0], min(LEAST_CONTEXT, chosen.context)
    if need <= machine.free_memory:
        return chosen
    there = f"the machine has {gib(machine.memory)}" if not roomy else f"only {gib(machine.free_memory)} are free"
    what = f"an update of {max(chosen.microbatch_tokens, least):,} tokens takes {gib(need)}"
    open_ways = _ways(machine, shape, _without_sizes(wanted))
    now = next((way for way in open_ways if way.total[0] <= machine.free_memory), None)
    fix = f" With {_as_overrides(now)} it fits." if now is not None else ""
    return chosen.model_copy(
        update={"problems": (f"{shape.name} does not fit into memory: {what}, and {there}.{fix}",)}
    )


def _without_sizes(wanted: WantedSettings) -> WantedSettings:
    """Return the wishes without those that the size of a pass depends on."""
    given: dict[str, Any] = {name: getattr(wanted.engine, name) for name in wanted.engine.model_fields_set}
    given.pop("max_rows", None)
    return wanted.model_copy(
        update={"microbatch_tokens": None, "activation_checkpointing": None, "engine": EngineConfig(**given)}
    )


def _as_overrides(way: RunPlan) -> str:
    again = str(way.activation_checkpointing).lower()
    return (
        f"train.microbatch_tokens={way.microbatch_tokens} train.activation_checkpointing={again} "
        f"engine.max_rows={way.rows}"
    )


def _ways(machine: Machine, shape: ModelShape, wanted: WantedSettings) -> list[RunPlan]:
    """Return the plans to try, from what the settings say down to the smallest."""
    given = wanted.microbatch_tokens
    most = given or wanted.default_microbatch
    asked = bool(wanted.activation_checkpointing)
    ways = [_way(machine, shape, wanted, wanted.rows, most, asked)]
    if shape.name == TINY:
        return ways
    fewer = min(FEW_ROWS, wanted.rows) if "max_rows" not in wanted.engine.model_fields_set else wanted.rows
    passes = [most] if given else list(dict.fromkeys((most, *(size for size in _SIZES if size < most))))
    kept = [size for size in passes if size >= _LARGE_PASS or given]
    for checkpointing in (False, True) if wanted.activation_checkpointing is None else (asked,):
        sizes = passes if checkpointing or wanted.activation_checkpointing is not None else kept
        ways += [_way(machine, shape, wanted, fewer, size, checkpointing) for size in sizes]
    return ways


_SIZES = (8192, 4096, 2048, 1024, 512, GRAIN)


def _way(
    machine: Machine, shape: ModelShape, wanted: WantedSettings, rows: int, microbatch: int, checkpointing: bool
) -> RunPlan:
    dtype: Dtype = wanted.dtype or "float32"
    quantisation: Quantisation = shape.stored or wanted.quantisation or "none"
    engine = engine_kind(machine, wanted)
    context = min(wanted.context or wanted.episode, shape.positions)
    per_token = memory.activation_bytes(shape, wanted.lora.rank, dtype="float32", checkpointing=checkpointing)
    sizes = resident(shape, wanted, quantisation, dtype, engine)
    sizes["Python and its libraries"] = sizes.pop("CUDA")
    table = [Item(what=what, learning=size, sampling=size) for what, size in sizes.items()]
    if wanted.method == "lora" and dtype == "float32":
        merged = 4 * shape.linear // (shape.layers if checkpointing else 1)
        table.append(Item(what="weights with the adapter merged", learning=merged))
    table.append(Item(what=f"activations of {microbatch:,} tokens", learning=microbatch * per_token))
    logits = min(microbatch * shape.vocabulary, memory.CPU_LOGIT_ELEMENTS) * memory.LOGIT_BYTES
    table.append(Item(what="logits", learning=logits))
    kv_tokens = rows * context // 4 if engine == "local" and wanted.sampled else None
    if kv_tokens is not None:
        cache = kv_tokens * memory.kv_bytes(shape, dtype)
        table.append(Item(what=f"keys and values of {kv_tokens:,} tokens", learning=cache, sampling=cache))
    if engine == "vllm" and wanted.engine.url is None and wanted.sampled:
        cache = cpu_cache(wanted.engine.memory_share, machine.memory) * GIB
        base = memory.weights(shape, quantisation, dtype)
        for what, size in (("process", memory.CPU_ENGINE), (f"base, {dtype}", base), ("keys and values", cache)):
            table.append(Item(what=f"vLLM's {what}", learning=size, sampling=size))
    return RunPlan(
        device="cpu",
        where=f"the CPU ({machine.cpus} cores)",
        model=shape.name,
        engine=engine,
        in_process=in_process(machine, wanted),
        loader=loader(machine, wanted, quantisation),
        quantisation=quantisation,
        stored=shape.stored is not None,
        dtype=dtype,
        sharing="alone" if engine == "vllm" else "split",
        memory_share=None,
        context=context,
        rows=rows,
        kv_tokens=kv_tokens,
        microbatch_tokens=microbatch,
        activation_checkpointing=checkpointing,
        table=tuple(table),
        available=(machine.free_memory, machine.free_memory),
    )
