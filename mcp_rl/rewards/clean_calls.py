"""A reward for calls that work: partial credit while a policy still learns to call tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.rewards.verdict import Verdict

if TYPE_CHECKING:
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory


def clean_calls(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Return the share of calls without an error; 1 without calls, since making none may be right."""
    calls = trajectory.calls
    share = sum(not call.is_error for call in calls) / len(calls) if calls else 1.0
    return Verdict(share, f"{sum(call.is_error for call in calls)} of {len(calls)} calls were errors.")
