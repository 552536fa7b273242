"""Deadlines of calls: per tool, and extended by progress up to a limit."""

import asyncio
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_rl.config import RunConfig, ScenarioConfig
from mcp_rl.errors import ServerFault
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.connection import owner
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from tests.toolserver.changing_http import TRANSPORTS, reached

PATIENT = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5)


async def test_progress_extends_a_call_over_every_transport():
    async def work(transport):
        with reached(transport) as params:
            async with connect(params, deadlines=PATIENT) as connection:
                return (await connection.call("work", {"seconds": 2.5}, deadline=1.5)).text

    assert await asyncio.gather(*map(work, TRANSPORTS)) == ["done"] * 3


async def test_progress_extends_one_call_up_to_the_hard_limit():
    deadlines = Deadlines(spawn=120, initialize=120, list=60, call=1, longest_call=3, close=5)
    with reached("stdio") as params:
        async with connect(params, deadlines=deadlines) as connection:
            started = time.monotonic()
            endless, silent, stopped = await asyncio.gather(
                connection.call("work", {"seconds": 60}),
                connection.call("work", {"seconds": 60, "report_for": 0}),
                connection.call("work", {"seconds": 60, "report_for": 0.3}),
                return_exceptions=True,
            )
            assert time.monotonic() - started < 20
            assert isinstance(endless, ServerFault)
            assert "call of work within 3 s, although it reported progress" in str(endless)
            assert endless.delivered is None
            assert isinstance(silent, ServerFault)
            assert str(silent).endswith("did not answer a call of work within 1 s.")
            assert isinstance(stopped, ServerFault)
            assert "within 1 s of its last sign of progress" in str(stopped)
            assert (await connection.call("echo", {"text": "still here"}, deadline=60)).text == "still here"


async def test_deadlines_of_tool_call_and_connection_in_order():
    with reached("stdio") as params:
        deadlines = Deadlines(spawn=120, initialize=120, list=60, call=0.2, longest_call=0, close=5)
        async with connect(params, deadlines=deadlines, tool_deadlines={"write": 60}) as connection:
            slow = {"seconds": 0.6, "report_for": 0}
            with pytest.raises(ServerFault, match=r"call of work within 0\.2 s"):
                await connection.call("work", slow)
            assert (await connection.call("work", slow, deadline=60)).text == "done"
            assert (await connection.call("write", {}, deadline=0.0)).text == "done"


async def test_a_call_of_a_tool_that_was_slow_when_measured_ends_early_and_is_an_error_of_the_tool():
    slow = frozenset({"work", "write"})
    deadlines = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5, slow_call=0.5, slow=slow)
    with reached("stdio") as params:
        async with connect(params, deadlines=deadlines, tool_deadlines={"write": 60}) as connection:
            result = await connection.call("work", {"seconds": 60}, deadline=60)
            assert (result.text, result.is_error) == ("The tool did not answer within 0.5 s.", True)
            assert (await connection.call("work", {"seconds": 0})).text == "done"
            assert (await connection.call("write", {"seconds": 1})).text == "done", "its own deadline stands"
            assert (await connection.call("echo", {"text": "still here"})).text == "still here"


async def test_slow_calls_that_end_early_say_nothing_of_their_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(owner, "_PING_SECONDS", 0.1)
    waiting = Path(__file__).parents[1] / "explore" / "state_server.py"
    params = StdioServer(command=sys.executable, args=("-I", "-S", str(waiting), "waiting", "nowhere"))
    deadlines = replace(PATIENT, slow_call=0.2, slow=frozenset({"get_length_later"}))
    async with connect(params, deadlines=deadlines) as connection:
        hurried = [connection.call("get_length_later", {"text": "four"}) for _ in range(3)]
        asked = connection.call("get_length", {"text": "four"})
        *late, answer = await asyncio.gather(*hurried, asked)
        assert all(result.is_error for result in late) and not answer.is_error and connection.alive


@pytest.mark.parametrize(
    ("scenarios", "seconds"),
    [
        (ScenarioConfig(), 5.0),
        (ScenarioConfig(file=Path("mine.jsonl")), math.inf),
        (ScenarioConfig(source="x"), math.inf),
    ],
)
def test_slow_tools_get_less_time_only_where_the_tasks_are_explored(scenarios: ScenarioConfig, seconds: float) -> None:
    deadlines = Deadlines.of_episodes(RunConfig(server="any", scenarios=scenarios))
    assert (deadlines.slow_call, deadlines.call) == (seconds, 30.0)
