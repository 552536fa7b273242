"""Servers that misbehave at their start, in their listing, or after a restart: an error in one sentence, or no harm."""

import asyncio
import random
import time
import weakref
from pathlib import Path

import pytest
from hostile import PATIENT, TRANSPORTS, Outcome, hostile, over, played

from mcp_rl.errors import SchemaChanged, ServerError, ServerFault
from mcp_rl.explore.sample import Sampler
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.system.collector import collector_paused
from mcp_rl.toolserver.connection import raw_session
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.tools.schema import ToolSchemas

HASTY = Deadlines(spawn=60, initialize=1, list=60, call=60, close=5)


def stopped(outcome: Outcome, words: str) -> None:
    outcome.check()
    assert outcome.group is None and words in outcome.stopped, outcome


async def test_a_server_that_dies_at_start(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, mode="dies", redos=0)).values():
        stopped(outcome, "The server hostile exited at start. Its last lines: first line | the database is not there")
        assert not outcome.calls


async def test_a_server_that_hangs_in_the_handshake(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, mode="mute", redos=0, deadlines=HASTY)).values():
        stopped(outcome, "The server hostile did not answer within 1 s.")
        assert outcome.seconds < 60


async def test_a_server_that_does_not_list_its_tools(tmp_path: Path) -> None:
    hasty = Deadlines(spawn=60, initialize=60, list=1, call=60, close=5)
    for outcome in (await over(tmp_path, mode="mute-listing", redos=0, deadlines=hasty)).values():
        stopped(outcome, "The server hostile did not list its tools within 1 s.")


async def test_requests_by_a_server_that_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_session, "UNREAD_SECONDS", 1.0)
    [outcome] = (await over(tmp_path, transports=["stdio"], mode="requests", redos=0)).values()
    stopped(outcome, "The server hostile cannot be used: it sent requests and left 256 answers unread.")
    assert outcome.seconds < 30


async def test_a_server_may_flood_stderr_at_start(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for transport in TRANSPORTS:
        log = tmp_path / f"{transport}.calls"
        async with connect(hostile(transport, log, mode="floods"), deadlines=PATIENT, log_dir=logs, name=transport):
            pass
        written = (logs / f"{transport}.stderr.log").read_text()
        assert len(written) < 2**20, "of 20 MB"
        assert "bytes left out]" in written and written.startswith("this is no message")
        assert written.rstrip().endswith("this is no message,")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_calls_that_time_out_while_a_server_hangs_in_its_restart_leave_nothing_behind(
    transport: str, tmp_path: Path
) -> None:
    class Episode:
        pass

    episodes = weakref.WeakSet[Episode]()
    params = hostile(transport, tmp_path / "calls", mode="mute-later", trouble="exit")

    async def play(n: int, seconds: float) -> str:
        episode = Episode()
        episodes.add(episode)
        try:
            return (await connection.call("read", {"n": n}, deadline=seconds)).text
        except ServerFault as fault:
            return str(fault)

    async with connect(params, deadlines=PATIENT, name="hostile") as connection:
        assert await play(1, 60) == "2"
        assert "did not answer" in await play(0, 5)
        with collector_paused():
            for _ in range(3):
                found = await asyncio.gather(*(play(2, 0.2) for _ in range(50)))
                assert set(found) == {"The server hostile did not answer a call of read within 0.2 s."}
            assert not episodes


async def test_a_connection_that_is_dropped_when_idle_is_opened_again(tmp_path: Path) -> None:
    found = await over(tmp_path, transports=["sse", "streamable-http"], mode="drops", after=".dropped")
    for outcome in found.values():
        outcome.check()
        outcome.unharmed()


async def test_a_server_back_with_other_tools_stops_the_run(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, mode="restarts", trouble="exit", tool="read")).values():
        outcome.check(repeated=("read",))
        assert outcome.kind is SchemaChanged, outcome
        assert "read" in outcome.stopped and "The server hostile" in outcome.stopped


@pytest.mark.parametrize(
    ("mode", "count"),
    [("empty-schema", 3), ("thousand", 1003), ("pages", 6), ("strange", 5)],
)
async def test_listings_that_are_odd(tmp_path: Path, mode: str, count: int) -> None:
    for outcome in (await over(tmp_path, mode=mode)).values():
        outcome.check()
        if mode != "strange":
            outcome.unharmed()
    log = tmp_path / "listed.calls"
    async with connect(hostile("stdio", log, mode=mode), deadlines=PATIENT) as connection:
        assert len(connection.tools) == count, connection.warnings
        schemas = ToolSchemas(connection.tools)
        names = [entry["function"]["name"] for entry in schemas.openai]
        assert len(set(names)) == len(names) and all(name.isascii() and len(name) <= 64 for name in names)
        assert (await connection.call("read", {"n": 3})).text.startswith("6")
        if mode == "empty-schema":
            assert "'bad' was left out" in connection.warnings[0]
        if mode == "strange":
            assert all(ord(c) >= 32 for c in connection.server_info["name"]) or "\x00" in connection.server_info["name"]


async def test_schemas_and_cursors_beyond_the_budgets(tmp_path: Path) -> None:
    for mode, count in (("costly", 11), ("cursors", 3)):
        log = tmp_path / f"{mode}.calls"
        began = time.process_time()
        async with connect(hostile("stdio", log, mode=mode), deadlines=PATIENT) as connection:
            assert len(connection.tools) == count
            assert ("too long" in str(connection.warnings)) == (mode == "cursors")
            schemas = ToolSchemas(connection.tools)
            for tool in connection.tools:
                schemas.validate(schemas.to_openai[tool.name], {"n": 1})
                Sampler(tool.name, tool.input_schema, ValuePool()).draw(random.Random(0))
        assert time.process_time() - began < 30


async def test_a_server_that_cannot_be_started_is_an_error_at_once(tmp_path: Path) -> None:
    params = hostile("stdio", tmp_path / "calls").model_copy(update={"command": "no-such-program"})
    with pytest.raises(ServerError, match="the program 'no-such-program' is not on the PATH"):
        async with connect(params):
            pass
    outcome = await played(params, tmp_path / "calls", redos=0)
    assert "the program 'no-such-program' is not on the PATH" in outcome.stopped
