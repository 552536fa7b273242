"""A training step by policy gradient: scored groups in, a changed policy and its metrics out.

Each minibatch is one optimiser update, normalised by its own sampled tokens or sequences.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor

from mcp_rl.learning import canaries
from mcp_rl.learning.losses import IMITATED, Objective, Totals, kl_to_reference, objective
from mcp_rl.learning.measure import decide_forward
from mcp_rl.learning.off_policy import check_agreement, check_overlap, compare, correct, per_sample, staleness
from mcp_rl.learning.samples import Sample, demonstrated, take_in
from mcp_rl.learning.schedule import learning_rate
from mcp_rl.learning.tally import Tally
from mcp_rl.learning.threads import update_threads
from mcp_rl.system.processes.memory import give_back_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from transformers import PreTrainedModel

    from mcp_rl.learning.forward.packed import Packed
    from mcp_rl.learning.learner import Learner
    from mcp_rl.learning.precision import Rounding
    from mcp_rl.trajectory import TrajectoryGroup

log = logging.getLogger(__name__)

_IMITATED_AT_ONCE = 16
"""Demonstrations in one update, as in `mcp-rl sft`."""


def update(
    learner: Learner, groups: Iterable[TrajectoryGroup], *, check_sampler: bool = True, other_policy: bool = False
) -> dict[str, float]:
    """Learn from the groups whose rewards differ and count one step; return the metrics of the step.

    Without such a group the policy stays and the step still counts. `other_policy` says that another policy than the
    learner's sampled the groups, as in a replay with other settings. Raises CanaryError, with the policy unchanged, if
    sampler and learner disagree (unless `check_sampler` is off; with `other_policy`, if they no longer overlap) or the
    first loss is not finite; ConfigError if a setting changed that the learner was made with. A disagreement that is
    little above the limits of rounding skips the update, and the second in a row raises. An error after the policy has
    moved leaves `learner.step` one further, so that these weights are not taken for those of the step before.

    Groups of demonstrations are imitated instead, each once, after the others.
    """
    groups = list(groups)
    shown = [group for group in groups if group.demonstrates]
    alone = learner.ranks is None and learner.config.max_staleness == 0  # else rollouts go on beside the update
    with update_threads() if alone and learner.device.type == "cpu" else nullcontext():
        try:
            if shown and len(shown) == len(groups):
                return _imitate(learner, groups)
            played = [group for group in groups if not group.demonstrates]
            return _reinforce(learner, played, shown, check_sampler=check_sampler, other_policy=other_policy)
        finally:
            if learner.device.type == "cpu":
                give_back_memory()


def _reinforce(
    learner: Learner,
    groups: Sequence[TrajectoryGroup],
    shown: Sequence[TrajectoryGroup],
    *,
    check_sampler: bool,
    other_policy: bool,
) -> dict[str, float]:
    """Learn from groups by policy gradient, imitate those that are `shown`, and count one step; return its metrics."""
    began = time.perf_counter()
    config = learner.config
    learner.check_unchanged()
    intake = take_in(
        groups,
        scale_by_std=config.scales_by_std,
        leave_one_out=config.leave_one_out,
        oldest=learner.step - config.max_staleness if config.max_staleness else None,
        mask_truncated=config.truncated == "mask",
    )
    metrics = {
        "groups": float(intake.groups),
        "groups_dropped": float(intake.groups_without_variance),
        "trajectories_trained": float(intake.trained),
        "trajectories_masked": float(intake.masked),
        "trajectories_stale": float(intake.stale),
        "trajectories_truncated": float(intake.truncated),
        "learning_rate": learning_rate(config, learner.step),
    }
    check = check_overlap if other_policy else check_agreement if check_sampler else None
    gradient = _PolicyGradient(learner, check)
    demonstrations = demonstrated(shown)
    with _one_step(learner, intake.samples or demonstrations):
        if intake.samples:
            metrics |= staleness(intake.samples, learner.step) | decide_forward(learner, intake.samples)
            try:
                if config.cap and config.minibatches > 1:
                    gradient.correct_all(intake.samples)
                for index, minibatch in enumerate(minibatches(learner, intake.samples)):
                    gradient.learn(minibatch, first=index == 0)
            except canaries.Doubt as doubt:
                learner.doubts += 1
                if learner.doubts > 1:
                    raise
                log.warning("%s Nothing is learned from this step; a second one in a row stops the run.", doubt)
                metrics["update_skipped"] = 1.0
            else:
                learner.doubts = 0
        if demonstrations:
            metrics |= _imitated(learner, demonstrations, decided=bool(intake.samples))
    return metrics | gradient.metrics() | {"update_seconds": time.perf_counter() - began}


def _imitate(learner: Learner, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Imitate demonstrations and count one step; return its metrics."""
    began = time.perf_counter()
    learner.check_unchanged()
    samples = demonstrated(groups)
    metrics = {
        "demonstrations": float(len(samples)),
        "trajectories_trained": float(len(samples)),
        "learning_rate": learning_rate(learner.config, learner.step),
    }
    gradient = _PolicyGradient(learner, None, IMITATED)
    with _one_step(learner, samples):
        metrics |= decide_forward(learner, samples)
        _imitate_parts(learner, gradient, samples)
    found = gradient.metrics()
    return metrics | found | {"imitation_loss": found["loss"], "update_seconds": time.perf_counter() - began}


