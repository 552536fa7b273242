"""One training step: scored groups in, a moved adapter and its metrics out.

Every prompt token that sequences share is computed once (`tree`), in parts that fit a token budget; each minibatch is
one optimiser update, normalised by its own sampled tokens. Randomness follows from the seed and the step alone, so a
resumed run needs no random state to go on bit for bit.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor

from mcp_rl.config import TrainConfig
from mcp_rl.learning.adapter import trainable_parameters
from mcp_rl.learning.canaries import check_agreement, check_finite, check_moved
from mcp_rl.learning.logprobs import TreeBatch, sampled_logprobs
from mcp_rl.learning.loss import LOSSES, kl_to_reference
from mcp_rl.learning.samples import Sample, take_in
from mcp_rl.learning.tree import build_tree, split_by_tokens
from mcp_rl.trajectory import TrajectoryGroup


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of the update that leads from `step` to `step + 1`: rises over the warm-up, and falls as 1 / (1 + step /
    decay_steps), which needs no last step to be known (Robbins and Monro, 1951)."""
    rise = min(1.0, (step + 1) / (config.warmup_steps + 1))
    fall = 1.0 / (1.0 + step / config.decay_steps) if config.decay_steps else 1.0
    return config.learning_rate * min(rise, fall)


@dataclass(frozen=True)
class Packed:
    """Samples as one tree. Per-token tensors are [S], in the order of the samples."""

    batch: TreeBatch
    sampler: Tensor
    old: Tensor
    advantages: Tensor
    weights: Tensor
    flat_tokens: int
    """Tokens of the tree."""
    unshared_tokens: int

    @staticmethod
    def of(samples: Sequence[Sample], device: torch.device) -> "Packed":
        tree = build_tree([sample.tokens for sample in samples])
        predictors = np.concatenate([tree.sequence(i)[sample.at] for i, sample in enumerate(samples)])
        lengths = [len(sample.targets) for sample in samples]
        columns = [
            np.concatenate([sample.logprobs for sample in samples]),
            np.concatenate([sample.logprobs if sample.old is None else sample.old for sample in samples]),
            np.repeat(np.asarray([sample.advantage for sample in samples], np.float32), lengths),
            np.concatenate([sample.weights for sample in samples]),
        ]
        targets = np.concatenate([sample.targets for sample in samples])
        batch = TreeBatch.of(tree, torch.from_numpy(predictors), torch.from_numpy(targets)).to(device)
        sampler, old, gains, weights = (torch.from_numpy(column).to(device) for column in columns)
        return Packed(batch, sampler, old, gains, weights, len(tree.tokens), tree.unshared_tokens)


@dataclass
class _Tally:
    """Sums over the sampled tokens of an update, and the sampler's mismatch before its first optimiser step."""

    sums: dict[str, float] = field(default_factory=dict)
    differences: list[Tensor] = field(default_factory=list)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def mean(self, name: str, over: str = "tokens") -> float:
        return self.sums.get(name, 0.0) / max(1.0, self.sums.get(over, 0.0))

    def agreement(self) -> dict[str, float]:
        difference = torch.cat(self.differences).double()
        ratio = difference.exp()
        return {
            "logprob_difference_mean": float(difference.abs().mean()),
            "logprob_difference_max": float(difference.abs().max()),
            "ratio_mean": float(ratio.mean()),
            "ess": float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum())),
        }


