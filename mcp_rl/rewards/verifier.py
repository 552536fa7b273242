"""Rewards from a scenario's own verifier: 1 for a correct answer, 0 for a wrong one.

`BUILT_IN` holds the verifiers of the package; those of plugins come from the hook `register_verifiers`.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError

from mcp_rl.errors import ScenarioError, VerifierError
from mcp_rl.rewards.answers import number, parts, text
from mcp_rl.rewards.calls import calls
from mcp_rl.rewards.json_values import is_finite
from mcp_rl.rewards.new_ids import places_problem
from mcp_rl.rewards.outcome import none, state
from mcp_rl.rewards.structured import json_answer, regex, regex_problem, set_answer
from mcp_rl.rewards.times import names_a_time, time_answer
from mcp_rl.rewards.verdict import Judgement, Verdict, VerifierFunction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from mcp_rl.scenario import McpScenario, Verifier
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

BUILT_IN: Mapping[str, VerifierFunction] = {
    "number": number,
    "text": text,
    "parts": parts,
    "time": time_answer,
    "json": json_answer,
    "set": set_answer,
    "regex": regex,
    "calls": calls,
    "state": state,
    "none": none,
}
"""For each kind that docs/rewards.md lists its function."""


def verify(
    trajectory: Trajectory, scenario: McpScenario, verifiers: Mapping[str, VerifierFunction] | None = None
) -> Awaitable[None] | None:
    """Set reward, success, metrics["verifier"] and explanation of a finished trajectory.

    `verifiers` are the functions by their kinds, by default the built-in ones, none of which is asynchronous. Returns
    None when done, or an awaitable where the verifier is asynchronous. A rollout that a fault ended keeps the
    reward None: it is not evidence about the model. Raises ScenarioError where the scenario has no verifier or an
    unknown one, VerifierError where the verifier itself failed.
    """
    function = _function(scenario, BUILT_IN if verifiers is None else verifiers)
    if not trajectory.stop_reason.trainable:
        trajectory.reward = trajectory.success = None
        trajectory.explanation = f"Not scored: {trajectory.fault or f'the rollout ended by {trajectory.stop_reason}'}"
        return None
    return verdict_of(_kind(scenario), function, trajectory, scenario, then=lambda found: _set(trajectory, found))


def _unrecorded(trajectory: Trajectory) -> bool:
    """Return whether a loop of the user's own called tools without saying so."""
    return not trajectory.calls and any(message.get("role") == "tool" for message in trajectory.messages)


async def verify_group(
    group: TrajectoryGroup, verifiers: Mapping[str, VerifierFunction] | None = None
) -> TrajectoryGroup:
    """Score every trajectory of a group by its scenario's verifier; return the same group.

    Serves as `after_each` of `gather_trajectory_groups`. `verifiers` and errors are those of `verify`; raises
    ScenarioError too for a trajectory whose messages hold tool results and whose `calls` are empty.
    """
    if verifiers is None and _kind(group.scenario) != "none" and any(map(_unrecorded, group)):
        raise ScenarioError(
            f"A trajectory of the scenario {group.scenario.id} has tool results among its messages, and no calls: "
            "add a CallRecord to its `calls` for each one, because verifiers judge by them."
        )
    for trajectory in group:
        if (waiting := verify(trajectory, group.scenario, verifiers)) is not None:
            await waiting
    return group


def verdict_of(
    kind: str,
    function: VerifierFunction,
    trajectory: Trajectory,
    scenario: McpScenario,
    *,
    then: Callable[[Verdict], None],
    what: str = "verifier",
) -> Awaitable[None] | None:
    """Pass the function's verdict to `then`: at once, or in the returned awaitable where the function is asynchronous.

    Raises VerifierError, which names the function as `what` and `kind`, where it failed or returned no verdict.
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
    """Check that every scenario can be scored. Raises ScenarioError with the first that cannot."""
    for scenario in scenarios:
        _function(scenario, verifiers)
        assert scenario.verifier is not None
        problem = _unusable(scenario.verifier)
        if problem:
            raise ScenarioError(f"{scenario.label} has a verifier {scenario.verifier.kind!r} that {problem}.")


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
        raise VerifierError(f"The {name} returned {judgement!r:.80}, which is neither a Verdict nor a number.")
    if not 0.0 <= judgement.score <= 1.0:  # also NaN
        raise VerifierError(f"The {name} returned the score {judgement.score}; it must be from 0 to 1.")
    return judgement


def _failure(name: str, scenario: McpScenario, error: Exception) -> VerifierError:
    return VerifierError(f"The {name} failed on scenario {scenario.id}: {type(error).__name__}: {error}.")


def _function(scenario: McpScenario, verifiers: Mapping[str, VerifierFunction]) -> VerifierFunction:
    kind = _kind(scenario)
    if not kind:
        raise ScenarioError(
            f"{scenario.label} has no verifier; give it one, or score with a judge (--judge-model NAME)."
        )
    if kind not in verifiers:
        close = get_close_matches(kind, verifiers, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(sorted(verifiers))}."
        raise ScenarioError(f"{scenario.label} names the unknown verifier {kind!r}; {hint}")
    return verifiers[kind]


def _kind(scenario: McpScenario) -> str:
    return scenario.verifier.kind if scenario.verifier else ""


def _unusable(verifier: Verifier) -> str | None:
    """Return the error in a verifier's `expected`, or None; kinds of plugins are not checked."""
    expected: JsonValue = verifier.expected
    try:
        reads = verifier.reads
    except ValidationError:
        return "needs a list of reads, each with a tool and its arguments"
    if "reads" in verifier.options and verifier.kind != "state" and not reads:
        return "has the option reads, which must be a list of calls, each with a tool and its arguments"
    match verifier.kind:
        case "number":
            sound = isinstance(expected, int | float) and not isinstance(expected, bool) and is_finite(expected)
            return None if sound else f"expects a number, not {expected!r}"
        case "text":
            return None if isinstance(expected, str) and expected.strip() else f"expects a text, not {expected!r}"
        case "time":
            sound = isinstance(expected, str) and names_a_time(expected)
            return None if sound else f"expects a date or a time, not {expected!r}"
        case "json":
            return None if expected is not None else "expects a JSON value"
        case "set":
            sound = (
                isinstance(expected, list) and bool(expected) and not any(isinstance(e, list | dict) for e in expected)
            )
            return None if sound else f"expects a list of texts or numbers, not {expected!r}"
        case "parts":
            sound = isinstance(expected, list) and bool(expected) and all(map(_is_part, expected))
            return None if sound else f"expects a list of texts and numbers, not {expected!r}"
        case "regex":
            return regex_problem(verifier)
        case "calls":
            return None if _are_calls(expected) else "expects a list of calls, each with a tool and its arguments"
        case "state":
            sound = _are_calls(expected) and all("result" in c or c.get("is_error") for c in expected)  # type: ignore
            if not sound:
                return "expects a list of reads, each with a tool, its arguments and the result"
            return places_problem(verifier.options.get("new_ids", []))
    return None


def _is_part(part: JsonValue) -> bool:
    if isinstance(part, str):
        return bool(part.strip())
    return isinstance(part, int | float) and not isinstance(part, bool) and is_finite(part)


def _are_calls(expected: JsonValue) -> bool:
    listed = isinstance(expected, list) and bool(expected)
    return listed and all(isinstance(c, dict) and isinstance(c.get("tool"), str) for c in expected)  # type: ignore