def _imitated(learner: Learner, samples: list[Sample], *, decided: bool) -> dict[str, float]:
    """Imitate demonstrations at the end of a step of rewards; return their number and the mean loss."""
    metrics = {} if decided else decide_forward(learner, samples)
    gradient = _PolicyGradient(learner, None, IMITATED)
    _imitate_parts(learner, gradient, samples)
    return metrics | {"imitated": float(len(samples)), "imitation_loss": gradient.metrics()["loss"]}


def _imitate_parts(learner: Learner, gradient: _PolicyGradient, samples: list[Sample]) -> None:
    """Take an optimiser step on each part of the demonstrations, in random order."""
    order = np.random.default_rng([learner.seed, learner.step]).permutation(len(samples))
    for index, part in enumerate(np.array_split(order, math.ceil(len(samples) / _IMITATED_AT_ONCE))):
        gradient.learn([samples[i] for i in part], first=index == 0)


@contextmanager
def _one_step(learner: Learner, samples: list[Sample]) -> Iterator[None]:
    """Count a step at the end of the block. An error after the policy has moved counts it too."""
    learner.batch, learner.moved = samples, False
    try:
        yield
    except BaseException:
        learner.step += learner.moved
        raise
    finally:
        learner.optimizer.zero_grad()
        if learner.device.type == "cuda":
            torch.cuda.empty_cache()  # an engine in another process may share the GPU
    learner.step += 1


def minibatches(learner: Learner, samples: list[Sample]) -> Iterator[list[Sample]]:
    """Yield groups in random order, cut into equal shares of samples; a group's samples mostly stay together."""
    random = np.random.default_rng([learner.seed, learner.step])
    for _ in range(learner.config.epochs):
        rank = random.permutation(max(sample.group for sample in samples) + 1)
        ordered = sorted(samples, key=lambda sample: int(rank[sample.group]))
        for share in np.array_split(np.arange(len(ordered)), min(learner.config.minibatches, len(ordered))):
            yield [ordered[i] for i in share]


