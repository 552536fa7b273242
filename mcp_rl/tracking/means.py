"""Running means over rollouts as they finish."""

from dataclasses import dataclass, field

from mcp_rl.trajectory import Trajectory, TrajectoryGroup


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class RunningMeans:
    """Reward, success, completion tokens and turns over the rollouts that count, and the share that faulted.

    Rollouts that the world ended (StopReason.FAULT, TIMEOUT) count in the exception rate alone. A rollout is scored
    later than it finishes, together with its group, and enters the means of reward and success only then.
    """

    reward: _Mean = field(default_factory=_Mean)
    success: _Mean = field(default_factory=_Mean)
    tokens: _Mean = field(default_factory=_Mean)
    turns: _Mean = field(default_factory=_Mean)
    exceptions: _Mean = field(default_factory=_Mean)

    def finished(self, trajectory: Trajectory) -> None:
        self.exceptions.add(float(not trajectory.stop_reason.trainable))
        if trajectory.stop_reason.trainable:
            self.tokens.add(trajectory.sampled_tokens)
            self.turns.add(trajectory.turns)

    def scored(self, group: TrajectoryGroup) -> None:
        for trajectory in group:
            if trajectory.stop_reason.trainable:
                self.reward.add(trajectory.reward)
                self.success.add(None if trajectory.success is None else float(trajectory.success))

    def metrics(self) -> dict[str, float]:
        """Those that are known by now: reward, success, tokens, turns, exceptions."""
        means = {
            "reward": self.reward,
            "success": self.success,
            "tokens": self.tokens,
            "turns": self.turns,
            "exceptions": self.exceptions,
        }
        return {name: mean.value for name, mean in means.items() if mean.value is not None}

    def sentence(self) -> str:
        """`reward 0.62  success 0.55  tokens 41.0  turns 2.3  exceptions 0 %`"""
        known = self.metrics()
        parts = [f"{name} {known[name]:.2f}" for name in ("reward", "success") if name in known]
        parts += [f"{name} {known[name]:.1f}" for name in ("tokens", "turns") if name in known]
        return "  ".join([*parts, f"exceptions {100 * known.get('exceptions', 0.0):.0f} %"])
