"""Verifier of the calls that were made: kind "calls".

For results too long to repeat, it requires that the reference calls were executed with equal arguments and that the
model then answered anything. Failed calls neither count nor harm, so that a model may try again; a limit on successful
calls keeps "call everything" from passing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.json_values import same_json
from mcp_rl.rewards.verdict import Verdict, failed, nothing_submitted, passed, submitted, successful_calls

if TYPE_CHECKING:
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory

Call = tuple[str, dict[str, Any]]


def calls(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if all `expected` calls (a list of {"tool", "arguments"}) succeeded.

    Options: `ordered` (true): in this order, with other calls allowed between. `defaults`: tool name to its parameters'
    default values, which complete calls that leave them out. `extra` (as many as expected, plus one): number of other
    successful calls that are allowed. `require_answer` (true): a non-empty final message is required.
    """
    options = scenario.verifier.options if scenario.verifier else {}
    if options.get("require_answer", True) and not (submitted(trajectory, scenario) or "").strip():
        return nothing_submitted(trajectory, scenario)
    defaults: Any = options.get("defaults") or {}
    wanted = [_filled((call["tool"], call.get("arguments") or {}), defaults) for call in _expected(scenario)]
    made = [_filled((call.tool or "", call.arguments or {}), defaults) for call in successful_calls(trajectory)]
    missing = _missing(wanted, made, ordered=bool(options.get("ordered", True)))
    if missing is not None:
        return failed(f"The call of {missing[0]} with {missing[1]} was not made{_in_order(wanted, made)}.")
    extra = int(options.get("extra", len(wanted) + 1))  # type: ignore[arg-type]
    if len(made) > len(wanted) + extra:
        return failed(f"{len(made)} calls were made; {len(wanted)} suffice, and {extra} more are allowed.")
    return passed(f"The expected {'call was' if len(wanted) == 1 else f'{len(wanted)} calls were'} made.")


def _expected(scenario: McpScenario) -> list[dict[str, Any]]:
    return list(scenario.verifier.expected) if scenario.verifier else []  # type: ignore[arg-type]


def _filled(call: Call, defaults: dict[str, Any]) -> Call:
    tool, arguments = call
    return tool, {**defaults.get(tool, {}), **arguments}


def _same(one: Call, other: Call) -> bool:
    return one[0] == other[0] and same_json(one[1], other[1])


def _missing(wanted: list[Call], made: list[Call], *, ordered: bool) -> Call | None:
    """Return the first wanted call that was not made, or None; each made call counts once."""
    left = list(made)
    for call in wanted:
        at = next((i for i, other in enumerate(left) if _same(call, other)), None)
        if at is None:
            return call
        left = left[at + 1 :] if ordered else left[:at] + left[at + 1 :]
    return None


def _in_order(wanted: list[Call], made: list[Call]) -> str:
    return " in the order asked for" if _missing(wanted, made, ordered=False) is None else ""
