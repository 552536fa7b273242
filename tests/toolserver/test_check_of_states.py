"""A check of a file of scenarios continues after a bad one."""

from pathlib import Path
from typing import Any

from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = str(Path(__file__).with_name("stateful_server.py"))


async def refusing(link: Link, state: dict[str, Any]) -> None:
    if "bad" in state:
        raise ValueError("no such state")


async def test_a_refused_initial_state_is_one_finding_among_others() -> None:
    params = StdioServer(command="{python}", args=("-S", SCRIPT))
    server = ToolServer("state", "A state.", {"stdio": params}, reset=refusing, instances=1)

    def scenario(name: str, tool: str, **state: Any) -> McpScenario:
        return McpScenario(
            task_description=name,
            server_params=params,
            id=name,
            verifier=Verifier(kind="calls"),
            reference=(ToolCall(tool=tool),),
            initial_state=state,
        )

    scenarios = [scenario("one", "look", bad=True), scenario("two", "look"), scenario("three", "gone")]
    async with Sessions(server=server) as sessions:
        findings = await broken_scenarios(sessions, params, scenarios)
    assert [(finding.id, finding.problem[:49]) for finding in findings] == [
        ("one", "Its episode cannot begin: The server state could "),
        ("three", "The server no longer has the tool gone."),
    ]
