"""Settings of the update."""

from typing import Annotated, Literal

from pydantic import Field

from mcp_rl.config.section import CARRIED, Role, Section

_SFT = Role(sft=True)
ALL_LINEAR = "all-linear"
"""The target that stands for every linear layer of a model."""
_BOOKKEEPING = Role(identity=False, carried=True, same_policy=True, sft=True)
"""Decides how a step is computed and kept, not what is learned."""


class LoraConfig(Section):
    """The LoRA adapter that is trained; the base stays frozen."""

    rank: int = Field(default=16, ge=1)
    """Rank of the adapter: enough for one server's tools; more was no better when tried."""
    alpha: int = Field(default=32, ge=1)
    """Scaling of the adapter: twice the rank, the usual scale of 2."""
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )
    """Layers with an adapter: all linear ones, as LoRA on attention alone learns less; `["all-linear"]` are those that
    the model really has, which fused projections name differently."""


class TrainConfig(Section):
    """The update of each step."""

    learning_rate: Annotated[float, _SFT] = Field(default=8e-4, gt=0)
    """Learning rate: measured on the built-in model; larger models need less."""
    schedule: Annotated[Literal["inverse", "constant", "linear", "cosine"], _SFT] = "linear"
    """Decay of the learning rate: as 1 / (1 + step / decay_steps); none; or down to the floor, which is kept from then
    on. A line gave steadier samples in as many steps when measured on the built-in model."""
    warmup_steps: Annotated[int, _SFT] = Field(default=0, ge=0)
    """Steps of rising learning rate: none, as the adapter starts at zero."""
    decay_steps: Annotated[int, _SFT] = Field(default=100, ge=0)
    """`inverse`: steps until the rate is halved, 0 for never; `linear`, `cosine`: steps until it reaches its floor, by
    default those of a run."""
    floor: Annotated[float, _SFT] = Field(default=0.1, ge=0, le=1)
    """Share of the learning rate at which `linear` and `cosine` end: the usual tenth."""
    optimizer: Annotated[
        Literal["adamw", "adafactor", "sgd"], Role(fixed="the checkpoint holds the optimiser's state", sft=True)
    ] = "adamw"
    """Optimiser: AdamW, the field's baseline; Adafactor takes less memory when every weight is trained."""
    loss: Literal["grpo", "dr_grpo", "cispo", "gspo"] = "grpo"
    """Policy-gradient loss: clipped at token level, the field's baseline."""
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] | None = None
    """Reduction of token losses to one loss; none: the loss's own way, for `grpo` the mean over tokens (DAPO)."""
    sequence_norm: int = Field(default=384, ge=1)
    """Divisor of a sequence's sum in `seq-mean-token-sum-norm` (Dr. GRPO): the most sampled tokens of an episode."""
    scale_by_std: bool | None = None
    """Divide advantages by the group's standard deviation, so that a rare success counts more; none: not for
    `dr_grpo`, else yes. Off with a judge, because it inflates near-ties."""
    leave_one_out: bool = False
    """Leave each rollout out of its own baseline: off, as within one group it only rescales the advantage."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """Lower clip of the ratio; none: the loss's own, 0.2 as in PPO, 3e-4 for `gspo`, 1 (no clip) for `cispo`."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip of the ratio; none: the loss's own, `grpo` 0.28 to keep exploring (DAPO), `dr_grpo` 0.2, `gspo`
    4e-4, `cispo` 4."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the base: off, as verified rewards need no leash."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus: off, as larger groups explore already."""
    max_grad_norm: Annotated[float, _SFT] = Field(default=1.0, gt=0)
    """Gradient clipping: the usual norm."""
    weight_decay: Annotated[float, _SFT] = Field(default=0.0, ge=0)
    """Weight decay: none, as the adapter is small and starts at zero."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps by which a sampled token may be older than the learner; above 0, rollouts go on while the learner works."""
    importance_cap: float | None = Field(default=None, ge=0)
    """Cap of the weight that corrects an inexact or older sampler (truncated importance sampling), 0: no correction;
    none: 2 if `max_staleness` is above 0 or vLLM samples in 16 bits, else no correction, as the in-process sampler
    is exact."""
    importance: Literal["truncate", "mask"] = "truncate"
    """Treatment of a token whose weight is beyond the cap: weighted by the cap, or left out where its ratio is outside
    1/cap to cap (IcePop); truncated unless set, which keeps every token's gradient."""
    sequence_cap: float | None = Field(default=None, ge=1)
    """Ratio of a whole sequence, learner to sampler, above which it is left out where tokens are corrected; none: no
    sequence is left out, as the in-process sampler is exact."""
    truncated: Literal["learn", "mask"] = "learn"
    """Episodes that a limit on tokens cut off: learned from, as the built-in model's loops are its mistakes; or masked,
    so that they count in their group's mean alone (DAPO)."""
    sft_steps: Annotated[Annotated[int, Field(ge=0)] | Literal["auto"], Role(replay=False)] = "auto"
    """First steps, which imitate reference solutions instead of sampling; auto: for the built-in model 20, at most
    half of all, if there is a level of which it solves less than 70 % before training, and 30 if less than 10 %; for
    others none. Of later steps of such a run, each imitates also what none of its rollouts solved."""
    epochs: int = Field(default=2, ge=1)
    """Passes over one batch: the update costs a tenth of the sampling."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser updates in one pass: two were noisier, and stopped at 0.89 where one went on to 0.94."""
    microbatch_tokens: Annotated[int, _BOOKKEEPING] = Field(default=16384, ge=256)
    """Tokens in one forward pass, which bounds the memory; if it is not set, fewer when so many do not fit."""
    forward: Annotated[Literal["auto", "tree", "rows"], CARRIED] = "auto"
    """Computation of log-probabilities: over the prefix tree, or by the model's own forward pass with a row for each
    sequence; auto: the tree wherever it works, and on a GPU whichever of the two is measured to be faster."""
    prefix_sharing: Annotated[bool, Role(same_policy=True, sft=True)] = True
    """Compute shared prefixes once; off only serves to measure what that saves."""
    activation_checkpointing: Annotated[bool, Role(same_policy=True, sft=True)] = False
    """Recompute activations in the backward pass: a third more time for much less memory; if it is not set, on when
    a pass does not fit otherwise."""
    checkpoint_every: Annotated[int, _BOOKKEEPING] = Field(default=5, ge=1)
    """Steps between checkpoints: a kill costs under a minute."""
    keep_checkpoints: Annotated[int, _BOOKKEEPING] = Field(default=3, ge=1)
    """Newest checkpoints kept on disk: one, and two behind it in case it is damaged."""
    keep_best: Annotated[bool, _BOOKKEEPING] = True
    """Keep the checkpoint with the best success on val too, however old it is."""
    offload_while_sampling: Annotated[
        Literal["auto", "host", "keep"], Role(identity=False, carried=True, same_policy=True)
    ] = "auto"
    """Place of the learner's weights and moments while vLLM samples on the same GPU: the machine's memory (host) or the
    GPU (keep); auto: the machine's memory where that fits more, and moving takes less time than it saves."""
    method: Annotated[Literal["lora", "full"], Role(fixed="the checkpoint's weights are of that kind", sft=True)] = (
        "lora"
    )
    """Train an adapter, or every weight: an adapter is small, fast and enough for one server's tools."""
    lora: Annotated[LoraConfig, Role(fixed="the checkpoint's adapter has that shape", sft=True)] = LoraConfig()
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
