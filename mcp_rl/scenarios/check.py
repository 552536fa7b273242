"""Do the scenarios still hold? Their reference solutions are executed again, and what differs is reported."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.scenario import McpScenario
from mcp_rl.scenarios.answer import kept, read_answer
from mcp_rl.toolserver.connection import Connection, ToolResult
from mcp_rl.toolserver.schema import ToolSchemas

_IN_FLIGHT = 16
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Finding:
    """A scenario that no longer holds."""

    id: str
    problem: str
    """One sentence."""


async def check(
    connection: Connection, schemas: ToolSchemas, scenarios: Sequence[McpScenario], *, deadline: float = 30.0
) -> list[Finding]:
    """One finding for each scenario that does not hold on this server, in their order.

    A scenario holds where its reference calls succeed and the last one gives the recorded answer; where only the calls
    are verified, a changed result is no finding. `deadline` is seconds for one call.
    """
    findings: list[Finding | None] = [None] * len(scenarios)
    limiter = anyio.CapacityLimiter(_IN_FLIGHT)
    known = {tool.name for tool in connection.tools}

    async def one(index: int, scenario: McpScenario) -> None:
        async with limiter:
            problem = await _problem(connection, known, scenario, deadline)
        if problem is None and scenario.schema_hash not in (None, schemas.hash):
            problem = f"It was made for other tool schemas ({scenario.schema_hash}, now {schemas.hash})."
        if problem is not None:
            findings[index] = Finding(scenario.id, problem)

    async with anyio.create_task_group() as tasks:
        for index, scenario in enumerate(scenarios):
            tasks.start_soon(one, index, scenario)
    return [finding for finding in findings if finding]


async def _problem(connection: Connection, known: set[str], scenario: McpScenario, deadline: float) -> str | None:
    if not scenario.reference:
        return "It has no reference solution to execute."
    for call in scenario.reference:
        if call.tool not in known:
            return f"The server has no tool {call.tool} any more."
        try:
            result = await connection.call(call.tool, dict(call.arguments), deadline=deadline)
        except ServerFault as fault:
            return f"The call of {call.tool} failed: {fault}"
        if result.is_error:
            return f"The call of {call.tool} is an error now: {kept(result.text)[:200]}"
    return _changed(scenario, result)


def _changed(scenario: McpScenario, result: ToolResult) -> str | None:
    verifier = scenario.verifier
    if verifier is not None and verifier.kind == "calls":
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
