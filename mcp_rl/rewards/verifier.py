"""Rewards from a scenario's own verifier: 1 where the answer holds, 0 where it does not."""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from difflib import get_close_matches

from pydantic import JsonValue, ValidationError

from mcp_rl.errors import ScenarioError, VerifierError
from mcp_rl.rewards.structured import regex_problem
from mcp_rl.rewards.verdict import Judgement, Verdict, VerifierFunction
from mcp_rl.scenario import McpScenario, Verifier
from mcp_rl.trajectory import Trajectory

__all__ = ["Verdict", "VerifierFunction", "check_verifiers", "verdict_of", "verify"]


def verify(
    trajectory: Trajectory, scenario: McpScenario, verifiers: Mapping[str, VerifierFunction]
) -> Awaitable[None] | None:
    """Set reward, success, metrics["verifier"] and explanation of a finished trajectory.

    Returns None when that is done, or what must be awaited first where the verifier is asynchronous. A rollout that
    ended by the world's fault keeps the reward None: it is not evidence about the model. Raises ScenarioError where the
    scenario has no verifier or names one that nobody registered, VerifierError where the verifier itself failed.
    """
    function = _function(scenario, verifiers)
    if not trajectory.stop_reason.trainable:
        trajectory.reward = trajectory.success = None
        trajectory.explanation = f"Not scored: {trajectory.fault or f'the rollout ended by {trajectory.stop_reason}'}"
        return None
    return verdict_of(_kind(scenario), function, trajectory, scenario, then=lambda found: _set(trajectory, found))


def verdict_of(
    kind: str,
    function: VerifierFunction,
    trajectory: Trajectory,
    scenario: McpScenario,
    *,
    then: Callable[[Verdict], None],
    what: str = "verifier",
) -> Awaitable[None] | None:
    """Hand the function's verdict to `then`: at once, or in what is returned where the function is asynchronous.

    Raises VerifierError, which names the function as `what` and `kind`, where it failed or gave what is no verdict.
    """
    name = f"{what} {kind!r}"
    try:
        judgement = function(trajectory, scenario)
    except Exception as error:
        raise _failure(name, scenario, error) from error
    if inspect.isawaitable(judgement):
        return _awaited(name, judgement, scenario, then)
    then(_checked(name, judgement))
    return None


def check_verifiers(scenarios: Iterable[McpScenario], verifiers: Mapping[str, VerifierFunction]) -> None:
    """Before a run: every scenario can be scored. Raises ScenarioError that names the first which cannot."""
    for scenario in scenarios:
        _function(scenario, verifiers)
        assert scenario.verifier is not None
        problem = _unusable(scenario.verifier)
        if problem:
            raise ScenarioError(f"Scenario {scenario.id}: the verifier {scenario.verifier.kind!r} {problem}.")


async def _awaited(
    name: str, judgement: Awaitable[Judgement], scenario: McpScenario, then: Callable[[Verdict], None]
) -> None:
    try:
        verdict = await judgement
    except Exception as error:
        raise _failure(name, scenario, error) from error
    then(_checked(name, verdict))


def _set(trajectory: Trajectory, verdict: Verdict) -> None:
    trajectory.reward = float(verdict.score)
    trajectory.success = verdict.success
    trajectory.metrics |= {**verdict.metrics, "verifier": float(verdict.score)}
    trajectory.explanation = verdict.explanation


def _checked(name: str, judgement: object) -> Verdict:
    if isinstance(judgement, bool | int | float):
        judgement = Verdict(float(judgement), f"The {name} gives {float(judgement):g}.")
    if not isinstance(judgement, Verdict):
        raise VerifierError(f"The {name} gave {judgement!r:.80}, which is neither a Verdict nor a number.")
    if not 0.0 <= judgement.score <= 1.0:  # also NaN
        raise VerifierError(f"The {name} gave the score {judgement.score}; 0 to 1 is allowed.")
    return judgement


def _failure(name: str, scenario: McpScenario, error: Exception) -> VerifierError:
    return VerifierError(f"The {name} failed on scenario {scenario.id}: {type(error).__name__}: {error}.")


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
    """What is wrong with a verifier's `expected`; None where it is right, or the kind is a user's own."""
    expected: JsonValue = verifier.expected
    try:
        reads = verifier.reads
    except ValidationError:
        return "reads the final state with what is no list of calls, each with a tool and its arguments"
    if "reads" in verifier.options and verifier.kind != "state" and not reads:
        return "has the option reads, which is to be a list of calls, each with a tool and its arguments"
    match verifier.kind:
        case "number":
            sound = isinstance(expected, int | float) and not isinstance(expected, bool) and math.isfinite(expected)
            return None if sound else f"expects a number, not {expected!r}"
        case "text":
            return None if isinstance(expected, str) and expected.strip() else f"expects a text, not {expected!r}"
        case "json":
            return None if expected is not None else "expects a JSON value"
        case "set":
            sound = (
                isinstance(expected, list) and bool(expected) and not any(isinstance(e, list | dict) for e in expected)
            )
            return None if sound else f"expects a list of texts or numbers, not {expected!r}"
        case "regex":
            return regex_problem(verifier)
        case "calls":
            return None if _are_calls(expected) else "expects a list of calls, each with a tool and its arguments"
        case "state":
            sound = _are_calls(expected) and all("result" in c or c.get("is_error") for c in expected)  # type: ignore
            return None if sound else "expects a list of reads, each with a tool, its arguments and the result"
    return None


def _are_calls(expected: JsonValue) -> bool:
    listed = isinstance(expected, list) and bool(expected)
    return listed and all(isinstance(c, dict) and isinstance(c.get("tool"), str) for c in expected)  # type: ignore
