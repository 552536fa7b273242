"""What a plan comes to: plain data, for the settings, for a line at a run's start and for the doctor's tables."""

from typing import Literal

from mcp_rl.hardware.fitting import Item, precision
from mcp_rl.hardware.machine import GIB, Found
from mcp_rl.hardware.memory import Dtype, Quantisation
from mcp_rl.hardware.placing import Engine, Loader, Sharing


class Plan(Found):
    """What a run would be computed with."""

    device: Literal["cpu", "gpu"]
    where: str
    """The device, in words."""
    model: str
    engine: Engine
    in_process: bool
    loader: Loader
    quantisation: Quantisation
    stored: bool = False
    """Whether its weights are stored so, so that there is no choice."""
    dtype: Dtype
    sharing: Sharing
    memory_share: float | None
    """Of the engine's GPU, where we start vLLM."""
    split: int = 1
    """GPUs that vLLM's weights are split over; of the engine's GPUs, every so many hold a replica."""
    context: int
    """Most tokens of an episode."""
    rows: int
    """Episodes whose keys and values fit side by side, when they have a quarter of the context."""
    kv_tokens: int | None
    """Tokens whose keys and values fit; None where the engine is somebody else's."""
    microbatch_tokens: int
    activation_checkpointing: bool
    table: tuple[Item, ...]
    available: tuple[int, int]
    """Bytes while learning and while sampling, after a reserve."""
    host: int = 0
    """Bytes of the machine's own memory that vLLM's weights take while it sleeps."""
    reasons: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What would not work, a sentence each; none: the plan holds."""

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def total(self) -> tuple[int, int]:
        """Bytes while learning and while sampling."""
        return sum(item.learning for item in self.table), sum(item.sampling for item in self.table)

    @property
    def line(self) -> str:
        """The choices, for the start of a run."""
        engine = {
            "sleep": "vLLM samples and sleeps while the learner works",
            "split": "vLLM samples beside the learner",
            "apart": "vLLM samples on a GPU of its own",
            "alone": "a vLLM that runs already samples",
        }[self.sharing]
        if self.engine == "local":
            engine = "our own engine samples"
        share = "" if self.memory_share is None else f" with {self.memory_share:.0%} of the memory"
        bits = precision(self.quantisation, self.dtype)
        kept = "computed again" if self.activation_checkpointing else "kept"
        return (
            f"{self.where}: {self.model} in {bits} by {self.loader}, {engine}{share}; "
            f"{self.microbatch_tokens:,} tokens in a pass, activations {kept}, episodes up to {self.context:,} tokens."
        )


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
