"""The reward that an agent program gives its own episode (docs/agents.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.rewards.verdict import Verdict

if TYPE_CHECKING:
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory

PROGRAM = "program"
"""Name of this part of a reward."""


def program(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Return the program's number; 0 where the episode ended before it gave one."""
    if (given := trajectory.metrics.get(PROGRAM)) is None:
        return Verdict(0.0, "The program gave no reward.")
    return Verdict(given, f"The program gives {given:g}.")
