"""A finished plan as plain data: for the settings, the line at a run's start and the doctor's tables."""

from __future__ import annotations

from typing import Literal

from mcp_rl.backends.plan.fitting import Item, precision
from mcp_rl.backends.plan.machine import GIB, FrozenData
from mcp_rl.backends.plan.memory import Dtype, Quantisation
from mcp_rl.backends.plan.placing import Engine, Loader, Sharing


class RunPlan(FrozenData):
    """The engine, precision, placement and sizes that a run would be computed with."""

    device: Literal["cpu", "gpu"]
    where: str
    """The device, in words."""
    model: str
    engine: Engine
    in_process: bool
    loader: Loader
    quantisation: Quantisation
    stored: bool = False
    """True if the weights are stored in this precision, so that it cannot be chosen."""
    dtype: Dtype
    sharing: Sharing
    memory_share: float | None
    """Share of the engine's GPU, where the run starts vLLM."""
    split: int = 1
    """Number of GPUs that vLLM's weights are split over; each group of so many engine GPUs holds a replica."""
    context: int
    """Most tokens of an episode."""
    rows: int
    """Number of episodes whose keys and values fit side by side at a quarter of the context each."""
    kv_tokens: int | None
    """Number of tokens whose keys and values fit; None for an engine that runs already."""
    microbatch_tokens: int
    activation_checkpointing: bool
    table: tuple[Item, ...]
    available: tuple[int, int]
    """Bytes while learning and while sampling, after a reserve."""
    offload: bool = False
    """True if the learner's weights and moments are in host memory while vLLM samples."""
    moved: int = 0
    """Bytes that the learner then moves there and back in every step."""
    host: int = 0
    """Bytes of host memory that vLLM's weights take while it sleeps, and the learner's while it rests."""
    reasons: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems of the plan, one sentence each; empty if the plan holds."""

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def bits(self) -> int:
        """Bits of each weight of the base."""
        return {"4-bit": 4, "8-bit": 8}.get(self.quantisation, 32 if self.dtype == "float32" else 16)

    @property
    def total(self) -> tuple[int, int]:
        """Bytes while learning and while sampling."""
        return sum(item.learning for item in self.table), sum(item.sampling for item in self.table)

    @property
    def line(self) -> str:
        """The choices in one sentence, for the start of a run."""
        engine = {
            "sleep": "vLLM samples and sleeps while the learner works"
            + (", which rests in the machine's memory meanwhile" if self.offload else ""),
            "split": "vLLM samples beside the learner",
            "apart": "vLLM samples on a GPU of its own",
            "alone": "a running vLLM samples",
        }[self.sharing]
        if self.engine == "local":
            engine = "the in-process engine samples"
        share = "" if self.memory_share is None else f" with {self.memory_share:.0%} of the memory"
        bits = precision(self.quantisation, self.dtype)
        kept = "recomputed" if self.activation_checkpointing else "kept"
        return (
            f"{self.where}: {self.model} in {bits} by {self.loader}, {engine}{share}; "
            f"{self.microbatch_tokens:,} tokens in a pass, activations {kept}, episodes up to {self.context:,} tokens."
        )


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
