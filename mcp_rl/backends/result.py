"""What a backend says about a training step."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrainResult:
    """A step that is done."""

    step: int
    """Training steps of the policy that is sampled from now on."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Named in docs/learning.md."""
