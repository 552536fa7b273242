"""A reward for calls that work: partial credit while a policy still has to learn how tools are called."""

from mcp_rl.rewards.verdict import Verdict
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import Trajectory


def clean_calls(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """The share of the calls that were no error; 1 where none was made, since none may be right."""
    calls = trajectory.calls
    share = sum(not call.is_error for call in calls) / len(calls) if calls else 1.0
    return Verdict(share, f"{sum(call.is_error for call in calls)} of {len(calls)} calls were errors.")
