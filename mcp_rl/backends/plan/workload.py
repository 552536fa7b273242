"""The work that ways of loading a model are timed with: a model like the run's, and episodes as long as its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mcp_rl.backends.plan.machine import FrozenData
from mcp_rl.config import LoraConfig

if TYPE_CHECKING:
    from mcp_rl.backends.plan.outcome import RunPlan
    from mcp_rl.backends.plan.wanted import WantedSettings

LAYERS, VOCABULARY = 2, 8192
"""Size of the model that is timed: the ways differ in what a layer takes, which is the same for each."""
_SHARED, _MOST_OWN, _ROWS = 1536, 2048, 8
"""Tokens of tools and request that the episodes of a scenario share, most tokens of their own, and most of them."""


class Way(FrozenData):
    """A way to load a model and to compute it."""

    loader: Literal["transformers", "unsloth"]
    forward: Literal["auto", "tree", "rows"] = "auto"


class Workload(FrozenData):
    """A model in small, and a group of episodes of it."""

    base_model: str
    revision: str | None = None
    trust_remote_code: bool = False
    quantisation: Literal["none", "8-bit", "4-bit"] = "none"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    lora: LoraConfig = LoraConfig()
    checkpointing: bool = False
    microbatch_tokens: int = 8192
    shared: int = _SHARED
    """Tokens that all episodes begin with."""
    own: int = 512
    """Tokens of each episode after those, all of them learned."""
    rows: int = _ROWS
    layers: int = LAYERS


def workload(base_model: str, made: RunPlan, asked: WantedSettings, *, sampled: int, rows: int) -> Workload:
    """Return the work of a planned run; `sampled` is the limit of an episode's own tokens, `rows` a group's size."""
    own = max(128, min(sampled // 4, _MOST_OWN, made.context - _SHARED))
    return Workload(
        base_model=base_model,
        quantisation=made.quantisation,
        dtype=made.dtype,
        lora=asked.lora,
        checkpointing=made.activation_checkpointing,
        microbatch_tokens=made.microbatch_tokens,
        own=own,
        rows=min(rows, _ROWS),
    )
