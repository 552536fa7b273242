"""What is counted during an update, and the metrics that come of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mcp_rl.learning.canaries import Spread


@dataclass
class Tally:
    """Sums over the sampled tokens of an update, and how the sampler differed before its first optimiser step."""

    sums: dict[str, float] = field(default_factory=dict)
    differences: list[Tensor] = field(default_factory=list)
    """[S] each: the learner's log-probability less the sampler's."""
    current: list[Tensor] = field(default_factory=list)
    """[S] each: whether the token was sampled by the learner's own version."""

    @staticmethod
    def of_all(parts: Iterable["Tally"]) -> "Tally":
        """What several counted, in their order."""
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
        """Named in docs/learning.md; those of sampler and learner only where something was compared."""
        return (self.agreement() if self.differences else {}) | {
            "loss": self.mean("loss", "updates"),
            "entropy": self.mean("entropy"),
            "kl": self.mean("kl"),
            "clip_share": self.mean("clipped"),
            "corrected_share": self.mean("corrected", "weighted"),
            "capped_share": self.mean("capped", "weighted"),
            "grad_norm": self.mean("grad_norm", "updates"),
            "trained_tokens": self.sums.get("tokens", 0.0),
            "forward_tokens": self.sums.get("flat", 0.0),
            "unshared_tokens": self.sums.get("unshared", 0.0),
            "saved_share": 1.0 - self.mean("flat", "unshared") if self.sums else 0.0,
        }

    def compare(self, logprobs: Tensor, sampler: Tensor, current: Tensor) -> None:
        """Note what sampler and learner gave the same tokens."""
        self.differences.append((logprobs.detach() - sampler).cpu())
        self.current.append(current.cpu())

    def agreement(self) -> dict[str, float]:
        """Over all tokens that were compared; the ratio is learner to sampler, not clamped."""
        return agreement(torch.cat(self.differences))

    def spreads(self) -> tuple[Spread, Spread, float] | None:
        """Of the tokens that the learner's own version sampled: ratio, difference, and its mean magnitude."""
        own = torch.cat(self.differences)[torch.cat(self.current)].double()
        return (_spread(own.exp()), _spread(own), float(own.abs().mean())) if len(own) else None

    def current_agreement(self) -> dict[str, float] | None:
        """Over the tokens that the learner's own version sampled; None where there are none."""
        own = torch.cat(self.differences)[torch.cat(self.current)]
        return agreement(own) if len(own) else None


def _spread(values: Tensor) -> Spread:
    return Spread(float(values.mean()), float(values.std(correction=0)) / len(values) ** 0.5)


def agreement(differences: Tensor) -> dict[str, float]:
    """Metrics of log-probability differences [S]; ess is Kish's effective sample size as a share of S."""
    difference = differences.double()
    ratio = difference.exp()
    return {
        "logprob_difference_mean": float(difference.abs().mean()),
        "logprob_difference_max": float(difference.abs().max()),
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "ess": float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum())),
    }
