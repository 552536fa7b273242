"""Verifiers of the state that a rollout leaves: kinds "state" and "none"."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from mcp_rl.rewards.dates import undated, untimed
from mcp_rl.rewards.json_values import NoJson, first_difference, json_in, same_json, unordered
from mcp_rl.rewards.new_ids import with_ids_numbered
from mcp_rl.rewards.verdict import Verdict, failed, nothing_submitted, passed, submitted, successful_calls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.scenario import McpScenario, Verifier
    from mcp_rl.trajectory import CallRecord, Trajectory

_CANNOT = re.compile(
    r"\b(?:can(?:no|')t|cannot|can not|could not|couldn't|unable|impossible|not (?:possible|able|available|supported)"
    r"|isn't (?:possible|available|supported)|no (?:such )?(?:tool|tools|way|means|function)|none of (?:the|my) tools"
    r"|(?:do not|don't|does not|doesn't) (?:have|exist|support|offer)|lack|beyond what|outside (?:of )?what"
    r"|there (?:is|are) no|not something)\b",
    re.IGNORECASE,
)


def state(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the `expected` read calls return the expected results after the rollout.

    `expected` is a list of {"tool", "arguments", "result"}, executed on the rollout's own session when it is over. A
    text result is compared with the tool's text, ignoring white space at line ends and the seconds that the call took;
    any other JSON is compared with the structured content, or else with the JSON in the text. {"is_error": true}
    instead of a result: the call must fail, as reading something deleted does. Options: `subset` (false): objects may
    have more keys; `tolerance` (relative, 1e-9) for numbers; `undated` (false): times of day count as equal, and stand
    as "<time>" in the expected texts;
    `unordered` (false): the order of objects in a list does not count, as where equal times decide it; `new_ids` ([]):
    ids that the server makes anew each time: they, and the order of objects in lists, do not count, but the same id
    must stand in the same places. Each is a key of the result's JSON objects, or for results that are none a regular
    expression (RE2) whose one group is the id;
    `require_answer` (true): a non-empty final message is required. No read is needed after one that differs.
    """
    verifier = scenario.verifier
    assert verifier is not None
    if verifier.options.get("require_answer", True) and not (submitted(trajectory, scenario) or "").strip():
        return nothing_submitted(trajectory, scenario)
    expected = cast("list[dict[str, Any]]", verifier.expected)  # checked when it is loaded
    for wanted, read in zip(expected, trajectory.final_state, strict=False):
        if problem := unlike(verifier, wanted, read):
            return failed(f"In the final state, {read.tool} with {read.arguments} {problem}.")
    if len(trajectory.final_state) != len(expected):
        raise ValueError(f"{len(trajectory.final_state)} of {len(expected)} reads were made")
    return passed("The final state is the expected one.")


def unlike(verifier: Verifier, wanted: Mapping[str, Any], read: CallRecord) -> str | None:
    """Return how a read differs from the entry of a state verifier that expects it; None if it does not."""
    options = verifier.options
    if read.result == wanted.get("result") and not read.is_error and not wanted.get("is_error"):
        return None
    if any(options.get(option) for option in ("undated", "unordered", "new_ids")):
        read = read.model_copy(update={"result": state_text(read.result, options), "structured": None})
        if isinstance(result := wanted.get("result"), str):
            wanted = {**wanted, "result": state_text(result, options)}
        elif "result" in wanted:
            wanted = {**wanted, "result": json.loads(state_text(json.dumps(result), options))}
    elif isinstance(result := wanted.get("result"), str):
        read = read.model_copy(update={"result": untimed(read.result)})
        wanted = {**wanted, "result": untimed(result)}
    tolerance = float(cast("float", options.get("tolerance", 1e-9)))
    return _problem(wanted, read, bool(options.get("subset")), tolerance)


def state_text(text: str, options: Mapping[str, Any]) -> str:
    """Return a result without what a verifier of kind "state" with these options does not compare."""
    text = undated(text, whenever=True) if options.get("undated") else untimed(text)
    if places := options.get("new_ids"):
        return with_ids_numbered(text, places)
    if options.get("unordered"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        text = json.dumps(unordered(value), sort_keys=True) if isinstance(value, dict | list) else text
    return text


def none(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass, for a task that cannot be done, if nothing was changed and the answer says that it cannot be done.

    A successful call counts as a change unless the server annotates its tool as read-only, or the option `harmless`
    names it. The answer must hold a common English phrase ("cannot", "there is no tool"), or one of the texts in the
    option `says`, in any letter case.
    """
    options = scenario.verifier.options if scenario.verifier else {}
    answer = submitted(trajectory, scenario)
    if not (answer or "").strip():
        return nothing_submitted(trajectory, scenario)
    assert answer is not None
    harmless: Any = options.get("harmless") or ()
    for call in successful_calls(trajectory):
        if not call.reads_only and call.tool not in harmless:
            return failed(f"The tool {call.tool} was called for a task that cannot be done.")
    says: Any = options.get("says")
    straight = answer.replace("\u2019", "'")
    said = any(text.casefold() in straight.casefold() for text in says) if says else _CANNOT.search(straight)
    return passed("The answer says that it cannot be done.") if said else failed("The answer does not say no.")


def _problem(wanted: Mapping[str, Any], read: CallRecord, subset: bool, tolerance: float) -> str | None:
    if read.is_error != bool(wanted.get("is_error")):
        return f"fails: {read.result[:200]}" if read.is_error else "succeeds, and should not"
    if "result" not in wanted:
        return None
    result = wanted["result"]
    if isinstance(result, str):
        if _lines(read.result) == _lines(result) or read.structured in (result, {"result": result}):
            return None
        return f"gives {read.result[:200]!r}"
    given = _value(read)
    if given is NoJson:
        return f"gives {read.result[:200]!r}, which is not JSON"
    if isinstance(given, dict) and given.keys() == {"result"} and not (isinstance(result, dict) and "result" in result):
        given = given["result"]
    difference = first_difference(given, result, tolerance)
    if difference is None and not subset and not same_json(given, result, tolerance):
        difference = "the result holds more than expected"
    return f"is not as expected: {difference}" if difference else None


def _value(read: CallRecord) -> Any:
    if read.structured is not None:
        return read.structured
    try:
        return json_in(read.result)
    except NoJson:
        return NoJson


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