class Learner:
    """An adapter, its optimiser and the step they are at."""

    def __init__(self, model: PeftModel, config: TrainConfig, *, seed: int = 0, temperature: float = 1.0) -> None:
        """`temperature` is the sampler's: log-probabilities are compared under the distribution that was drawn from."""
        self.model, self.config, self.temperature, self.seed = model, config, temperature, seed
        self.step = 0
        self.parameters = trainable_parameters(model)
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.device = next(iter(self.parameters.values())).device

    def update(self, groups: Iterable[TrajectoryGroup], *, check_sampler: bool = True) -> dict[str, float]:
        """Learn from the groups whose rewards differ and count one step; returns the metrics of the step.

        Without any such group the adapter stays and the step counts all the same. Raises CanaryError, with the adapter
        unchanged, where sampler and learner disagree (unless `check_sampler` is off) or the first loss is not finite.
        """
        began = time.perf_counter()
        config = self.config
        intake = take_in(groups, scale_by_std=config.scale_by_std, leave_one_out=config.leave_one_out)
        metrics = {
            "groups": float(intake.groups),
            "groups_dropped": float(intake.groups_without_variance),
            "trajectories_trained": float(intake.trained),
            "trajectories_masked": float(intake.masked),
            "learning_rate": learning_rate(config, self.step),
        }
        tally = _Tally()
        if intake.samples:
            samples = self._corrected(intake.samples) if config.cap else intake.samples
            try:
                for index, minibatch in enumerate(self._minibatches(samples)):
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
            "grad_norm": tally.mean("grad_norm", "updates"),
            "trained_tokens": tally.sums.get("tokens", 0.0),
            "forward_tokens": tally.sums.get("flat", 0.0),
            "unshared_tokens": tally.sums.get("unshared", 0.0),
            "saved_share": 1.0 - tally.mean("flat", "unshared") if tally.sums else 0.0,
            "update_seconds": time.perf_counter() - began,
        }

    def _minibatches(self, samples: list[Sample]) -> Iterator[list[Sample]]:
        """Groups in random order, cut into equal shares of samples; members of a group mostly stay together."""
        random = np.random.default_rng([self.seed, self.step])
        for _ in range(self.config.epochs):
            rank = random.permutation(max(sample.group for sample in samples) + 1)
            ordered = sorted(samples, key=lambda sample: int(rank[sample.group]))
            for share in np.array_split(np.arange(len(ordered)), min(self.config.minibatches, len(ordered))):
                yield [ordered[i] for i in share]

    def _parts(self, samples: Sequence[Sample]) -> Iterator[tuple[list[int], Packed]]:
        for part in split_by_tokens([sample.tokens for sample in samples], self.config.microbatch_tokens):
            yield part, Packed.of([samples[i] for i in part], self.device)

    def _update_once(self, samples: list[Sample], tally: _Tally, *, first: bool, check_sampler: bool) -> None:
        total = sum(len(sample.targets) for sample in samples)
        loss = 0.0
        for _, packed in self._parts(samples):
            part = self._loss(packed, tally, keep_differences=first) / total
            loss += (value := float(part.detach()))
            check_finite("loss", value)
            part.backward()  # type: ignore[no-untyped-call]
        if first and check_sampler:
            agreement = tally.agreement()
            check_agreement(agreement["ratio_mean"], agreement["logprob_difference_mean"])
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_grad_norm)
        check_finite("gradient's norm", float(norm))
        rate = learning_rate(self.config, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        before = [parameter.detach().clone() for parameter in self.parameters.values()] if first else []
        self.optimizer.step()
        self.optimizer.zero_grad()  # nothing of one minibatch reaches the next
        if first:
            moved = any(not torch.equal(a, b) for a, b in zip(before, self.parameters.values(), strict=True))
            check_moved(moved, rate, float(norm))
        tally.add(loss=loss, grad_norm=float(norm), updates=1)

    def _loss(self, packed: Packed, tally: _Tally, *, keep_differences: bool) -> Tensor:
        """The summed loss of a part."""
        config = self.config
        logprobs, entropy = sampled_logprobs(self.model, packed.batch, self.temperature)
        losses, clipped = LOSSES[config.loss](
            logprobs, packed.old, packed.advantages, config.clip_low or 0.2, config.clip_high or 0.28
        )
        total = (losses * packed.weights).sum()
        if config.entropy:
            total = total - config.entropy * entropy.sum()
        if config.kl:
            with torch.no_grad(), self.model.disable_adapter():
                reference, _ = sampled_logprobs(self.model, packed.batch, self.temperature)
            kl = kl_to_reference(logprobs, reference)
            total = total + config.kl * kl.sum()
            tally.add(kl=float(kl.detach().sum()))
        if keep_differences:
            tally.differences.append((logprobs.detach() - packed.sampler).cpu())
        tally.add(
            tokens=len(logprobs),
            entropy=float(entropy.detach().sum()),
            clipped=float(clipped.sum()),
            flat=packed.flat_tokens,
            unshared=packed.unshared_tokens,
        )
        return total

    def _corrected(self, samples: list[Sample]) -> list[Sample]:
        """Samples measured against the learner as it is now, weighted by min(learner / sampler, cap).

        Truncated importance sampling: Yao et al., Your efficient RL framework secretly brings you off-policy RL
        training, 2025.
        """
        corrected = list(samples)
        with torch.no_grad():
            for part, packed in self._parts(samples):
                logprobs, _ = sampled_logprobs(self.model, packed.batch, self.temperature)
                weights = (logprobs - packed.sampler).exp().clamp(max=self.config.cap)
                ends = np.cumsum([len(samples[i].targets) for i in part])[:-1]
                for i, own, weight in zip(
                    part, np.split(logprobs.cpu().numpy(), ends), np.split(weights.cpu().numpy(), ends), strict=True
                ):
                    corrected[i] = replace(samples[i], old=own, weights=weight)
        return corrected
