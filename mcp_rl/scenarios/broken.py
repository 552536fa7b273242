"""Find scenarios that no longer hold, by executing their reference solutions again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.explore.answer import read_answer
from mcp_rl.explore.fatal import still_answers
from mcp_rl.rewards.dates import undated, untimed
from mcp_rl.rewards.json_values import is_close
from mcp_rl.scenarios.goals.task import results_hash
from mcp_rl.scenarios.reference import kept, refused_calls
from mcp_rl.scenarios.stage import Look
from mcp_rl.toolserver.state import calls_in_flight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tools.results import ToolResult

_IN_FLIGHT = 16
_DEADLINE = 30.0
"""Seconds for one call."""
_TOLERANCE = 1e-9
_IN_VAIN = 3
"""Scenarios in a row that are played alone without an answer, after which the server is given up."""


@dataclass(frozen=True)
class BrokenScenario:
    """A scenario that no longer holds, or that could not be checked."""

    id: str
    problem: str
    """The reason, in a sentence."""
    unanswered: bool = False
    """True if the server gave no answer or could not begin the episode: it is not known whether the scenario holds."""


async def broken_scenarios(
    sessions: Sessions, params: ServerParams, scenarios: Sequence[McpScenario], *, call_seconds: float = 0.0
) -> list[BrokenScenario]:
    """Return a finding for each scenario that does not hold on this server, in order.

    A scenario holds where its reference calls succeed, from the state that an episode begins in, and the last call
    gives the recorded answer, or reading calls see the expected state; where only the calls are verified, the result
    may change. An unsolvable scenario holds where its calls are still refused. `call_seconds` is what a call takes, 0
    where it was not measured: a slow server gets fewer at once. Where it gives no answer, the scenario is played again
    when all others are done, alone; after three in a row without an answer no more are.
    """
    findings: dict[int, BrokenScenario] = {}
    limiter = anyio.CapacityLimiter(calls_in_flight(call_seconds, _IN_FLIGHT, _DEADLINE))

    async def one(index: int, scenario: McpScenario, *, again: bool = False) -> None:
        said = "Its episode cannot begin: {}"
        try:
            async with limiter, sessions.lease(params, scenario.initial_state) as lease:
                said = "{}"
                if again:
                    await still_answers(lease.session.connection)  # it may be busy with a late call
                problem = await _problem(lease.session, scenario)
        except ServerFault as fault:
            findings[index] = BrokenScenario(scenario.id, said.format(fault), unanswered=True)
        else:
            findings.pop(index, None)
            if problem is not None:
                findings[index] = BrokenScenario(scenario.id, problem)

    async with anyio.create_task_group() as tasks:
        for index, scenario in enumerate(scenarios):
            tasks.start_soon(one, index, scenario)
    in_vain = 0
    for index in [index for index in sorted(findings) if findings[index].unanswered]:
        await one(index, scenarios[index], again=True)
        found = findings.get(index)
        in_vain = in_vain + 1 if found is not None and found.unanswered else 0
        if in_vain == _IN_VAIN:
            break
    return [findings[index] for index in sorted(findings)]


async def _problem(session: Session, scenario: McpScenario) -> str | None:
    """Return why a scenario does not hold, or None. Raises ServerFault where the server gives no answer."""
    connection, hash_now = session.connection, session.schemas.hash
    refused = refused_calls(scenario)
    needs_no_call = scenario.verifier is not None and scenario.verifier.options.get("max_calls") == 0
    unsolvable = scenario.verifier is not None and scenario.verifier.kind == "none"
    if not scenario.reference and not (unsolvable or needs_no_call):
        return "It has no reference solution to execute."
    result: ToolResult | None = None
    texts: list[str] = []
    for call in (*scenario.reference, *refused):
        if call.tool not in session.tool_names:
            return f"The server no longer has the tool {call.tool}."
        result = await connection.call(call.tool, dict(call.arguments), deadline=_DEADLINE)
        if result.is_error != (call in refused):
            if call in refused:
                return f"The call of {call.tool} was refused, and now succeeds: {kept(result.text)[:200]}"
            return f"The call of {call.tool} is now an error: {kept(result.text)[:200]}"
        texts.append(untimed(result.text))
    if scenario.proof is not None:
        same = scenario.verifier is None or scenario.verifier.kind == "state" or scenario.proof.results
        forms = texts, [undated(text) for text in texts]
        seen = {results_hash(form, as_written=written) for form in forms for written in (False, True)}
        problem = None if same is True or same in seen else "Its calls show something else now."
    else:
        problem = _changed(scenario, result) if scenario.reference and result else None
    if problem is None and scenario.verifier is not None and scenario.verifier.kind == "state":
        problem = await _other_state(connection, scenario)
    if problem is None and scenario.schema_hash not in (None, hash_now):
        problem = f"It was made for different tool schemas ({scenario.schema_hash}, now {hash_now})."
    return problem


async def _other_state(connection: Link, scenario: McpScenario) -> str | None:
    """Return how the final state differs from the one that the verifier expects, or None."""
    verifier = scenario.verifier
    if verifier is None or not isinstance(verifier.expected, list):
        return None
    for read, wanted in zip(verifier.reads, verifier.expected, strict=True):
        result = await connection.call(read.tool, dict(read.arguments), deadline=_DEADLINE)
        look = Look(read.tool, dict(read.arguments), untimed(result.text), result.is_error)
        if isinstance(wanted, dict) and not look.shows(wanted, verifier.options):
            return f"In the end, {read.tool} says {kept(result.text)[:100]!r}; another result was recorded."
    return None


def _changed(scenario: McpScenario, result: ToolResult) -> str | None:
    verifier, said = scenario.verifier, kept(untimed(result.text))
    if said == scenario.reference_answer or (verifier and verifier.kind in ("calls", "state")):
        return None
    if verifier is not None and verifier.kind == "number":
        answer = read_answer(result.text, dict(scenario.reference[-1].arguments))
        expected = verifier.expected
        same = (
            answer.kind == "number"
            and isinstance(expected, int | float)
            and isinstance(answer.value, int | float)
            and is_close(answer.value, expected, tolerance=_TOLERANCE)
        )
    else:
        same = scenario.reference_answer in (None, said)
    recorded = verifier.expected if verifier is not None and verifier.kind == "number" else scenario.reference_answer
    return None if same else f"The answer is now {said[:100]!r}; {str(recorded)[:100]!r} was recorded."
