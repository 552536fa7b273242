"""A tool that is late now and then gets tasks; one that is late often gets none."""

from typing import Any

import pytest

from mcp_rl.errors import ServerFault
from mcp_rl.explore.probe import Probe
from mcp_rl.explore.tried import tried_tools
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.results import ToolResult

PAGE = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}


class LateServer:
    """Answers in no time, but not some of its calls."""

    warnings: tuple[str, ...] = ()
    alive = True

    def __init__(self, every: int) -> None:
        self.server_info: dict[str, str] = {}
        self.tools = [Tool("read", "Read a page.", PAGE)]
        self.calls, self._every = 0, every

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        self.calls += 1
        if self.calls % self._every == 0:
            raise ServerFault("it did not answer in time")
        return ToolResult(f"It says {arguments}.")

    async def resources(self) -> list[dict[str, Any]]:
        return []

    async def ping(self, deadline: float) -> bool:
        return True


@pytest.mark.parametrize(("every", "unfit"), [(15, set()), (4, {"read"})])
async def test_a_tool_is_unfit_where_a_tenth_of_its_calls_and_three_are_late(every: int, unfit: set[str]) -> None:
    link = LateServer(every)
    probe = Probe(link, link.tools, ToolServer("late", "", {"stdio": StdioServer(command="late")}), 0, set())  # type: ignore[arg-type]
    with tried_tools() as tried:
        await probe.single_calls(60)
    assert probe.unfit == unfit
    (reason,) = tried.reasons(["read"])
    assert ("calls were not answered in time" in reason and "make it answer sooner" in reason) is bool(unfit)
    assert (link.calls >= 45) is not bool(unfit), "the calls end with the first unfit tool"
