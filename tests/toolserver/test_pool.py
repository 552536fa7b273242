"""Leases when things go wrong: cancellation, dead and silent servers, an early end."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_rl.config import Isolation
from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.connection import launch
from mcp_rl.toolserver.connection.connection import Connection
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = str(Path(__file__).with_name("stateful_server.py"))
STATE = StdioServer(command="{python}", args=("-S", SCRIPT))
SLOW = StdioServer(command="{python}", args=("-S", SCRIPT, "slow_start"))


def sessions_of(isolation: Isolation = "reset", *, instances: int = 1, call: float = 60.0) -> Sessions:
    reset = "reset" if isolation == "reset" else None
    server = ToolServer(
        "state", "A state.", {"stdio": STATE}, isolation, reset_tool=reset, instances=instances, sandbox="off"
    )
    return Sessions(server=server, deadlines=Deadlines(call=call))


async def ask(connection: Connection, tool: str, **arguments: Any) -> Any:
    return json.loads((await connection.call(tool, arguments)).text)


async def ended(pid: int) -> None:
    """Wait until a process has ended."""
    with anyio.fail_after(10):
        while runs(pid):  # noqa: ASYNC110
            await anyio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_an_episode_cancelled_while_waiting_frees_its_slot() -> None:
    async with sessions_of() as sessions:
        async with sessions.lease(STATE) as lease:
            first = await ask(lease.session.connection, "look")
            for _ in range(3):
                with anyio.move_on_after(0.02) as scope:
                    async with sessions.lease(STATE):
                        raise AssertionError("two episodes on one connection")
                assert scope.cancelled_caught
        with anyio.fail_after(10):
            async with sessions.lease(STATE) as lease:
                assert await ask(lease.session.connection, "look") == first


async def test_an_episode_cancelled_at_start_frees_its_slot() -> None:
    async with sessions_of() as sessions:
        with anyio.move_on_after(0.1) as scope:
            async with sessions.lease(SLOW):
                raise AssertionError("it was ready early")
        assert scope.cancelled_caught
        with anyio.fail_after(10):
            async with sessions.lease(SLOW) as lease:
                assert (await ask(lease.session.connection, "look"))["value"] == ""


async def test_a_hanging_reset_is_a_fault_and_the_server_replaced() -> None:
    async with sessions_of(call=1.0) as sessions:
        async with sessions.lease(STATE) as lease:
            first = await ask(lease.session.connection, "look")
        with pytest.raises(ServerFault, match="did not answer a call of reset within"):
            async with sessions.lease(STATE, {"hang": True}):
                raise AssertionError("an episode began")
        with anyio.move_on_after(0.05) as scope:
            async with sessions.lease(STATE, {"hang": True}):
                raise AssertionError("an episode began")
        assert scope.cancelled_caught
        async with sessions.lease(STATE, {"text": "begin"}) as lease:
            second = await ask(lease.session.connection, "look")
    assert second["value"] == "begin" and second["pid"] != first["pid"]
    await ended(first["pid"])
    await ended(second["pid"])


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_server_that_died_between_episodes_is_replaced(noticed: bool) -> None:
    async with sessions_of() as sessions:
        async with sessions.lease(STATE, {"text": "one"}) as lease:
            pid = (await ask(lease.session.connection, "look"))["pid"]
        os.kill(pid, signal.SIGKILL)
        if noticed:
            await ended(pid)
            await anyio.sleep(0.05)
        async with sessions.lease(STATE, {"text": "two"}) as lease:
            found = await ask(lease.session.connection, "look")
            assert found["value"] == "two" and found["pid"] != pid


@pytest.mark.parametrize("isolation", ["reset", "per-rollout"])
async def test_an_episode_never_goes_on_with_a_state_that_died(isolation: Isolation) -> None:
    """A restart loses the state even though all tools are annotated as repeatable."""
    async with sessions_of(isolation) as sessions:
        with pytest.raises(ServerFault, match="exited in the middle"):
            async with sessions.lease(STATE) as lease:
                connection = lease.session.connection
                pid = (await ask(connection, "write", text="mine"))["pid"]
                os.kill(pid, signal.SIGKILL)
                await ended(pid)
                raise AssertionError(f"it goes on with {await ask(connection, 'look')}")
        async with sessions.lease(STATE) as lease:
            assert await ask(lease.session.connection, "look")


@pytest.mark.parametrize("isolation", ["reset", "per-rollout", "shared"])
async def test_all_close_with_the_context_those_in_use_too(isolation: Isolation) -> None:
    sessions = sessions_of(isolation)
    await sessions.__aenter__()
    refused: list[str] = []
    leased, closed = anyio.Event(), anyio.Event()

    async def late() -> None:
        with pytest.raises(ServerError) as caught:
            async with sessions.lease(STATE):
                pass
        refused.append(str(caught.value))

    async def holds() -> None:
        async with sessions.lease(STATE) as lease:
            pid = (await ask(lease.session.connection, "look"))["pid"]
            leased.set()
            await closed.wait()
            with pytest.raises(ServerFault, match="is closed"):
                await ask(lease.session.connection, "look")
            await ended(pid)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(holds)
            await leased.wait()
            if isolation != "shared":
                tasks.start_soon(late)
                await anyio.sleep(0.02)
            await sessions.__aexit__(None, None, None)
            tasks.start_soon(late)
            await anyio.sleep(0.02)
            closed.set()
    assert refused and all("state" in error and "closed" in error for error in refused)


@pytest.mark.parametrize("isolation", ["reset", "shared"])
async def test_what_is_being_opened_when_all_closes_is_closed_too(isolation: Isolation) -> None:
    sessions = sessions_of(isolation)
    await sessions.__aenter__()

    async def opens() -> None:
        with pytest.raises(ServerError, match="closed"):
            async with sessions.lease(SLOW):
                raise AssertionError("it was opened after the end")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opens)
            await anyio.sleep(0.1)
            await sessions.__aexit__(None, None, None)


@pytest.mark.parametrize("isolation", ["reset", "shared"])
async def test_all_closes_in_a_cancelled_scope(isolation: Isolation) -> None:
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        async with (
            sessions_of(isolation, instances=2) as sessions,
            sessions.lease(STATE) as one,
            sessions.lease(STATE) as two,
        ):
            pids = [(await ask(lease.session.connection, "look"))["pid"] for lease in (one, two)]
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    for pid in pids:
        await ended(pid)


async def test_reopening_a_broken_shared_connection_leaks_nothing() -> None:
    def open_logs() -> int:
        return len(launch._open_logs)

    async with sessions_of("shared") as sessions:
        seen = set()
        for _ in range(3):
            connection = (await sessions.get(STATE)).connection
            pid = (await ask(connection, "look"))["pid"]
            seen.add((pid, open_logs()))
            connection._broken = "It broke for good."  # type: ignore[attr-defined]
        assert len({pid for pid, _ in seen}) == 3 and {count for _, count in seen} == {1}
