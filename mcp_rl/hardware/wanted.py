"""What a run asks of a machine: the settings that a plan depends on, those that were left open as None."""

from typing import Literal

from mcp_rl.config import (
    EngineConfig,
    LoraConfig,
    PlacementConfig,
    RolloutConfig,
    RunConfig,
    TrainConfig,
    UnslothConfig,
)
from mcp_rl.hardware.machine import Found
from mcp_rl.hardware.memory import Dtype, Quantisation

PROMPT_TOKENS = 4096
"""Room for the system prompt, the tools and the request, whose length nobody knows before they are rendered."""
FULL_PASS: int = TrainConfig.model_fields["microbatch_tokens"].default
"""More tokens in one pass make no GPU faster."""
GOOD_PASS = 8192
"""From here on a larger pass gains less than activations that are kept, or a base in its own precision."""


class Wanted(Found):
    """What is asked for; None where it is for the plan to choose."""

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
    overlapping: bool = False
    """Rollouts go on while the learner works."""
    unsloth: bool | None = None
    engine: EngineConfig = EngineConfig()
    placement: PlacementConfig = PlacementConfig()
    sampled: bool = True
    """Whether anything samples; supervised fine-tuning has no engine."""
    ranks: int = 1
    """Processes of the learner that somebody else started (torchrun)."""

    @property
    def learners(self) -> int:
        """Devices that learn."""
        return max(1, len(self.placement.learner_gpus), self.ranks)


def wanted_by(config: RunConfig, *, kept: Quantisation | None = None, ranks: int = 1) -> Wanted:
    """What a run's configuration asks for. `kept`: the quantisation that a run which goes on was begun with."""
    return wanted(config.train, config.engine, config.placement, config.unsloth, config.rollout, kept=kept, ranks=ranks)


def wanted(
    train: TrainConfig,
    engine: EngineConfig,
    placement: PlacementConfig,
    unsloth: UnslothConfig,
    rollout: RolloutConfig,
    *,
    max_context: int | None = None,
    kept: Quantisation | None = None,
    ranks: int = 1,
) -> Wanted:
    """The same from the parts. A setting counts as chosen where somebody set it, whatever to."""
    limits = [n for n in (max_context, engine.max_context) if n is not None]
    rows = min(engine.max_rows, rollout.concurrency, rollout.groups_per_step * rollout.group_size)
    return Wanted(
        method=train.method,
        lora=train.lora,
        optimizer=train.optimizer,
        microbatch_tokens=train.microbatch_tokens if "microbatch_tokens" in train.model_fields_set else None,
        default_microbatch=train.microbatch_tokens,
        activation_checkpointing=(
            train.activation_checkpointing if "activation_checkpointing" in train.model_fields_set else None
        ),
        quantisation=kept or quantisation_of(unsloth),
        dtype=None if unsloth.dtype == "auto" else unsloth.dtype,
        context=min(limits) if limits else None,
        episode=PROMPT_TOKENS + rollout.max_tokens + rollout.max_turns * rollout.max_result_tokens,
        rows=rows,
        overlapping=train.max_staleness > 0,
        unsloth=unsloth.use,
        engine=engine,
        placement=placement,
        ranks=ranks,
    )


def quantisation_of(unsloth: UnslothConfig) -> Quantisation | None:
    """What the settings say of it; None where nothing."""
    if unsloth.load_in_4bit:
        return "4-bit"
    if unsloth.load_in_8bit:
        return "8-bit"
    return "none" if unsloth.load_in_4bit is False else None
