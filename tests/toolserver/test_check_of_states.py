"""A file of scenarios is checked to its end, whatever becomes of one."""

from pathlib import Path
from typing import Any

from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier
from mcp_rl.scenarios.check import check
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions

SCRIPT = str(Path(__file__).with_name("stateful_server.py"))


async def refusing(link: Link, state: dict[str, Any]) -> None:
    if "bad" in state:
        raise ValueError("no such state")


async def test_a_scenario_whose_state_the_server_refuses_is_a_finding_and_the_others_are_checked() -> None:
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
        findings = await check(sessions, params, scenarios)
    assert [(finding.id, finding.problem[:49]) for finding in findings] == [
        ("one", "Its episode cannot begin: The server state could "),
        ("three", "The server has no tool gone any more."),
    ]
