"""Counts of an update, and the metrics computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcp_rl.learning.canaries import Spread

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Tally:
    """Sums over the sampled tokens of an update, and the sampler's differences before its first optimiser step."""

    sums: dict[str, float] = field(default_factory=dict)
    differences: list[Tensor] = field(default_factory=list)
    """[S] each: the learner's log-probability minus the sampler's."""
    current: list[Tensor] = field(default_factory=list)
    """[S] each: True if the learner's own version sampled the token."""

    @staticmethod
    def of_all(parts: Iterable[Tally]) -> Tally:
        """Merge several tallies, in their order."""
        whole = Tally()
        for part in parts:
            whole.add(**part.sums)
            whole.differences += part.differences
            whole.current += part.current
        return whole

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def mean(self, name: str, over: str = "tokens") -> float:
        return self.sums.get(name, 0.0) / max(1.0, self.sums.get(over, 0.0))

    def metrics(self) -> dict[str, float]:
        """Return the metrics that docs/learning.md names; those of sampler and learner only if they were compared."""
        compared = self.agreement() | {"overlap": self.mean("overlap", "sequences")} if self.differences else {}
        return compared | {
            "loss": self.mean("loss", "updates"),
            "entropy": self.mean("entropy"),
            "kl": self.mean("kl"),
            "clip_share": self.mean("clipped"),
            "corrected_share": self.mean("corrected", "weighted"),
            "capped_share": self.mean("capped", "weighted"),
            "masked_share": self.mean("left_out", "weighted"),
            "sequences_masked_share": self.mean("sequences_masked", "sequences_met"),
            "grad_norm": self.mean("grad_norm", "updates"),
            "overflows": self.sums.get("overflows", 0.0),
            "trained_tokens": self.sums.get("tokens", 0.0),
            "forward_tokens": self.sums.get("flat", 0.0),
            "unshared_tokens": self.sums.get("unshared", 0.0),
            "saved_share": 1.0 - self.mean("flat", "unshared") if self.sums else 0.0,
        }

    def compare(self, logprobs: Tensor, sampler: Tensor, current: Tensor) -> None:
        """Record the log-probabilities [S] that learner and sampler gave the same tokens."""
        self.differences.append((logprobs.detach() - sampler).cpu())
        self.current.append(current.cpu())

    def agreement(self) -> dict[str, float]:
        """Return metrics over all compared tokens; the ratio is learner to sampler, not clamped."""
        return agreement(torch.cat(self.differences))

    def spreads(self) -> tuple[Spread, Spread, float] | None:
        """Return ratio, difference and mean absolute difference of the own version's tokens; None without any."""
        own = self._own_differences().double()
        return (_spread(own.exp()), _spread(own), float(own.abs().mean())) if len(own) else None

    def current_agreement(self) -> dict[str, float] | None:
        """Return metrics over the tokens that the learner's own version sampled; None without any."""
        own = self._own_differences()
        return agreement(own) if len(own) else None

    def _own_differences(self) -> Tensor:
        return torch.cat(self.differences)[torch.cat(self.current)]


def _spread(values: Tensor) -> Spread:
    return Spread(float(values.mean()), float(values.std(correction=0)) / len(values) ** 0.5)


def agreement(differences: Tensor) -> dict[str, float]:
    """Return metrics of log-probability differences [S]; ess is Kish's effective sample size as a share of S."""
    difference = differences.double()
    ratio = difference.exp()
    return {
        "logprob_difference_mean": float(difference.abs().mean()),
        "logprob_difference_max": float(difference.abs().max()),
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "ess": float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum())),
    }
