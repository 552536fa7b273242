"""Compute what fits a GPU in a given precision: the learner's pass, the engine's keys and values, an episode's
length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_rl.backends.plan import memory
from mcp_rl.backends.plan.machine import FrozenData, Machine
from mcp_rl.backends.plan.placing import Engine, Sharing, devices, engine_kind, room, sharing
from mcp_rl.backends.plan.sheets import HOST_BANDWIDTH, SAMPLING, gpu_speed
from mcp_rl.backends.plan.wanted import FULL_PASS, GOOD_PASS, WantedSettings
from mcp_rl.inference.vllm.arguments import weights_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.backends.plan.memory import Dtype, Quantisation
    from mcp_rl.backends.plan.shape import ModelShape

LEAST_CONTEXT = 2048
"""Shortest useful episode in tokens: a listing of tools and one call."""
FEW_ROWS = 8
"""Episodes side by side below which a GPU mostly waits."""
GRAIN = 256
"""Granularity in tokens: a pass is a whole multiple of it, a context of a quarter of it."""
MOST_SHARE = 0.92
"""Largest share of a GPU's memory for vLLM; more leaves no room for what torch allocates outside of it."""
SHORT_EPISODE = 512
"""Sampled tokens of a short episode."""
LORAS = 4
"""Number of policy versions that vLLM holds at once."""

CUDA, GRADIENTS = "CUDA", "gradients"
"""Parts of the learner that never move: gradients are freed after each update."""


class Item(FrozenData):
    """A line of the memory table, in bytes."""

    what: str
    learning: int = 0
    sampling: int = 0


