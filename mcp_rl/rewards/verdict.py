"""Verdicts: the results of verifiers and reward functions."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import CallRecord, Trajectory


@dataclass(frozen=True)
class Verdict:
    """A score from 0 to 1 with its explanation."""

    score: float
    explanation: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers worth averaging, kept on the trajectory."""

    succeeded: bool | None = None
    """True if the task counts as solved; None: a score of 1 does."""

    @property
    def success(self) -> bool:
        return self.score >= 1.0 if self.succeeded is None else self.succeeded


Judgement = Verdict | float | bool
"""The return type of a verifier: a number stands for a verdict without words."""
VerifierFunction = Callable[[Trajectory, McpScenario], Judgement | Awaitable[Judgement]]
"""Checks a finished trajectory against `scenario.verifier`. A user's function is registered through the plugin hook; it
may be asynchronous."""
RewardFunction = VerifierFunction
"""Scores any finished trajectory, whatever its scenario's verifier is."""


def passed(explanation: str) -> Verdict:
    return Verdict(1.0, explanation)


def failed(explanation: str) -> Verdict:
    return Verdict(0.0, explanation)


def successful_calls(trajectory: Trajectory) -> list[CallRecord]:
    """Return the calls that reached the server and did not come back as an error."""
    return [call for call in trajectory.calls if call.sent and not call.is_error and call.tool is not None]


def submitted(trajectory: Trajectory, scenario: McpScenario) -> str | None:
    """Return the model's submission: the argument of the submitting call if the verifier asks for one, else the final
    message."""
    if scenario.verifier is not None and scenario.verifier.submit_tool is not None:
        return trajectory.submission
    return trajectory.final_answer


def nothing_submitted(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Return the verdict on a trajectory without an answer."""
    tool = scenario.verifier.submit_tool if scenario.verifier else None
    if tool is not None and trajectory.final_answer is not None:
        return failed(f"The answer was not handed in with {tool}.")
    return failed(f"No answer was submitted (the rollout ended by {re.sub('_', ' ', trajectory.stop_reason)}).")
