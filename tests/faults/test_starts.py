"""Servers that are wrong from the start, in their listing, or after a restart: each is a sentence, or does no harm."""

from pathlib import Path

import pytest
from hostile import PATIENT, TRANSPORTS, Outcome, hostile, over, played

from mcp_rl.errors import SchemaChanged, ServerError
from mcp_rl.toolserver.connection import Deadlines, connect
from mcp_rl.toolserver.schema import ToolSchemas

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


async def test_a_server_that_writes_megabytes_to_stderr_before_anything_else(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for transport in TRANSPORTS:
        log = tmp_path / f"{transport}.calls"
        async with connect(hostile(transport, log, mode="floods"), deadlines=PATIENT, log_dir=logs, name=transport):
            pass
        written = (logs / f"{transport}.stderr.log").read_text()
        assert len(written) < 2**20, "of 20 MB"
        assert "bytes left out]" in written and written.startswith("this is no message")
        assert written.rstrip().endswith("this is no message,")


async def test_a_connection_that_is_dropped_when_idle_is_opened_again(tmp_path: Path) -> None:
    found = await over(tmp_path, transports=["sse", "streamable-http"], mode="drops")
    for outcome in found.values():
        outcome.check()
        outcome.unharmed()


async def test_a_server_that_comes_back_with_other_tools_stops_the_run(tmp_path: Path) -> None:
    for outcome in (await over(tmp_path, mode="restarts", trouble="exit", tool="read")).values():
        outcome.check(repeated=("read",))
        assert outcome.kind is SchemaChanged, outcome
        assert "read" in outcome.stopped and "The server hostile" in outcome.stopped


@pytest.mark.parametrize(("mode", "count"), [("empty-schema", 3), ("thousand", 1003), ("pages", 6), ("strange", 5)])
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


async def test_a_server_that_cannot_be_started_is_an_error_at_once(tmp_path: Path) -> None:
    params = hostile("stdio", tmp_path / "calls").model_copy(update={"command": "no-such-program"})
    with pytest.raises(ServerError, match="no program 'no-such-program'"):
        async with connect(params):
            pass
    outcome = await played(params, tmp_path / "calls", redos=0)
    assert "no program 'no-such-program'" in outcome.stopped
