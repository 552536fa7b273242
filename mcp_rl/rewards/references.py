"""Check verifiers against the reference solutions of their scenarios, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.errors import McpRlError
from mcp_rl.rewards.verifier import verify
from mcp_rl.trajectory import CallRecord, Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_rl.rewards.verdict import VerifierFunction
    from mcp_rl.scenario import McpScenario

_NEEDS_SERVER = ("state", "none")
"""Kinds that judge what a server did, which no recorded answer shows."""


async def refused_references(
    scenarios: Iterable[McpScenario], verifiers: Mapping[str, VerifierFunction]
) -> tuple[int, int]:
    """Count the scenarios whose verifier refuses their own reference solution, and those that could be checked.

    The reference calls count as made and the recorded answer as given. A scenario without either, or with a verifier
    that needs the server's state, cannot be checked.
    """
    refused = checked = 0
    for scenario in scenarios:
        verifier = scenario.verifier
        if verifier is None or verifier.kind in _NEEDS_SERVER or scenario.reference_answer is None:
            continue
        trajectory = _reference_trajectory(scenario, scenario.reference_answer)
        try:
            if (waiting := verify(trajectory, scenario, verifiers)) is not None:
                await waiting
        except McpRlError:  # a failing verifier is reported as a fault of its rollouts
            continue
        checked += 1
        refused += not trajectory.success
    return refused, checked


def _reference_trajectory(scenario: McpScenario, answer: str) -> Trajectory:
    return Trajectory(
        scenario_id=scenario.id,
        messages=[{"role": "assistant", "content": answer}],
        calls=[
            CallRecord(turn=turn, name=call.tool, tool=call.tool, arguments=dict(call.arguments), result=answer)
            for turn, call in enumerate(scenario.reference)
        ],
        submission=answer if scenario.verifier and scenario.verifier.submit_tool else None,
    )
