"""The learner: a model with its trainable weights, its optimiser, and the step that they are at.

Sequences go forward in parts that fit a token budget; every prompt token that they share is computed once. `step` and
`sft` compute a loss from the log-probabilities, and `descend` takes the optimiser's step. Randomness follows from the
seed and the step alone, so a resumed run needs no stored random state to continue bit for bit.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import PeftModel

from mcp_rl.errors import ConfigError
from mcp_rl.learning import canaries
from mcp_rl.learning.adapter import base_of, trainable_parameters
from mcp_rl.learning.forward.forward import Forward, logprobs_of
from mcp_rl.learning.forward.packed import Packed
from mcp_rl.learning.optimizer import make_optimizer
from mcp_rl.learning.precision import ROUNDINGS, rounding_of
from mcp_rl.learning.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from mcp_rl.config import TrainConfig
    from mcp_rl.learning.parallel import Ranks
    from mcp_rl.learning.precision import Rounding
    from mcp_rl.learning.samples import Sample
    from mcp_rl.learning.sharding import Sharding

MOST_OVERFLOWS = 8
"""Number of successive float16 updates that may overflow before a run stops: eight halvings undo a scale of 256."""


class Learner:
    """A policy, its optimiser and the step they are at."""

    def __init__(
        self,
        model: PeftModel | PreTrainedModel,
        config: TrainConfig,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        reference: PreTrainedModel | None = None,
        forward: Forward | None = None,
        compute: torch.dtype | None = None,
    ) -> None:
        """Make an optimiser for the model's trainable parameters.

        `temperature` is the sampler's: log-probabilities are compared under the distribution that was sampled from.
        `reference` is the model that the KL is measured against; an adapter uses its own base and needs none.
        `forward` tells how to compute a model that was prepared for it; None means over the prefix tree. `compute` is
        the type in which float32 weights are multiplied (autocast); None: as they are.

        Raises ConfigError if `config` asks for a KL and there is no reference.
        """
        if config.kl and reference is None and not isinstance(model, PeftModel):
            raise ConfigError("train.kl needs the base model as a reference, and this learner was given none.")
        self.model, self.config, self.temperature, self.seed = model, config, temperature, seed
        self.reference, self.forward = reference, forward or Forward()
        self.compute = None if compute in (None, torch.float32) else compute
        self.step = 0
        self._made_with = config
        self.parameters = trainable_parameters(model)
        self.optimizer = make_optimizer(config, self.parameters.values())
        self.device = next(iter(self.parameters.values())).device
        self.ranks: Ranks | None = None
        """The processes that learn together, if there are several; set by `join`."""
        self.sharding: Sharding | None = None
        """The division of the model among them, if it is divided."""
        self.batch: list[Sample] = []
        """The samples of the last update."""
        self.moved = False
        """True once the optimiser has changed the weights in the current update."""
        self.halved = self.overflows = self.doubts = 0
        """Halvings of the loss's scale, consecutive overflows, and consecutive doubtful disagreements with the sampler.
        """

    def join(self, ranks: Ranks, *, shard_reference: bool = True) -> None:
        """Learn together with other processes that hold the same policy.

        With method "full", parameters, gradients and optimiser state are divided among them (FSDP2); so is the
        reference, unless this process samples from it (`shard_reference` False).
        """
        self.ranks = ranks
        if not isinstance(self.model, PeftModel):
            from mcp_rl.learning.sharding import Sharding, divided

            if self.config.optimizer == "adafactor":
                raise ConfigError(
                    "train.optimizer=adafactor cannot be divided among several learners, because it stores rows and "
                    "columns of whole weights; use adamw, whose state is divided too, or sgd."
                )
            kept = {name: self.optimizer.state.get(old, {}) for name, old in self.parameters.items()}
            self.sharding = Sharding(self.model, ranks)
            if self.reference is not None and shard_reference:
                self.sharding.add(self.reference)
            self.parameters = trainable_parameters(self.model)
            self.optimizer = make_optimizer(self.config, self.parameters.values())
            for name, state in kept.items():
                if state:
                    self.optimizer.state[self.parameters[name]] = divided(state, self.parameters[name])
            self.device = ranks.device

    def check_unchanged(self) -> None:
        """Raise ConfigError if a setting that the learner was made with has changed since."""
        if self.config.kl and self.reference is None and not isinstance(self.model, PeftModel):
            raise ConfigError(
                "train.kl needs the base model, which is not in memory, as the learner began without one."
            )
        for name in ("method", "lora", "optimizer"):
            if getattr(self.config, name) != getattr(self._made_with, name):
                raise ConfigError(f"train.{name} cannot change while a model is being trained: start a new run for it.")

    def parts(self, samples: Sequence[Sample]) -> Iterator[tuple[list[int], Packed]]:
        """Yield parts of at most `microbatch_tokens` forward tokens: the indices of their samples, and these packed."""
        rows, shared = self.forward.kind == "rows", self.config.prefix_sharing
        for part in self.forward.split(samples, self.config):
            yield part, Packed.of([samples[i] for i in part], self.device, shared=shared, rows=rows)

    def logprobs(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [S] of each sampled token under the current policy, in nats."""
        return self.logprobs_under(self.model, packed)

    def logprobs_under(self, model: PeftModel | PreTrainedModel, packed: Packed) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [S] of each sampled token under the policy or the reference, in nats."""
        checkpointing = self.config.activation_checkpointing
        run = partial(logprobs_of, model, packed.batch, self.temperature, activation_checkpointing=checkpointing)
        with self.precision():
            return run() if self.sharding is None else self.sharding.run(model, run)

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context in which float32 weights are multiplied in `compute` (mixed precision: Micikevicius et al.,
        2018): they stay float32, so that small updates are not lost."""
        if self.compute is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.compute)

    @property
    def rounding(self) -> Rounding | None:
        """The limits of its precision, or of its reference's; None in float32."""
        computed = None if self.compute is None else ROUNDINGS.get(str(self.compute).removeprefix("torch."))
        return computed or rounding_of(self.model, self.reference)

    def own_share(self, samples: list[Sample]) -> list[Sample]:
        """Return the samples that this process computes; all of them if it learns alone."""
        if self.ranks is None:
            return samples
        return self.ranks.share(samples, shared=self.config.prefix_sharing and self.forward.kind == "tree")

    def parts_in_step(
        self, samples: Sequence[Sample], own: Sequence[Sample], *, with_reference: bool = False
    ) -> Iterator[tuple[list[int], Packed]]:
        """Yield the parts of this process's `own` share of the samples, in step with the other processes.

        A divided model needs every process in every forward pass. A process with fewer parts than the others joins
        their remaining passes with a sample that adds nothing; `with_reference` says that they run the reference too.
        """
        if self.sharding is None or self.ranks is None:
            yield from self.parts(own)
            return
        reference = with_reference and samples[0].reference is None
        count = len(self.forward.split(own, self.config))
        missing = self.ranks.most(count) - count
        yield from self.parts(own)
        for _ in range(missing):
            self._idle(min(samples, key=lambda sample: len(sample.tokens)), reference=reference)

    def _idle(self, sample: Sample, *, reference: bool) -> None:
        """Take part in a forward and a backward pass that other processes need, adding nothing to the gradient."""
        _, packed = next(iter(self.parts([sample])))
        logprobs, _ = self.logprobs(packed)
        if reference:
            with torch.no_grad():
                self.logprobs_under(cast("PreTrainedModel", self.reference), packed)
        if torch.is_grad_enabled():
            (logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]

    def scale(self, tokens: int) -> float:
        """Factor on the loss before its gradient is taken: a power of two in float16, else 1.

        In float16 the gradient of one among many tokens underflows (Micikevicius et al., Mixed Precision Training,
        2018). `unscale` divides the gradient by the factor again.
        """
        return 2.0 ** (min(15, tokens.bit_length() - 1) - self.halved) if self.scales else 1.0

    @property
    def scales(self) -> bool:
        """True if the model computes in float16, where gradients underflow and overflow."""
        return torch.float16 in (self.compute, base_of(self.model).dtype)

    def overflowed(self, value: float) -> None:
        """Halve the scale after a loss or a gradient that is not finite in float16, whose update is skipped. Raises
        CanaryError after several in a row, which no scale mends."""
        self.halved, self.overflows = self.halved + 1, self.overflows + 1
        if self.overflows >= MOST_OVERFLOWS:
            canaries.check_finite(f"gradient, {self.overflows} times in a row,", value)

    def unscale(self, scale: float) -> None:
        """Divide the gradient by the factor that the loss was multiplied by."""
        for parameter in self.parameters.values() if scale != 1 else ():
            if parameter.grad is not None:
                parameter.grad.div_(scale)

    def descend(self, *, check_moved: bool = True) -> float:
        """Clip the gradient, take the optimiser's step at this step's rate, and clear the gradient.

        Returns the gradient's norm before clipping. If it is not finite, the policy stays: in float16 the scale is
        halved and the norm returned, until several come in a row; else CanaryError is raised, as where no weight moved.
        """
        if self.ranks is not None and self.sharding is None:
            self.ranks.sum_gradients(self.parameters.values())
        total = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_grad_norm)
        norm = float(total if self.sharding is None else self.sharding.whole(total))
        if self.scales and not math.isfinite(norm):
            self.optimizer.zero_grad()
            self.overflowed(norm)
            return norm
        self.overflows = 0
        canaries.check_finite("gradient's norm", norm)
        rate = learning_rate(self.config, self.step)
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = rate, self.config.weight_decay
        before = self._sums() if check_moved else None
        self.moved = True
        self.optimizer.step()
        self.optimizer.zero_grad()  # so that nothing of one minibatch reaches the next
        if before is not None:
            moved = not torch.equal(before, self._sums())
            canaries.check_moved(moved if self.ranks is None else bool(self.ranks.most(int(moved))), rate, norm)
        return norm

    def _sums(self) -> Tensor:
        """A sum of each parameter, exact enough to change with any of its values."""
        kept = [parameter.detach() for parameter in self.parameters.values()]
        own = kept if self.sharding is None else map(self.sharding.local, kept)
        return torch.stack([parameter.sum(dtype=torch.float64) for parameter in own])