@dataclass
class Fitting:
    """A placement of a model in one precision, with activations kept or recomputed, and what fits with it."""

    machine: Machine
    shape: ModelShape
    wanted: WantedSettings
    quantisation: Quantisation
    dtype: Dtype
    checkpointing: bool
    most: int = FULL_PASS
    """Tokens of a pass where the settings leave it open."""
    offload: bool = False
    """True if the learner's weights and moments are in the machine's memory while vLLM samples."""

    engine: Engine = field(init=False)
    sharing: Sharing = field(init=False)
    resident: dict[str, int] = field(init=False)
    """Bytes of the learner that do not depend on its pass, by part."""
    fixed: dict[str, int] = field(init=False)
    """Bytes of the awake engine without keys and values, by part."""
    per_token: int = field(init=False)
    """Bytes that each token of a learner's pass takes."""
    cache: int = field(init=False, default=0)
    """Bytes for keys and values."""
    capacity: int = field(init=False, default=0)
    """Tokens of the largest pass that the learner can take."""

    def __post_init__(self) -> None:
        wanted, shape = self.wanted, self.shape
        self.engine, self.sharing = engine_kind(self.machine, wanted), sharing(self.machine, wanted)
        self.resident = resident(shape, wanted, self.quantisation, self.dtype, self.engine)
        self.fixed = self._engine_fixed()
        computed: Dtype = "float32" if wanted.method == "full" else self.dtype
        self.per_token = memory.activation_bytes(
            shape, wanted.lora.rank, dtype=computed, checkpointing=self.checkpointing
        )
        self._solve()

    # -- requirements

    @property
    def split(self) -> int:
        """Number of GPUs that vLLM's weights are split over: as few as leave room for keys and values."""
        given = self.wanted.engine.args.get("tensor-parallel-size")
        if isinstance(given, int) and given > 0:
            return given
        if self.engine == "local":
            return 1
        base = memory.weights(self.shape, self.quantisation, self.dtype)
        split = weights_split(base, self._engine_memory, len(devices(self.machine, self.wanted)[1]))
        while self.shape.heads % split:
            split //= 2
        return split

    @property
    def whole(self) -> int:
        """Tokens of the longest episode that the limits and the model's positions allow."""
        return min(self.wanted.context or self.wanted.episode, self.shape.positions)

    @property
    def asked_pass(self) -> int:
        return self.wanted.microbatch_tokens or min(self.most, self.wanted.default_microbatch)

    @property
    def kv_per_token(self) -> int:
        """Bytes of one token's keys and values, on one of the GPUs that the heads are split over."""
        return memory.kv_bytes(self.shape, self.dtype) // self.split

    # -- results

    @property
    def available(self) -> tuple[int, int]:
        """Bytes for the learner, and for the sampling engine."""
        learning, sampling = devices(self.machine, self.wanted)
        return min(map(room, learning)), min(map(room, sampling))

    def _solve(self) -> None:
        mine, theirs = self.available
        base, fixed, share = sum(self.resident.values()), sum(self.fixed.values()), self.wanted.engine.memory_share
        mine, theirs = mine - base, theirs - fixed - sum(self._resting.values())
        enough = self.wanted.rows * self.whole // 4 * self.kv_per_token
        plenty = max(2 * enough, self._engine_memory // 4 if self.engine == "vllm" else 0)
        largest = int(MOST_SHARE * self._engine_memory) - fixed if self.engine == "vllm" else theirs
        if share is not None and self.engine == "vllm":
            self.cache = min(theirs, int(share * self._engine_memory) - fixed)
        elif self.sharing == "split":
            tokens = max(self.whole, self.asked_pass)
            a_pass = tokens * self.per_token + memory.logit_bytes(self.shape, tokens)
            learner = min(a_pass, max(theirs // 2, theirs - enough))
            self.cache = min(theirs - learner, plenty, largest)
        else:
            self.cache = min(theirs, plenty, largest)
        self.cache = 0 if self.sharing == "alone" else max(0, self.cache)
        if self.sharing == "split":
            mine = theirs - self.cache
        elif self.sharing == "sleep":
            mine -= memory.ASLEEP
        self.capacity = self._tokens_in(mine)

    def _tokens_in(self, free: int) -> int:
        """Return the tokens of the largest pass that fits; beyond some number of them, logits take no more memory."""
        vocabulary = self.shape.vocabulary
        few = min(free // (self.per_token + vocabulary * memory.LOGIT_BYTES), memory.LOGIT_ELEMENTS // vocabulary)
        return max(0, few, (free - memory.LOGIT_ELEMENTS * memory.LOGIT_BYTES) // self.per_token)

    @property
    def _engine_memory(self) -> int:
        return min(gpu.memory for gpu in devices(self.machine, self.wanted)[1])

    @property
    def kv_tokens(self) -> int | None:
        """Number of tokens whose keys and values fit; None for an engine that runs already."""
        return None if self.sharing == "alone" else self.cache // self.kv_per_token

    @property
    def microbatch(self) -> int:
        return self.wanted.microbatch_tokens or min(self.asked_pass, self.capacity // GRAIN * GRAIN)

    @property
    def longest(self) -> int:
        """Tokens of the longest episode that both sides can hold."""
        return min(self.whole, self.capacity, self.whole if self.kv_tokens is None else self.kv_tokens)

    @property
    def context(self) -> int:
        if self.longest >= self.whole or self.wanted.context is not None:
            return self.whole
        return self.longest // (GRAIN // 4) * (GRAIN // 4)

    @property
    def rows(self) -> int:
        if self.kv_tokens is None:
            return self.wanted.rows
        return min(self.wanted.rows, max(1, self.kv_tokens // max(1, self.context // 4)))

    @property
    def share(self) -> float | None:
        """Share of the GPU's memory for vLLM; None where the run starts no vLLM."""
        if self.engine != "vllm" or self.sharing == "alone":
            return None
        if self.wanted.engine.memory_share is not None:
            return self.wanted.engine.memory_share
        part = (sum(self.fixed.values()) + self.cache) / self._engine_memory
        return min(MOST_SHARE, math.ceil(part * 1000) / 1000)

    @property
    def fits(self) -> bool:
        least = self.whole if self.wanted.context is not None else min(self.whole, LEAST_CONTEXT)
        return self.longest >= least and 0 < self.microbatch <= self.capacity

    @property
    def good(self) -> bool:
        """Return whether it fits without any size so small that it costs much speed."""
        return (
            self.fits
            and self.microbatch >= (self.wanted.microbatch_tokens or min(GOOD_PASS, self.asked_pass))
            and self.context >= min(self.whole, GOOD_PASS)
            and self.rows >= min(self.wanted.rows, FEW_ROWS)
        )

    @property
    def table(self) -> tuple[Item, ...]:
        """Memory while the learner works and while episodes are sampled; with separate GPUs, on the learner's and on
        the engine's."""
        return tuple(self._items())

    def _items(self) -> Iterator[Item]:
        for what, size in self.resident.items():
            yield Item(what=what, learning=size, sampling=self._resting.get(what, 0))
        tokens = max(self.microbatch, min(self.context, self.capacity))
        yield Item(what=f"activations of {tokens:,} tokens", learning=tokens * self.per_token)
        yield Item(what="logits", learning=memory.logit_bytes(self.shape, tokens))
        if self.sharing == "alone":
            return
        awake = self.sharing == "split"
        for what, size in self.fixed.items():
            yield Item(what=what, learning=size if awake else 0, sampling=size)
        cached = f"keys and values of {self.kv_tokens:,} tokens"
        yield Item(what=cached, learning=self.cache if awake else 0, sampling=self.cache)
        if self.sharing == "sleep":
            yield Item(what="vLLM asleep", learning=memory.ASLEEP)

    @property
    def host(self) -> int:
        """Bytes of host memory that a sleeping vLLM moves its weights and adapters to, from each of its GPUs
        (`vllm.device_allocator.cumem`: at level 1, everything that the model was loaded into), and those that hold a
        resting learner."""
        if self.sharing != "sleep":
            return 0
        learning, sampling = devices(self.machine, self.wanted)
        return sum(self._engine_weights().values()) * len(sampling) + self.moved * len(learning)

    @property
    def moved(self) -> int:
        """Bytes that each learner moves to the machine's memory and back in every step."""
        parts = self.resident.items() if self.offload else ()
        return sum(size for what, size in parts if what not in (CUDA, GRADIENTS))

    @property
    def wave_seconds(self) -> float:
        """Seconds in which all rows sample a short episode, at least: each token reads all weights."""
        bandwidth, _ = gpu_speed(devices(self.machine, self.wanted)[1][0].name)
        return SHORT_EPISODE * memory.weights(self.shape, self.quantisation, self.dtype) / (SAMPLING * bandwidth)

    def move_seconds(self, size: int) -> float:
        """Seconds to move bytes to the machine's memory and back."""
        return 2 * size / (self.machine.host_bandwidth or HOST_BANDWIDTH)

    @property
    def _resting(self) -> dict[str, int]:
        """Bytes of the learner on the engine's GPU while it samples, by part."""
        if self.sharing == "apart":
            return {}
        return {CUDA: self.resident[CUDA]} if self.offload else self.resident

    def _engine_weights(self) -> dict[str, int]:
        """Return the bytes of vLLM's weights on each of its GPUs."""
        shape, wanted = self.shape, self.wanted
        adapter = memory.adapter_parameters(shape, wanted.lora) if wanted.method == "lora" else 0
        return {
            f"vLLM's base, {precision(self.quantisation, self.dtype)}": (
                memory.weights(shape, self.quantisation, self.dtype) // self.split
            ),
            "vLLM's adapters": LORAS * memory.size_of(self.dtype) * adapter,
        }

    def _engine_fixed(self) -> dict[str, int]:
        if self.sharing == "alone":
            return {}
        working = memory.engine_working(self.shape, self.wanted.rows)
        if self.engine == "local":
            return {"the engine's activations": working}
        return {
            **self._engine_weights(),
            "vLLM's activations": working,
            "vLLM's graphs, CUDA": memory.CONTEXT + memory.GRAPHS,
        }


def resident(
    shape: ModelShape, wanted: WantedSettings, quantisation: Quantisation, dtype: Dtype, engine: Engine
) -> dict[str, int]:
    """Return the learner's bytes that do not depend on its pass, by part.

    Each learner holds its share of a copy of every weight (FSDP2); an adapter is whole on each.
    """
    if wanted.method == "full":
        trained, parts, name = shape.parameters, wanted.learners, "trained weights, float32"
    else:
        trained, parts, name = memory.adapter_parameters(shape, wanted.lora), 1, "adapter, float32"
    sizes = {
        f"base, {precision(quantisation, dtype)}": memory.weights(shape, quantisation, dtype),
        name: 4 * trained // parts,
        GRADIENTS: 4 * trained // parts,
        f"optimiser ({wanted.optimizer})": memory.optimizer_bytes(trained, wanted.optimizer) // parts,
        CUDA: memory.CONTEXT,
    }
    if engine == "local":
        merged = wanted.method == "lora" and dtype == "float32" and shape.linear <= memory.MERGED_PARAMETERS
        copied = shape.linear if merged else trained
        sizes["the engine's policy"] = copied * (memory.size_of(dtype) if wanted.method == "full" else 4)
    return sizes


def precision(quantisation: Quantisation, dtype: Dtype) -> str:
    return dtype if quantisation == "none" else quantisation
