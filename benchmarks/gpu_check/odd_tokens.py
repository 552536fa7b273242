"""A plugin for runs on random models: a reward that depends only on the sampled tokens."""

from collections.abc import Callable

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.verdict import RewardFunction, Verdict
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import Trajectory


def odd_tokens(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Score the share of the sampled ids that are odd."""
    sampled = [
        token
        for segment in trajectory.segments
        for token, was_sampled in zip(segment.tokens, segment.sampled, strict=True)
        if was_sampled
    ]
    share = sum(token % 2 for token in sampled) / max(1, len(sampled))
    return Verdict(share, f"{share:.2f} of the sampled ids are odd.")


@hookimpl
def register_rewards(register: Callable[[str, RewardFunction], None]) -> None:
    register("odd_tokens", odd_tokens)