@dataclass
class _PolicyGradient:
    """The minibatches of one step, learned one after another, and the counts of the step."""

    learner: Learner
    check: Callable[[Tally, Rounding | None], None] | None
    """Called before the first update with the differences of sampler and learner, and their limits if one rounds."""
    goal: Objective | None = None
    """The objective to minimise; None: the policy loss that the settings choose."""
    tally: Tally = field(default_factory=Tally)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all processes, after the step. Raises CanaryError if their policies differ."""
        learner, tally = self.learner, self.tally
        if learner.ranks is not None:
            tally = learner.ranks.merged(tally)
            if learner.sharding is None:
                learner.ranks.check_equal(learner.parameters.values(), learner.step)
        return tally.metrics()

    def correct_all(self, samples: list[Sample]) -> None:
        """Correct the samples of all minibatches before the first of them changes the learner."""
        learner = self.learner
        with torch.no_grad():
            own = learner.own_share(samples)
            for chosen, packed in learner.parts_in_step(samples, own):
                self._meet_sampler([own[i] for i in chosen], packed, learner.logprobs(packed)[0])
        if learner.ranks is not None:
            learner.ranks.exchange(samples, own)

    def learn(self, samples: list[Sample], *, first: bool) -> None:
        """Take one optimiser step on a minibatch; before the `first`, compare sampler and learner."""
        learner, config, ranks = self.learner, self.learner.config, self.learner.ranks
        totals = Totals.of((len(sample.targets) for sample in samples), config.sequence_norm)
        loss, scale = 0.0, learner.scale(totals.tokens)
        own = learner.own_share(samples)
        for chosen, packed in learner.parts_in_step(samples, own, with_reference=bool(config.kl) and self.goal is None):
            part = self._loss([own[i] for i in chosen], packed, totals, first=first)
            loss += (value := float(part.detach()))
            if ranks is None and not learner.scales:
                canaries.check_finite("loss", value)
            (part * scale if scale != 1 else part).backward()  # type: ignore[no-untyped-call]
        total = loss if ranks is None else ranks.total(loss)
        if learner.scales and not math.isfinite(total):
            learner.overflowed(total)
            learner.optimizer.zero_grad()
            self.tally.differences.clear()  # they are not finite either
            self.tally.current.clear()
            self.tally.add(overflows=1)
            return
        if ranks is not None:
            canaries.check_finite("loss", total)
            if config.kl or config.cap:
                ranks.exchange(samples, own)
        if first and self.check is not None:
            self.check(self.tally if ranks is None else ranks.merged(self.tally), learner.rounding)
        learner.unscale(scale)
        norm = learner.descend(check_moved=first)
        if not math.isfinite(norm):
            self.tally.add(overflows=1)
            return
        self.tally.add(loss=loss)
        if ranks is None or ranks.leads:
            self.tally.add(grad_norm=norm, updates=1)

    def _loss(self, samples: list[Sample], packed: Packed, totals: Totals, *, first: bool) -> Tensor:
        """Return a part's share of the loss of its minibatch."""
        config, goal = self.learner.config, self.goal or objective(self.learner.config)
        logprobs, entropy = self.learner.logprobs(packed)
        if first and samples[0].old is None:
            packed = self._meet_sampler(samples, packed, logprobs)
        losses, clipped = goal.function(packed.tokens(logprobs), goal.clip_low, goal.clip_high)
        losses = losses * packed.weights
        if config.entropy and self.goal is None:
            losses = losses - config.entropy * entropy
        if config.kl and self.goal is None:
            kl = kl_to_reference(logprobs, self._reference_logprobs(samples, packed))
            losses = losses + config.kl * kl
            self.tally.add(kl=float(kl.detach().sum()))
        self.tally.add(
            tokens=len(logprobs),
            entropy=float(entropy.detach().sum()),
            clipped=float(clipped.sum()),
            flat=packed.flat_tokens,
            unshared=packed.unshared_tokens,
        )
        return goal.aggregate(losses, packed.lengths, totals)

    def _meet_sampler(self, samples: list[Sample], packed: Packed, logprobs: Tensor) -> Packed:
        """Compare a part with its sampler before anything was learned; return it corrected if the settings ask so."""
        config = self.learner.config
        compare(samples, packed, logprobs, self.tally, self.learner.step if config.max_staleness else None)
        return correct(samples, packed, logprobs, config, self.tally) if config.cap else packed

    def _reference_logprobs(self, samples: Sequence[Sample], packed: Packed) -> Tensor:
        """The reference's log-probabilities [S], computed in the first epoch and kept in the samples."""
        known = [sample.reference for sample in samples if sample.reference is not None]
        if len(known) == len(samples):
            return torch.from_numpy(np.concatenate(known)).to(self.learner.device)
        with torch.no_grad(), _reference(self.learner) as model:
            logprobs, _ = self.learner.logprobs_under(model, packed)
        for sample, own in zip(samples, per_sample(samples, logprobs), strict=True):
            sample.reference = own
        return logprobs


@contextmanager
def _reference(learner: Learner) -> Iterator[PeftModel | PreTrainedModel]:
    """The model that the KL is measured against: the learner's reference, or in this block its adapter's base."""
    if learner.reference is not None:
        yield learner.reference
    else:
        assert isinstance(learner.model, PeftModel)
        with learner.model.disable_adapter():
            yield learner.model
