"""One training step: scored groups in, a moved policy and its metrics out.

Every prompt token that sequences share is computed once (`tree`), in parts that fit a token budget; each minibatch is
one optimiser update, normalised by its own sampled tokens or sequences. Randomness follows from the seed and the step
alone, so a resumed run needs no random state to go on bit for bit.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.config import TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.learning import canaries
from mcp_rl.learning.adapter import merged_weights, trainable_parameters
from mcp_rl.learning.logprobs import sampled_logprobs
from mcp_rl.learning.losses import Objective, Totals, kl_to_reference, objective, truncated_weights
from mcp_rl.learning.optimizer import make_optimizer
from mcp_rl.learning.packed import Packed
from mcp_rl.learning.samples import Sample, take_in
from mcp_rl.learning.schedule import learning_rate
from mcp_rl.learning.tally import Tally
from mcp_rl.learning.tree import split_by_tokens
from mcp_rl.trajectory import TrajectoryGroup

NOTICEABLE = 0.01
"""An importance weight further from 1 than this counts as a correction; less is rounding."""
FAR_OFF = 0.5
"""Difference of mean ratio and log-probability that stops a step in which every token is from an older version."""


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
    ) -> None:
        """`temperature` is the sampler's: log-probabilities are compared under the distribution that was drawn from.

        `reference` is what the KL is taken to; an adapter's own base needs none. Raises ConfigError where a KL is
        wanted and there is nothing to take it to.
        """
        if config.kl and reference is None and not isinstance(model, PeftModel):
            raise ConfigError("train.kl needs the base model as a reference, and this learner was given none.")
        self.model, self.config, self.temperature, self.seed = model, config, temperature, seed
        self.reference = reference
        self.step = 0
        self._made_with = config
        self.parameters = trainable_parameters(model)
        self.optimizer = make_optimizer(config, self.parameters.values())
        self.device = next(iter(self.parameters.values())).device
        self.batch: list[Sample] = []
        """What the last update learned from."""

    def update(self, groups: Iterable[TrajectoryGroup], *, check_sampler: bool = True) -> dict[str, float]:
        """Learn from the groups whose rewards differ and count one step; returns the metrics of the step.

        Without any such group the policy stays and the step counts all the same. Raises CanaryError, with the policy
        unchanged, where sampler and learner disagree (unless `check_sampler` is off) or the first loss is not finite;
        ConfigError where the configuration has changed in what the learner was made with.
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
        self.batch = intake.samples
        if intake.samples:
            metrics |= self._staleness(intake.samples)
            try:
                if config.cap and config.minibatches > 1:
                    self._correct_all(intake.samples, tally)
                for index, minibatch in enumerate(self._minibatches(intake.samples)):
                    self._update_once(minibatch, tally, first=index == 0, check_sampler=check_sampler)
            finally:
                self.optimizer.zero_grad()
            metrics |= tally.agreement()
        self.step += 1
        return metrics | {
            "loss": tally.mean("loss", "updates"),
            "entropy": tally.mean("entropy"),
            "kl": tally.mean("kl"),
            "clip_share": tally.mean("clipped"),
            "corrected_share": tally.mean("corrected", "compared"),
            "capped_share": tally.mean("capped", "compared"),
            "grad_norm": tally.mean("grad_norm", "updates"),
            "trained_tokens": tally.sums.get("tokens", 0.0),
            "forward_tokens": tally.sums.get("flat", 0.0),
            "unshared_tokens": tally.sums.get("unshared", 0.0),
            "saved_share": 1.0 - tally.mean("flat", "unshared") if tally.sums else 0.0,
            "update_seconds": time.perf_counter() - began,
        }

    def parts(self, samples: Sequence[Sample]) -> Iterator[tuple[list[int], Packed]]:
        """Samples in parts of at most `microbatch_tokens` tree tokens: which they are, and packed."""
        shared, budget = self.config.prefix_sharing, self.config.microbatch_tokens
        for part in split_by_tokens([sample.tokens for sample in samples], budget, shared=shared):
            yield part, Packed.of([samples[i] for i in part], self.device, shared=shared)

    def logprobs(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [S] of each sampled token under the policy as it is, in nats."""
        return self._logprobs_under(self.model, packed)

    def _logprobs_under(self, model: PeftModel | PreTrainedModel, packed: Packed) -> tuple[Tensor, Tensor]:
        checkpointing = self.config.activation_checkpointing
        return sampled_logprobs(model, packed.batch, self.temperature, activation_checkpointing=checkpointing)

    def sampled_weights(self) -> dict[str, Tensor]:
        """What a sampler of the base needs to sample the policy, by the names and in the precision of the base."""
        weights = merged_weights(self.model)
        if self.reference is None:
            return weights
        kinds = {name: parameter.dtype for name, parameter in self.reference.named_parameters()}
        return {name: weight.to(kinds[name]) for name, weight in weights.items()}

    def descend(self, *, check_moved: bool = True) -> float:
        """Clip the gradient, take the optimiser's step at this step's rate, and forget the gradient.

        Returns the gradient's norm before clipping. Raises CanaryError where it is not finite, which leaves the policy
        as it was, or where nothing moved.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_grad_norm))
        canaries.check_finite("gradient's norm", norm)
        rate = learning_rate(self.config, self.step)
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = rate, self.config.weight_decay
        before = self._sums() if check_moved else None
        self.optimizer.step()
        self.optimizer.zero_grad()  # nothing of one minibatch reaches the next
        if before is not None:
            canaries.check_moved(not torch.equal(before, self._sums()), rate, norm)
        return norm

    def _sums(self) -> Tensor:
        """A sum of each parameter, exact enough to change with any of its values."""
        return torch.stack([parameter.detach().sum(dtype=torch.float64) for parameter in self.parameters.values()])

    def _check_unchanged(self) -> None:
        for name in ("method", "lora", "optimizer"):
            if getattr(self.config, name) != getattr(self._made_with, name):
                raise ConfigError(f"train.{name} cannot change while a model is being trained: start a new run for it.")

    def _staleness(self, samples: Sequence[Sample]) -> dict[str, float]:
        """By how many steps the sampled tokens are older than the learner. Raises CanaryError where one is younger."""
        ages = [self.step - sample.versions for sample in samples if sample.versions is not None]
        age = np.concatenate(ages) if ages else np.zeros(1, np.int64)
        if self.config.max_staleness:
            canaries.check_version(self.step - min(0, int(age.min())), self.step)
        return {"staleness_mean": float(age.mean()), "staleness_max": float(age.max())}

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
        loss = 0.0
        for chosen, packed in self.parts(samples):
            part = self._loss([samples[i] for i in chosen], packed, goal, totals, tally, compare=first)
            loss += (value := float(part.detach()))
            canaries.check_finite("loss", value)
            part.backward()  # type: ignore[no-untyped-call]
        if first and check_sampler:
            _check_agreement(tally)
        tally.add(loss=loss, grad_norm=self.descend(check_moved=first), updates=1)

    def _loss(
        self, samples: list[Sample], packed: Packed, goal: Objective, totals: Totals, tally: Tally, *, compare: bool
    ) -> Tensor:
        """What a part of a minibatch adds to its loss."""
        config = self.config
        logprobs, entropy = self.logprobs(packed)
        if config.cap and any(sample.old is None for sample in samples):
            packed = self._corrected(samples, packed, logprobs, tally)
        elif compare and not config.cap:
            self._compare(samples, packed, logprobs, tally)
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
        for sample, own in zip(samples, _per_sample(samples, logprobs), strict=True):
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

    def _compare(self, samples: Sequence[Sample], packed: Packed, logprobs: Tensor, tally: Tally) -> None:
        """Note how sampler and learner differ before anything was learned."""
        own = [
            np.ones(len(sample.targets), bool) if sample.versions is None else sample.versions == self.step
            for sample in samples
        ]
        current = torch.from_numpy(np.concatenate(own))
        tally.compare(logprobs, packed.sampler, current if self.config.max_staleness else torch.ones_like(current))

    def _correct_all(self, samples: list[Sample], tally: Tally) -> None:
        """Correct the samples of all minibatches while the learner is what it was when the step began."""
        with torch.no_grad():
            for chosen, packed in self.parts(samples):
                self._corrected([samples[i] for i in chosen], packed, self.logprobs(packed)[0], tally)

    def _corrected(self, samples: Sequence[Sample], packed: Packed, logprobs: Tensor, tally: Tally) -> Packed:
        """The part measured against the learner as it is now, its tokens weighted; the samples remember it."""
        self._compare(samples, packed, logprobs, tally)
        old = logprobs.detach()
        weights = truncated_weights(old, packed.sampler, self.config.cap)
        columns = zip(samples, _per_sample(samples, old), _per_sample(samples, weights), strict=True)
        for sample, own, weight in columns:
            sample.old, sample.weights = own, weight
        tally.add(
            compared=len(old),
            corrected=float(((weights - 1).abs() > NOTICEABLE).sum()),
            capped=float((weights == self.config.cap).sum()),
        )
        return replace(packed, old=old, weights=weights)


def _per_sample(samples: Sequence[Sample], values: Tensor) -> list[npt.NDArray[np.float32]]:
    """Values [S] cut into those of each sample."""
    return np.split(values.cpu().numpy(), np.cumsum([len(sample.targets) for sample in samples])[:-1])


def _check_agreement(tally: Tally) -> None:
    """Strictly over the tokens of the learner's own version. Where there are none, older ones must not be far off."""
    own = tally.current_agreement()
    if own is not None:
        canaries.check_agreement(own["ratio_mean"], own["logprob_difference_mean"])
        return
    older = tally.agreement()
    canaries.check_agreement(
        older["ratio_mean"],
        older["logprob_difference_mean"],
        ratio_tolerance=FAR_OFF,
        difference_tolerance=FAR_OFF,
    )
