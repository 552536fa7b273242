"""A slow server answers equal calls once or twice; the episodes that make them later get the answer from memory."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ServerFault
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.cassette.library import BEGINNING
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.remembered import (
    ASKED_AGAIN,
    ERROR_ASKED_AGAIN,
    TRUSTED,
    CallInState,
    Memory,
    worth_remembering,
)
from mcp_rl.toolserver.state import Kept, MeasuredState
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.results import ToolResult

SERVER = str(Path(__file__).with_name("tallied_server.py"))


class Tallied:
    """Sessions on a server, and the calls that reached it."""

    def __init__(self, sessions: Sessions, params: StdioServer, log: Path) -> None:
        self._sessions, self._params, self._log = sessions, params, log

    @property
    def calls(self) -> list[str]:
        return [line.split()[0] for line in self._log.read_text().splitlines()] if self._log.exists() else []

    @property
    def processes(self) -> int:
        return len({line.split()[1] for line in self._log.read_text().splitlines()})

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[Link]:
        async with self._sessions.episode(self._params) as lease:
            yield lease.session.connection

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Link]:
        async with self._sessions.lease(self._params) as lease:
            yield lease.session.connection

    async def prove(self, *calls: tuple[str, dict[str, Any]]) -> list[str]:
        """Make calls as the proofs of a task do; return the answers."""
        async with self.lease() as link:
            return [(await link.call(tool, arguments)).text for tool, arguments in calls]

    async def play(self, *calls: tuple[str, dict[str, Any]]) -> list[str]:
        """Make calls in an episode of their own; return the answers."""
        async with self.episode() as link:
            return [(await link.call(tool, arguments)).text for tool, arguments in calls]


@asynccontextmanager
async def tallied(folder: Path, kept: Kept, *, seconds: float = 1.0, remember: bool = True) -> AsyncIterator[Tallied]:
    log = folder / "calls"
    params = StdioServer(command=sys.executable, args=("-S", SERVER, str(log)))
    measured = MeasuredState(kept=kept, listing="", reading=("total",), call_seconds=seconds)
    server = ToolServer("tallied", "A tally.", {"stdio": params}, sandbox="off").with_state(measured)
    settings = ToolsConfig(remember=remember)
    async with Sessions(server=server, tools=settings, deadlines=Deadlines(call=1.5)) as sessions:
        yield Tallied(sessions, params, log)


def add(number: int) -> tuple[str, dict[str, Any]]:
    return "add", {"number": number}


async def test_a_call_answered_twice_alike_is_not_made_again(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        assert [await server.play(add(2), add(3)) for _ in range(6)] == [["2", "5"]] * 6
        assert server.calls == ["add"] * 4 and server.processes == 2


@pytest.mark.parametrize(
    ("kept", "calls"), [("process", [add(2), add(3), ("total", {})]), ("nothing", [("total", {})])]
)
async def test_what_was_proven_twice_is_not_asked_when_it_is_played(
    tmp_path: Path, kept: Kept, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    async with tallied(tmp_path, kept) as server:
        proven = [await server.prove(*calls) for _ in range(3)]
        assert server.calls == [name for name, _ in calls] * 3, "a proof makes every call"
        assert await server.play(*calls) == proven[0] == proven[2]
        assert len(server.calls) == 3 * len(calls)
        if kept == "process":
            assert await server.play(add(3)) == ["3"] and len(server.calls) == 3 * len(calls) + 1, "not as before"


async def test_nothing_is_learned_from_changes_at_one_time(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        for _ in range(2):
            async with server.lease() as link, anyio.create_task_group() as tasks:
                for number in (2, 3):
                    tasks.start_soon(link.call, *add(number))
        assert await server.play(add(2), add(3)) == ["2", "5"]
        assert server.calls == ["add"] * 6


async def test_equal_calls_at_one_time_wait_for_the_first_two(tmp_path: Path) -> None:
    async with tallied(tmp_path, "nothing") as server:
        answers: list[list[str]] = []

        async def play() -> None:
            answers.append(await server.play(("total", {})))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(play)
        assert answers == [["0"]] * 20 and server.calls == ["total"] * 2


async def test_different_calls_do_not_wait_in_the_server_until_they_are_too_late(tmp_path: Path) -> None:
    async with tallied(tmp_path, "nothing", seconds=4.0) as server:
        async with anyio.create_task_group() as tasks:
            for number in range(15):
                tasks.start_soon(server.play, ("nap", {"number": number}))
        assert server.calls == ["nap"] * 15


async def test_an_unknown_call_is_made_in_the_state_that_the_known_ones_led_to(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        for _ in range(2):
            await server.play(add(2), add(3))
        before = len(server.calls)
        assert await server.play(add(2), add(3), ("total", {}), add(10)) == ["2", "5", "5", "15"]
        assert server.calls[before:] == ["add", "add", "total", "add"]
        assert await server.play(add(3), add(2)) == ["3", "5"], "other calls before it"


async def test_calls_that_leave_no_trace_do_not_count_as_the_state(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        for _ in range(2):
            await server.play(add(2))
        before = len(server.calls)
        for _ in range(2):
            await server.play(("total", {}), add(2))
        assert server.calls[before:] == ["total"] * 2


async def test_what_differs_is_never_remembered(tmp_path: Path) -> None:
    async with tallied(tmp_path, "nothing") as server:
        assert [await server.play(("count", {})) for _ in range(5)] == [[str(n)] for n in range(1, 6)]


async def test_errors_of_a_shared_server_are_not_remembered(tmp_path: Path) -> None:
    async with tallied(tmp_path, "nothing") as server:
        for _ in range(5):
            await server.play(("fail", {}))
        assert server.calls == ["fail"] * 5


async def test_errors_of_an_episodes_own_process_are_remembered_for_a_while(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        for _ in range(2 + ERROR_ASKED_AGAIN):
            assert await server.play(add(2), ("fail", {})) == ["2", "2"]
        assert server.calls == ["add", "fail"] * 2
        for _ in range(3):
            await server.play(add(2), ("fail", {}))
        assert server.calls == ["add", "fail"] * 3, "asked again, which its process has to catch up for"


async def test_an_error_that_passes_does_not_make_a_tool_vary() -> None:
    memory, call = Memory(0.5, 30.0, errors=True), CallInState(BEGINNING, "say", "{}")
    refused, well = ToolResult("busy", is_error=True), ToolResult("well")
    for answer in (refused, refused):
        assert await memory.find(call) is None
        memory.learn(call, answer, awaited=True)
    for _ in range(ERROR_ASKED_AGAIN):
        assert await memory.find(call) == refused
    for _ in range(2):
        assert await memory.find(call) is None
        memory.learn(call, well, awaited=True)
    assert await memory.find(call) == well


async def test_nobody_waits_for_answers_that_are_not_remembered() -> None:
    memory, call = Memory(0.5, 30.0), CallInState(None, "fail", "{}")
    assert [await memory.find(call), await memory.find(call)] == [None, None]
    found: list[object] = []

    async def ask() -> None:
        found.append(await memory.find(call))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert found == [], "they wait for the first two"
            memory.learn(call, ToolResult("no", is_error=True), awaited=True)
    assert found == [None] * 6


async def test_the_server_is_asked_again_now_and_then_and_has_the_last_word(tmp_path: Path) -> None:
    async with tallied(tmp_path, "nothing") as server:
        for _ in range(2 + ASKED_AGAIN + 1):
            assert await server.play(("total", {})) == ["0"]
        assert server.calls == ["total"] * 3
        async with server.episode() as link:
            await link.call("add", {"number": 7})  # measured wrongly: it does keep something
        for _ in range(2 * ASKED_AGAIN):
            assert await server.play(("total", {})) == ["0"], "after twice as many uses as the first time"
        assert await server.play(("total", {})) == ["7"]
        before = len(server.calls)
        for _ in range(3):
            await server.play(("total", {}))
        assert server.calls[before:] == ["total"] * 3


async def test_a_tool_that_always_answers_alike_need_not_say_it_twice(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        for number in range(TRUSTED):
            for _ in range(2):
                await server.play(add(number))
        before = len(server.calls)
        for _ in range(3):
            assert await server.play(add(100)) == ["100"]
            await server.play(("total", {}))
        assert server.calls[before:] == ["add", "total", "total"], "another tool has yet to show it"


async def test_calls_at_one_time_wait_until_a_tool_is_trusted(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        for number in range(2 * TRUSTED):
            await server.prove(add(number))
        before = len(server.calls)
        async with anyio.create_task_group() as tasks:
            for number in range(2 * TRUSTED):
                tasks.start_soon(server.play, add(number))
        assert server.calls[before:] == ["add"] * TRUSTED


async def test_calls_that_wait_for_a_tool_to_be_trusted_are_made_if_it_is_not() -> None:
    memory = Memory(0.5, 30.0)
    calls = [CallInState(None, "say", str(number)) for number in range(TRUSTED + 1)]
    for call in calls:
        memory.learn(call, ToolResult("well"), awaited=False)
    assert [await memory.find(call) for call in calls[:-1]] == [None] * TRUSTED
    found: list[object] = []

    async def ask() -> None:
        found.append(await memory.find(calls[-1]))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert found == [], "it waits for the others"
            memory.learn(calls[0], None, awaited=True)
    assert found == [None], "one of which failed"


async def test_an_episode_that_was_told_something_else_is_a_fault(tmp_path: Path) -> None:
    async with tallied(tmp_path, "process") as server:
        log = tmp_path / "calls"
        told: tuple[str, dict[str, Any]] = ("count", {})
        for _ in range(2):
            assert await server.play(told) == ["1"]
            log.unlink()
        log.write_text("another 1\n")
        async with server.episode() as link:
            assert (await link.call(*told)).text == "1"
            with pytest.raises(ServerFault, match="count answered differently"):
                await link.call("add", {"number": 5})


@pytest.mark.parametrize(
    ("kept", "seconds", "remember"), [("process", 0.004, True), ("unsure", 1.0, True), ("process", 1.0, False)]
)
async def test_every_call_is_made_where_that_is_quick_or_unsure_or_asked_for(
    tmp_path: Path, kept: Kept, seconds: float, remember: bool
) -> None:
    async with tallied(tmp_path, kept, seconds=seconds, remember=remember) as server:
        for _ in range(4):
            await server.play(add(2))
        assert server.calls == ["add"] * 4


def test_the_start_of_a_process_counts_where_each_episode_has_one() -> None:
    def state(kept: Kept) -> MeasuredState:
        return MeasuredState(kept=kept, listing="", start_seconds=0.5, call_seconds=0.001)

    assert worth_remembering(state("process"), ToolsConfig())
    assert not any(worth_remembering(state(kept), ToolsConfig()) for kept in ("files", "nothing"))
