"""The update."""

from typing import Literal

from pydantic import Field

from mcp_rl.config.section import Section


class LoraConfig(Section):
    """The adapter that is trained; the base stays as it is."""

    rank: int = Field(default=16, ge=1)
    """Enough for one server's tools; more was no better when tried."""
    alpha: int = Field(default=32, ge=1)
    """Twice the rank, the usual scale of 2."""
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )
    """All linear layers: LoRA on attention alone learns less."""


class TrainConfig(Section):
    """One step of learning."""

    learning_rate: float = Field(default=8e-4, gt=0)
    """Measured on the built-in model; larger models take less."""
    schedule: Literal["inverse", "constant", "linear", "cosine"] = "inverse"
    """How the rate falls: as 1 / (1 + step / decay_steps), which needs no last step; not at all; or to the floor."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of rising learning rate: none, the adapter starts at zero."""
    decay_steps: int = Field(default=60, ge=0)
    """`inverse`: steps until the rate is half, 0 for never; `linear`, `cosine`: steps until it is at its floor."""
    floor: float = Field(default=0.1, ge=0, le=1)
    """Share of the learning rate at which `linear` and `cosine` end: a tenth, the usual one."""
    optimizer: Literal["adamw", "adafactor", "sgd"] = "adamw"
    """AdamW, the field's baseline; Adafactor takes less memory where every weight is trained."""
    loss: Literal["grpo", "dr_grpo", "cispo", "gspo"] = "grpo"
    """Clipped token-level policy gradient, the field's baseline."""
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] | None = None
    """How the losses of tokens become one; none: the loss's own way, for `grpo` the mean over tokens (DAPO)."""
    sequence_norm: int = Field(default=384, ge=1)
    """Divisor of a sequence's sum in `seq-mean-token-sum-norm` (Dr. GRPO): the most sampled tokens of an episode."""
    scale_by_std: bool | None = None
    """Divide by the group's deviation, so that a rare success counts more; none: not for `dr_grpo`, else yes. Off where
    a judge scores: it blows near-ties up."""
    leave_one_out: bool = False
    """Off: in one group it only rescales the advantage."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """Lower clip of the ratio; none: the loss's own, 0.2 as in PPO, 3e-4 for `gspo`, 1 (no clip) for `cispo`."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip; none: the loss's own, `grpo` 0.28 to keep exploring (DAPO), `dr_grpo` 0.2, `gspo` 4e-4, `cispo` 4."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL to the base: off, verified rewards need no leash."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus: off, larger groups explore already."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping, the usual norm."""
    weight_decay: float = Field(default=0.0, ge=0)
    """None: the adapter is small and starts at zero."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps by which a sampled token may be older than the learner; above 0 rollouts go on while the learner works."""
    importance_cap: float | None = Field(default=None, ge=0)
    """Cap of the weight that corrects an inexact or older sampler (truncated importance sampling), 0: no correction;
    none: 2 where `max_staleness` is above 0 or vLLM samples in 16 bits, else no correction: our sampler is exact."""
    epochs: int = Field(default=2, ge=1)
    """Passes over one batch: the update costs a tenth of the sampling."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser updates in one pass: two were noisier, and stopped at 0.89 where one went on to 0.94."""
    microbatch_tokens: int = Field(default=16384, ge=256)
    """Tokens in one forward pass, which bounds the memory; where it is not set, fewer if so many do not fit."""
    forward: Literal["auto", "tree", "rows"] = "auto"
    """How log-probabilities are computed: over the prefix tree, or by the model's own forward pass, a row for each
    sequence; auto: the tree wherever it works, and on a GPU whichever of the two is measured to be faster."""
    prefix_sharing: bool = True
    """Compute what episodes share once; off is for measuring what that is worth."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time for much less memory; where it is not set, on
    if a pass does not fit otherwise."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints: a kill costs under a minute."""
    keep_checkpoints: int = Field(default=3, ge=1)
    """Newest checkpoints that stay on disk: one, and two behind it in case it is damaged."""
    keep_best: bool = True
    """Keep the checkpoint with the best success on val too, however old it is."""
    method: Literal["lora", "full"] = "lora"
    """Train an adapter, or every weight of the model: an adapter is small, fast and enough for one server's tools."""
    lora: LoraConfig = LoraConfig()
    """The adapter that is trained."""

    @property
    def scales_by_std(self) -> bool:
        """`scale_by_std` with its default filled in (Dr. GRPO: Liu et al., 2025, section 3.2, leaves it out)."""
        return self.loss != "dr_grpo" if self.scale_by_std is None else self.scale_by_std

    @property
    def cap(self) -> float:
        """`importance_cap` with its default filled in; 0 for no correction."""
        if self.importance_cap is not None:
            return self.importance_cap
        return 2.0 if self.max_staleness else 0.0
