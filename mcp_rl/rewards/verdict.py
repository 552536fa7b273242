"""What a verifier says about one trajectory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import CallRecord, Trajectory


@dataclass(frozen=True)
class Verdict:
    """A score from 0 to 1 and why."""

    score: float
    explanation: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Anything worth averaging; kept on the trajectory as it is."""

    @property
    def success(self) -> bool:
        return self.score >= 1.0


VerifierFunction = Callable[[Trajectory, McpScenario], Verdict]
"""Checks a finished trajectory against `scenario.verifier`. A user's function is registered through the plugin hook."""


def passed(explanation: str) -> Verdict:
    return Verdict(1.0, explanation)


def failed(explanation: str) -> Verdict:
    return Verdict(0.0, explanation)


def successful_calls(trajectory: Trajectory) -> list[CallRecord]:
    """Calls that reached the server and did not come back as an error."""
    return [call for call in trajectory.calls if call.sent and not call.is_error and call.tool is not None]
