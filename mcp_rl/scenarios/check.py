"""Do the scenarios still hold? Their reference solutions are executed again, and what differs is reported."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.scenario import McpScenario, ServerParams
from mcp_rl.scenarios.answer import kept, read_answer, refused_calls
from mcp_rl.scenarios.stage import Look
from mcp_rl.toolserver.connection import ToolResult
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Session, Sessions

_IN_FLIGHT = 16
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Finding:
    """A scenario that no longer holds."""

    id: str
    problem: str
    """One sentence."""


async def check(
    sessions: Sessions, params: ServerParams, scenarios: Sequence[McpScenario], *, deadline: float = 30.0
) -> list[Finding]:
    """One finding for each scenario that does not hold on this server, in their order.

    A scenario holds where its reference calls succeed, each from the state that an episode begins in, and the last one
    gives the recorded answer, or reading calls see the expected state; where only the calls are verified, a changed
    result is no finding. One that cannot be done holds where its calls are still refused. `deadline` is seconds for one
    call.
    """
    findings: list[Finding | None] = [None] * len(scenarios)
    limiter = anyio.CapacityLimiter(_IN_FLIGHT)

    async def one(index: int, scenario: McpScenario) -> None:
        try:
            async with limiter, sessions.lease(params, scenario.initial_state) as lease:
                problem = await _problem(lease.session, scenario, deadline)
        except ServerFault as fault:
            problem = f"Its episode cannot begin: {fault}"
        if problem is not None:
            findings[index] = Finding(scenario.id, problem)

    async with anyio.create_task_group() as tasks:
        for index, scenario in enumerate(scenarios):
            tasks.start_soon(one, index, scenario)
    return [finding for finding in findings if finding]


async def _problem(session: Session, scenario: McpScenario, deadline: float) -> str | None:
    connection, hash_now = session.connection, session.schemas.hash
    refused = refused_calls(scenario)
    done_without = scenario.verifier is not None and scenario.verifier.options.get("max_calls") == 0
    cannot = scenario.verifier is not None and scenario.verifier.kind == "none"
    if not scenario.reference and not (cannot or done_without):
        return "It has no reference solution to execute."
    result: ToolResult | None = None
    for call in (*scenario.reference, *refused):
        if call.tool not in session.tool_names:
            return f"The server has no tool {call.tool} any more."
        try:
            result = await connection.call(call.tool, dict(call.arguments), deadline=deadline)
        except ServerFault as fault:
            return f"The call of {call.tool} failed: {fault}"
        if result.is_error != (call in refused):
            if call in refused:
                return f"The call of {call.tool} was refused, and succeeds now: {kept(result.text)[:200]}"
            return f"The call of {call.tool} is an error now: {kept(result.text)[:200]}"
    problem = _changed(scenario, result) if scenario.reference and result else None
    if problem is None and scenario.verifier is not None and scenario.verifier.kind == "state":
        problem = await _other_state(connection, scenario, deadline)
    if problem is None and scenario.schema_hash not in (None, hash_now):
        problem = f"It was made for other tool schemas ({scenario.schema_hash}, now {hash_now})."
    return problem


async def _other_state(connection: Link, scenario: McpScenario, deadline: float) -> str | None:
    """What reading calls see that the verifier does not expect."""
    verifier = scenario.verifier
    expected = verifier.expected if verifier is not None and isinstance(verifier.expected, list) else []
    for read, wanted in zip(verifier.reads if verifier else (), expected, strict=True):
        try:
            result = await connection.call(read.tool, dict(read.arguments), deadline=deadline)
        except ServerFault as fault:
            return f"The reading call of {read.tool} failed: {fault}"
        look = Look(read.tool, dict(read.arguments), result.text, result.is_error)
        if isinstance(wanted, dict) and not look.shows(wanted):
            return f"In the end, {read.tool} says {kept(result.text)[:100]!r}; something else was recorded."
    return None


def _changed(scenario: McpScenario, result: ToolResult) -> str | None:
    verifier = scenario.verifier
    if kept(result.text) == scenario.reference_answer or (verifier and verifier.kind in ("calls", "state")):
        return None
    if verifier is not None and verifier.kind == "number":
        answer = read_answer(result.text, dict(scenario.reference[-1].arguments))
        expected = verifier.expected
        same = (
            answer.kind == "number"
            and isinstance(expected, int | float)
            and isinstance(answer.value, int | float)
            and math.isclose(answer.value, expected, rel_tol=_TOLERANCE)
        )
    else:
        same = scenario.reference_answer in (None, kept(result.text))
    recorded = verifier.expected if verifier is not None and verifier.kind == "number" else scenario.reference_answer
    return None if same else f"The answer is {kept(result.text)[:100]!r} now; {str(recorded)[:100]!r} was recorded."
