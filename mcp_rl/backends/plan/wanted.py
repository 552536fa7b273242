"""The settings that a plan depends on; those that were left open are None."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mcp_rl.backends.plan.machine import FrozenData
from mcp_rl.backends.plan.memory import Dtype, Quantisation
from mcp_rl.config import EngineConfig, LoraConfig, PlacementConfig, TrainConfig
from mcp_rl.config.presets import kind_of

if TYPE_CHECKING:
    from mcp_rl.backends.hosts import LocalSettings
    from mcp_rl.config import RunConfig, UnslothConfig

PROMPT_TOKENS = 4096
"""Room for the system prompt, the tools and the request, whose length is unknown before they are rendered."""
FULL_PASS: int = TrainConfig.model_fields["microbatch_tokens"].default
"""Tokens of a pass beyond which no GPU gets faster."""
GOOD_PASS = 8192
"""Tokens of a pass beyond which more gains less than kept activations, or a base in its own precision."""


class WantedSettings(FrozenData):
    """The settings asked for; None leaves a choice to the plan."""

    method: Literal["lora", "full"] = "lora"
    lora: LoraConfig = LoraConfig()
    optimizer: str = "adamw"
    microbatch_tokens: int | None = None
    default_microbatch: int = FULL_PASS
    activation_checkpointing: bool | None = None
    quantisation: Quantisation | None = None
    dtype: Dtype | None = None
    context: int | None = None
    episode: int = PROMPT_TOKENS + 4096
    """Tokens that the limits of a rollout allow."""
    rows: int = 64
    """Episodes in flight, by the settings."""
    offload: Literal["auto", "host", "keep"] = "auto"
    overlapping: bool = False
    """True if rollouts go on while the learner works."""
    unsloth: bool | None = None
    engine: EngineConfig = EngineConfig()
    placement: PlacementConfig = PlacementConfig()
    sampled: bool = True
    """False in supervised fine-tuning, which has no engine."""
    ranks: int = 1
    """Number of learner processes that torchrun started."""

    @property
    def learners(self) -> int:
        """Number of devices that learn."""
        return max(1, len(self.placement.learner_gpus), self.ranks)


def wanted(
    settings: LocalSettings | RunConfig,
    *,
    max_context: int | None = None,
    kept: Quantisation | None = None,
    ranks: int = 1,
) -> WantedSettings:
    """Collect what a run's settings ask for. A setting counts as chosen where it was set, even to its default.

    `max_context` is a caller's limit beside `engine.max_context`; `kept` is the quantisation that a continued run was
    begun with.
    """
    train, engine, rollout = settings.train, settings.engine, settings.rollout
    limits = [n for n in (max_context, engine.max_context) if n is not None]
    thinks = kind_of(settings.base_model, {"chat": settings.chat}).thinking
    thought = rollout.max_thought_tokens if thinks else 0  # beside rollout.max_tokens, and kept in the context
    rows = min(engine.max_rows, rollout.concurrency, rollout.groups_per_step * rollout.group_size)
    return WantedSettings(
        method=train.method,
        lora=train.lora,
        optimizer=train.optimizer,
        microbatch_tokens=train.microbatch_tokens if "microbatch_tokens" in train.model_fields_set else None,
        default_microbatch=train.microbatch_tokens,
        activation_checkpointing=(
            train.activation_checkpointing if "activation_checkpointing" in train.model_fields_set else None
        ),
        quantisation=kept or quantisation_of(settings.unsloth),
        dtype=None if settings.unsloth.dtype == "auto" else settings.unsloth.dtype,
        context=min(limits) if limits else None,
        episode=PROMPT_TOKENS + rollout.max_tokens + rollout.max_turns * (rollout.max_result_tokens + thought),
        rows=rows,
        offload=train.offload_while_sampling,
        overlapping=train.max_staleness > 0,
        unsloth=settings.unsloth.use,
        engine=engine,
        placement=settings.placement,
        ranks=ranks,
    )


def quantisation_of(unsloth: UnslothConfig) -> Quantisation | None:
    """Return the quantisation that the settings ask for; None where they leave it open."""
    if unsloth.load_in_4bit:
        return "4-bit"
    if unsloth.load_in_8bit:
        return "8-bit"
    return "none" if unsloth.load_in_4bit is False else None
