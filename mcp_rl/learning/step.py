"""One training step: scored groups in, a moved policy and its metrics out.

Every prompt token that sequences share is computed once (`tree`), in parts that fit a token budget; each minibatch is
one optimiser update, normalised by its own sampled tokens or sequences. Randomness follows from the seed and the step
alone, so a resumed run needs no random state to go on bit for bit.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.config import TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.learning import canaries
from mcp_rl.learning.adapter import trainable_parameters
from mcp_rl.learning.forward import Forward, logprobs_of, measure, rounds
from mcp_rl.learning.losses import Objective, Totals, kl_to_reference, objective
from mcp_rl.learning.off_policy import check_agreement, compare, correct, per_sample, staleness
from mcp_rl.learning.optimizer import make_optimizer
from mcp_rl.learning.packed import Packed
from mcp_rl.learning.parallel import Ranks
from mcp_rl.learning.samples import Sample, take_in
from mcp_rl.learning.schedule import learning_rate
from mcp_rl.learning.tally import Tally
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from mcp_rl.learning.sharding import Sharding


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
    ) -> None:
        """`temperature` is the sampler's: log-probabilities are compared under the distribution that was drawn from.

        `reference` is what the KL is taken to; an adapter's own base needs none. `forward` is how the model is to be
        computed, and has been made ready for; None: over the prefix tree. Raises ConfigError where a KL is wanted and
        there is nothing to take it to.
        """
        if config.kl and reference is None and not isinstance(model, PeftModel):
            raise ConfigError("train.kl needs the base model as a reference, and this learner was given none.")
        self.model, self.config, self.temperature, self.seed = model, config, temperature, seed
        self.reference, self.forward = reference, forward or Forward()
        self.step = 0
        self._made_with = config
        self.parameters = trainable_parameters(model)
        self.optimizer = make_optimizer(config, self.parameters.values())
        self.device = next(iter(self.parameters.values())).device
        self.ranks: Ranks | None = None
        """The processes that learn together, where there are several; `join` sets it."""
        self.sharding: Sharding | None = None
        """How the model is divided among them, where it is."""
        self.batch: list[Sample] = []
        """What the last update learned from."""
        self._moved = False
        """Whether the optimiser has done anything in the update that is under way."""

    def join(self, ranks: Ranks, *, shard_reference: bool = True) -> None:
        """Learn together with other processes that hold the same policy. With method "full", parameters, gradients and
        what the optimiser remembers are divided among them (FSDP2); so is the reference, unless it is sampled here."""
        self.ranks = ranks
        if not isinstance(self.model, PeftModel):
            from mcp_rl.learning.sharding import Sharding, divided

            if self.config.optimizer == "adafactor":
                raise ConfigError(
                    "train.optimizer=adafactor remembers rows and columns of whole weights, which several learners "
                    "divide: take adamw, whose memory is divided too, or sgd."
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

    def update(self, groups: Iterable[TrajectoryGroup], *, check_sampler: bool = True) -> dict[str, float]:
        """Learn from the groups whose rewards differ and count one step; returns the metrics of the step.

        Without any such group the policy stays and the step counts all the same. Raises CanaryError, with the policy
        unchanged, where sampler and learner disagree (unless `check_sampler` is off) or the first loss is not finite;
        ConfigError where the configuration has changed in what the learner was made with. What breaks it off after the
        policy has moved leaves `step` one further, so that nobody takes these weights for those of the step before.
        """
        began = time.perf_counter()
        config = self.config
        self._check_unchanged()
        intake = take_in(
            groups,
            scale_by_std=config.scales_by_std,
            leave_one_out=config.leave_one_out,
            oldest=self.step - config.max_staleness if config.max_staleness else None,
        )
        metrics = {
            "groups": float(intake.groups),
            "groups_dropped": float(intake.groups_without_variance),
            "trajectories_trained": float(intake.trained),
            "trajectories_masked": float(intake.masked),
            "trajectories_stale": float(intake.stale),
            "learning_rate": learning_rate(config, self.step),
        }
        tally = Tally()
        self.batch, self._moved = intake.samples, False
        if intake.samples:
            metrics |= staleness(intake.samples, self.step) | self._choose_forward(intake.samples)
            try:
                if config.cap and config.minibatches > 1:
                    self._correct_all(intake.samples, tally)
                for index, minibatch in enumerate(self._minibatches(intake.samples)):
                    self._update_once(minibatch, tally, first=index == 0, check_sampler=check_sampler)
            except BaseException:
                self.step += self._moved
                raise
            finally:
                self.optimizer.zero_grad()
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()  # an engine in another process may share the GPU
        self.step += 1
        if self.ranks is not None:
            tally = self.ranks.merged(tally)
            if self.sharding is None:
                self.ranks.check_equal(self.parameters.values(), self.step)
        return metrics | tally.metrics() | {"update_seconds": time.perf_counter() - began}

    def parts(self, samples: Sequence[Sample]) -> Iterator[tuple[list[int], Packed]]:
        """Samples in parts of at most `microbatch_tokens` tokens that go forward: which they are, and packed."""
        for part in self._split(samples):
            yield part, self._packed([samples[i] for i in part])

    def _split(self, samples: Sequence[Sample]) -> list[list[int]]:
        return self.forward.split(samples, self.config)

    def _packed(self, samples: Sequence[Sample]) -> Packed:
        rows = self.forward.kind == "rows"
        return Packed.of(samples, self.device, shared=self.config.prefix_sharing, rows=rows)

    def logprobs(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [S] of each sampled token under the policy as it is, in nats."""
        return self._logprobs_under(self.model, packed)

    def _logprobs_under(self, model: PeftModel | PreTrainedModel, packed: Packed) -> tuple[Tensor, Tensor]:
        checkpointing = self.config.activation_checkpointing
        run = partial(logprobs_of, model, packed.batch, self.temperature, activation_checkpointing=checkpointing)
        return run() if self.sharding is None else self.sharding.run(model, run)

    def descend(self, *, check_moved: bool = True) -> float:
        """Clip the gradient, take the optimiser's step at this step's rate, and forget the gradient.

        Returns the gradient's norm before clipping. Raises CanaryError where it is not finite, which leaves the policy
        as it was, or where nothing moved.
        """
        if self.ranks is not None and self.sharding is None:
            self.ranks.sum_gradients(self.parameters.values())
        total = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_grad_norm)
        norm = float(total if self.sharding is None else self.sharding.whole(total))
        canaries.check_finite("gradient's norm", norm)
        rate = learning_rate(self.config, self.step)
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = rate, self.config.weight_decay
        before = self._sums() if check_moved else None
        self._moved = True
        self.optimizer.step()
        self.optimizer.zero_grad()  # nothing of one minibatch reaches the next
        if before is not None:
            moved = not torch.equal(before, self._sums())
            canaries.check_moved(moved if self.ranks is None else bool(self.ranks.most(int(moved))), rate, norm)
        return norm

    def _sums(self) -> Tensor:
        """A sum of each parameter, exact enough to change with any of its values."""
        kept = [parameter.detach() for parameter in self.parameters.values()]
        own = kept if self.sharding is None else map(self.sharding.local, kept)
        return torch.stack([parameter.sum(dtype=torch.float64) for parameter in own])

    def _choose_forward(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Which way the model is computed, where that is not the prefix tree alone; measured in the first step."""
        metrics = {}
        if not self.forward.decided and self.sharding is None:
            choice = measure(self, samples)
            metrics = {f"{name}_seconds": seconds for name, seconds in choice.seconds.items()}
            if self.ranks is not None:  # all take the same one
                kind = "rows" if self.ranks.most(int(choice.name == "rows")) else "tree"
                self.forward.take(kind, self.model, self.reference)
        return (
            metrics
            if self.forward.kinds == ("tree",)
            else {"forward_rows": float(self.forward.kind == "rows"), **metrics}
        )

    def _check_unchanged(self) -> None:
        for name in ("method", "lora", "optimizer"):
            if getattr(self.config, name) != getattr(self._made_with, name):
                raise ConfigError(f"train.{name} cannot change while a model is being trained: start a new run for it.")

    def _minibatches(self, samples: list[Sample]) -> Iterator[list[Sample]]:
        """Groups in random order, cut into equal shares of samples; members of a group mostly stay together."""
        random = np.random.default_rng([self.seed, self.step])
        for _ in range(self.config.epochs):
            rank = random.permutation(max(sample.group for sample in samples) + 1)
            ordered = sorted(samples, key=lambda sample: int(rank[sample.group]))
            for share in np.array_split(np.arange(len(ordered)), min(self.config.minibatches, len(ordered))):
                yield [ordered[i] for i in share]

    def _update_once(self, samples: list[Sample], tally: Tally, *, first: bool, check_sampler: bool) -> None:
        goal = objective(self.config)
        totals = Totals.of((len(sample.targets) for sample in samples), self.config.sequence_norm)
        loss, scale = 0.0, self.scale(sum(len(sample.targets) for sample in samples))
        own = self._own(samples)
        for chosen, packed in self._in_step(samples, own, with_reference=bool(self.config.kl)):
            part = self._loss([own[i] for i in chosen], packed, goal, totals, tally, first=first)
            loss += (value := float(part.detach()))
            if self.ranks is None:
                canaries.check_finite("loss", value)
            (part * scale if scale != 1 else part).backward()  # type: ignore[no-untyped-call]
        if self.ranks is not None:
            canaries.check_finite("loss", self.ranks.total(loss))
            if self.config.kl or self.config.cap:
                self.ranks.exchange(samples, own)
        if first and check_sampler:
            # A copy of every weight is learned in float32 and sampled in the precision of the base.
            rounded = rounds(self.model) or (self.reference is not None and rounds(self.reference))
            check_agreement(tally if self.ranks is None else self.ranks.merged(tally), rounded=rounded)
        tally.add(loss=loss)
        self.unscale(scale)
        norm = self.descend(check_moved=first)
        if self.ranks is None or self.ranks.leads:
            tally.add(grad_norm=norm, updates=1)

    def scale(self, tokens: int) -> float:
        """By how much a loss is multiplied before its gradient is taken, and the gradient divided (Micikevicius et al.,
        Mixed Precision Training, 2018): the gradient of one of many tokens is too small for float16. A power of two."""
        model = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        return 2.0 ** min(15, tokens.bit_length() - 1) if model.dtype == torch.float16 else 1.0

    def unscale(self, scale: float) -> None:
        """Divide the gradient by what the loss was multiplied by."""
        for parameter in self.parameters.values() if scale != 1 else ():
            if parameter.grad is not None:
                parameter.grad.div_(scale)

    def _own(self, samples: list[Sample]) -> list[Sample]:
        """What this process computes of them."""
        if self.ranks is None:
            return samples
        return self.ranks.share(samples, shared=self.config.prefix_sharing and self.forward.kind == "tree")

    def _in_step(
        self, samples: Sequence[Sample], own: Sequence[Sample], *, with_reference: bool = False
    ) -> Iterator[tuple[list[int], Packed]]:
        """The parts of our share. Where a forward pass needs all processes, those with fewer parts then take part in
        the others' with a sample that adds nothing."""
        if self.sharding is None or self.ranks is None:
            yield from self.parts(own)
            return
        reference = with_reference and samples[0].reference is None
        missing = self.ranks.most(count := len(self._split(own))) - count
        yield from self.parts(own)
        for _ in range(missing):
            self.sharding.idle(self, min(samples, key=lambda sample: len(sample.tokens)), reference=reference)

    def _loss(
        self, samples: list[Sample], packed: Packed, goal: Objective, totals: Totals, tally: Tally, *, first: bool
    ) -> Tensor:
        """What a part of a minibatch adds to its loss."""
        config = self.config
        logprobs, entropy = self.logprobs(packed)
        if first and samples[0].old is None:
            packed = self._meet(samples, packed, logprobs, tally)
        losses, clipped = goal.function(packed.tokens(logprobs), goal.clip_low, goal.clip_high)
        losses = losses * packed.weights
        if config.entropy:
            losses = losses - config.entropy * entropy
        if config.kl:
            kl = kl_to_reference(logprobs, self._reference_logprobs(samples, packed))
            losses = losses + config.kl * kl
            tally.add(kl=float(kl.detach().sum()))
        tally.add(
            tokens=len(logprobs),
            entropy=float(entropy.detach().sum()),
            clipped=float(clipped.sum()),
            flat=packed.flat_tokens,
            unshared=packed.unshared_tokens,
        )
        return goal.aggregate(losses, packed.lengths, totals)

    def _reference_logprobs(self, samples: Sequence[Sample], packed: Packed) -> Tensor:
        """The base's log-probabilities [S]; they are computed in the first epoch and remembered."""
        known = [sample.reference for sample in samples if sample.reference is not None]
        if len(known) == len(samples):
            return torch.from_numpy(np.concatenate(known)).to(self.device)
        with torch.no_grad(), self._as_reference() as model:
            logprobs, _ = self._logprobs_under(model, packed)
        for sample, own in zip(samples, per_sample(samples, logprobs), strict=True):
            sample.reference = own
        return logprobs

    @contextmanager
    def _as_reference(self) -> Iterator[PeftModel | PreTrainedModel]:
        """The model that the KL is taken to, for this block."""
        if self.reference is not None:
            yield self.reference
        else:
            assert isinstance(self.model, PeftModel)
            with self.model.disable_adapter():
                yield self.model

    def _correct_all(self, samples: list[Sample], tally: Tally) -> None:
        """Correct the samples of all minibatches while the learner is what it was when the step began."""
        with torch.no_grad():
            own = self._own(samples)
            for chosen, packed in self._in_step(samples, own):
                self._meet([own[i] for i in chosen], packed, self.logprobs(packed)[0], tally)
        if self.ranks is not None:
            self.ranks.exchange(samples, own)

    def _meet(self, samples: list[Sample], packed: Packed, logprobs: Tensor, tally: Tally) -> Packed:
        """Compare a part with its sampler before anything was learned, and correct it where that is wanted."""
        config = self.config
        compare(samples, packed, logprobs, tally, self.step if config.max_staleness else None)
        return correct(samples, packed, logprobs, config.cap, tally) if config.cap else packed
