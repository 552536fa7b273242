"""Of very many tools of a slow server some are explored, always the same ones."""

from mcp_rl.explore.explorable import beyond_time, explorable
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.state import MeasuredState
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool


def server(seconds: float, name: str = "slow") -> ToolServer:
    measured = MeasuredState(kept="nothing", listing="", reading=("tool_7", "tool_99"), call_seconds=seconds)
    return ToolServer(name, "", {"stdio": StdioServer(command="slow")}).with_state(measured)


def test_as_many_tools_are_explored_as_there_is_time_for() -> None:
    tools = [Tool(f"tool_{n}", "", {"type": "object"}) for n in range(200)]
    assert explorable(tools, server(0.001)) == tools
    chosen = explorable(tools, server(0.0505))
    assert len(chosen) == 99  # twelve calls each in a minute
    assert {"tool_7", "tool_99"} <= {tool.name for tool in chosen}  # those that worked when the state was measured
    assert len(explorable(tools, server(3.0))) == 24
    assert explorable(tools[:24], server(3.0)) == tools[:24]
    late = beyond_time(list(reversed(tools)), server(0.0505))
    assert {tool.name for tool in late} == {tool.name for tool in tools} - {tool.name for tool in chosen}


def test_each_server_of_a_group_is_explored_as_far_as_its_own_time_goes() -> None:
    def tools(name: str) -> list[Tool]:
        return [Tool(f"{name}__tool_{n}", "", {"type": "object"}) for n in range(200)]

    both = ToolServer.together([server(0.0505, "slow"), server(0.001, "fast")])
    chosen = [tool.name for tool in explorable(tools("slow") + tools("fast"), both)]
    assert {tool.name for tool in tools("fast")} <= set(chosen)
    alone = explorable([Tool(f"tool_{n}", "", {"type": "object"}) for n in range(200)], server(0.0505))
    assert [name for name in chosen if name.startswith("slow")] == [f"slow__{tool.name}" for tool in alone]
