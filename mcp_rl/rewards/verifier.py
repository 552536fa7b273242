"""Rewards from a scenario's own verifier: 1 where the answer holds, 0 where it does not."""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pydantic import JsonValue

from mcp_rl.errors import ScenarioError
from mcp_rl.rewards.verdict import Verdict, VerifierFunction
from mcp_rl.scenario import McpScenario, Verifier
from mcp_rl.trajectory import Trajectory

__all__ = ["Verdict", "VerifierFunction", "check_verifiers", "verify"]


def verify(trajectory: Trajectory, scenario: McpScenario, verifiers: Mapping[str, VerifierFunction]) -> None:
    """Set reward, success, metrics["verifier"] and explanation of a finished trajectory.

    A rollout that ended by the world's fault keeps the reward None: it is not evidence about the model. Raises
    ScenarioError where the scenario has no verifier or names one that nobody registered.
    """
    function = _function(scenario, verifiers)
    if not trajectory.stop_reason.trainable:
        trajectory.reward = trajectory.success = None
        trajectory.explanation = f"Not scored: {trajectory.fault or f'the rollout ended by {trajectory.stop_reason}'}"
        return
    verdict = function(trajectory, scenario)
    if not 0.0 <= verdict.score <= 1.0:  # also NaN
        raise ScenarioError(f"The verifier {_kind(scenario)!r} gave the score {verdict.score}; 0 to 1 is allowed.")
    trajectory.reward = float(verdict.score)
    trajectory.success = verdict.success
    trajectory.metrics |= {**verdict.metrics, "verifier": float(verdict.score)}
    trajectory.explanation = verdict.explanation


def check_verifiers(scenarios: Iterable[McpScenario], verifiers: Mapping[str, VerifierFunction]) -> None:
    """Before a run: every scenario can be scored. Raises ScenarioError that names the first which cannot."""
    for scenario in scenarios:
        _function(scenario, verifiers)
        assert scenario.verifier is not None
        problem = _unusable(scenario.verifier)
        if problem:
            raise ScenarioError(f"Scenario {scenario.id}: the verifier {scenario.verifier.kind!r} {problem}.")


def _function(scenario: McpScenario, verifiers: Mapping[str, VerifierFunction]) -> VerifierFunction:
    kind = _kind(scenario)
    if not kind:
        raise ScenarioError(
            f"Scenario {scenario.id} has no verifier; give it one, or score with a judge (--judge-model NAME)."
        )
    if kind not in verifiers:
        close = get_close_matches(kind, verifiers, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(verifiers))}."
        raise ScenarioError(f"Scenario {scenario.id} wants the verifier {kind!r}, which nobody registered; {hint}")
    return verifiers[kind]


def _kind(scenario: McpScenario) -> str:
    return scenario.verifier.kind if scenario.verifier else ""


def _unusable(verifier: Verifier) -> str | None:
    """What is wrong with a built-in verifier's `expected`; None where it is right, or the kind is a user's own."""
    expected: JsonValue = verifier.expected
    if verifier.kind == "number":
        sound = isinstance(expected, int | float) and not isinstance(expected, bool) and math.isfinite(expected)
        return None if sound else f"expects a number, not {expected!r}"
    if verifier.kind == "text":
        return None if isinstance(expected, str) and expected.strip() else f"expects a text, not {expected!r}"
    if verifier.kind == "calls":
        listed = isinstance(expected, list) and expected
        sound = bool(listed) and all(isinstance(c, dict) and isinstance(c.get("tool"), str) for c in expected)  # type: ignore[union-attr]
        return None if sound else "expects a list of calls, each with a tool and its arguments"
    return None
