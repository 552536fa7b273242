"""Connections over real processes and sockets: normal use, and the outcome of each kind of misbehaviour."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.scenario import Launch, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines

ODD = Path(__file__).with_name("odd_server.py")
PATIENT = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5)
"""Seconds. Generous, since a busy machine takes ten times as long and must not fail a test."""
CALCULATOR = ("add", "subtract", "multiply", "divide", "power", "square_root", "evaluate")


def odd(mode, *args, **fields):
    return StdioServer(command="{python}", args=("-S", str(ODD), mode, *args), **fields)


def calculator(transport):
    return load_plugins().server("mcp_calculator").params(transport)


def wait_until_gone(processes, seconds=30.0):
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return alive


@pytest.fixture
def started():
    """The processes started by a test and their descendants, without those of earlier fixtures."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [p for p in psutil.Process().children(recursive=True) if p not in before]


@pytest.mark.parametrize("transport", ["stdio", "sse", "streamable-http"])
async def test_the_calculator_works_and_ends_over_every_transport(transport, started):
    async with connect(calculator(transport), deadlines=PATIENT) as connection:
        servers = started()
        assert tuple(tool.name for tool in connection.tools) == CALCULATOR
        assert connection.server_info["name"] == "mcp_calculator"
        assert connection.revision == ("2025-11-25" if transport == "sse" else "2026-07-28")
        assert all(tool.repeatable and tool.output_schema for tool in connection.tools)
        result = await connection.call("add", {"a": 0.1, "b": 0.2})
        assert (result.text, result.structured, result.is_error) == ("0.3", {"result": 0.3}, False)
        refused = await connection.call("divide", {"a": 1, "b": 0})
        assert (refused.text, refused.is_error) == ("Division by zero.", True)
        many = await asyncio.gather(*(connection.call("multiply", {"a": n, "b": n}) for n in range(40)))
        assert [result.text for result in many] == [str(n * n) for n in range(40)]
    assert servers
    assert not wait_until_gone(servers)


async def test_a_server_exiting_at_start_is_quoted():
    with pytest.raises(ServerError, match=r"odd exited at start.*the database is not there"):
        async with connect(odd("dies-at-start"), deadlines=PATIENT, name="odd"):
            pass


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
async def test_a_package_that_npx_did_not_install_to_the_end_is_named(tmp_path):
    script = tmp_path / "_npx" / "0123456789abcdef" / "node_modules" / "half" / "index.js"
    script.parent.mkdir(parents=True)
    script.write_text("require('the-other-half')")
    with pytest.raises(ServerError, match=rf"npx has not installed all of it: remove {script.parents[2]} and start"):
        async with connect(StdioServer(command="node", args=(str(script),)), deadlines=PATIENT, name="half"):
            pass


async def test_a_server_for_the_first_version_of_the_sdk_is_told_what_it_needs():
    program = "class Server: pass\nServer().list_resources()"
    with pytest.raises(ServerError, match=r"written for version 1 of the Python package mcp: install 'mcp<2'"):
        async with connect(StdioServer(command="{python}", args=("-c", program)), deadlines=PATIENT, name="old"):
            pass


async def test_what_a_program_prints_instead_of_messages_is_quoted():
    program = "import os; print('Usage: tool COMMAND'); print('  serve ' + os.environ['TOOL_KEY'])"
    params = StdioServer(command="{python}", args=("-c", program), env={"TOOL_KEY": "s3cret-0f-the-t00l"})
    with pytest.raises(
        ServerError, match=r"exited at start\. Its last lines: Usage: tool COMMAND \| serve \$\{TOOL_KEY\}"
    ):
        async with connect(params, deadlines=PATIENT):
            pass


async def test_a_network_server_exiting_at_start_is_quoted():
    params = SseServer(
        url="http://127.0.0.1:{port}/sse", launch=Launch(command="{python}", args=(str(ODD), "dies-at-start"))
    )
    with pytest.raises(ServerError, match=r"exited at start.*the database is not there"):
        async with connect(params, deadlines=PATIENT):
            pass


async def test_a_network_server_that_never_listens_is_ended(started):
    params = SseServer(url="http://127.0.0.1:{port}/sse", launch=Launch(command="{python}", args=(str(ODD), "mute")))
    with pytest.raises(ServerError, match=r"accepted no connection at http://127.0.0.1:\d+/sse within 0.5 s"):
        async with connect(params, deadlines=Deadlines(spawn=0.5)):
            pass
    assert not started()


@pytest.mark.parametrize(("mode", "place"), [("over-http", "8123/mcp"), ("over-sse", "3000/sse")])
async def test_a_server_that_listens_instead_of_talking_over_stdio_is_told_apart(mode, place):
    with pytest.raises(
        ServerError, match=rf"within \d+ s\. It listens at an address.*--server http://127.0.0.1:{place},"
    ):
        async with connect(odd(mode), deadlines=Deadlines(initialize=3), name="odd"):
            pass


async def test_a_server_that_never_answers_is_an_error_in_time(started):
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"mute did not answer within 0.5 s"):
        async with connect(odd("mute"), deadlines=Deadlines(initialize=0.5), name="mute"):
            pass
    assert time.monotonic() - began < 20
    assert not started()


async def test_a_server_without_tools_is_an_error():
    with pytest.raises(ServerError, match="lists no tools"):
        async with connect(odd("no-tools"), deadlines=PATIENT):
            pass


async def test_a_program_that_is_not_there_is_an_error_that_names_it():
    with pytest.raises(ServerError, match="the program 'no-such-program' is not on the PATH"):
        async with connect(StdioServer(command="no-such-program")):
            pass


async def test_a_path_to_no_program_is_an_error_that_does_not_speak_of_the_path_variable():
    with pytest.raises(ServerError, match=r"the program '\./no-such-program' does not exist\.$"):
        async with connect(StdioServer(command="./no-such-program")):
            pass


async def test_nobody_at_a_url_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for params in (SseServer(url=f"{url}/sse"), StreamableHttpServer(url=f"{url}/mcp")):
            with pytest.raises(ServerError, match=f"cannot be used at {url}"):
                async with connect(params, deadlines=PATIENT):
                    pass


async def test_an_unset_variable_is_named():
    for params in (
        odd("fine", env={"TOKEN": "${NOT_SET_ANYWHERE}"}),
        SseServer(url="http://127.0.0.1:1/sse", headers={"Authorization": "Bearer ${NOT_SET_ANYWHERE}"}),
    ):
        with pytest.raises(ServerError, match="NOT_SET_ANYWHERE, which is not set"):
            async with connect(params):
                pass


async def test_a_server_sees_only_its_minimal_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("AN_API_KEY", "s3cret")
    monkeypatch.setenv("UNRELATED", "private")
    params = odd("environment", env={"GIVEN": "key=${AN_API_KEY}"})
    async with connect(params, deadlines=PATIENT, log_dir=tmp_path, name="odd"):
        pass
    seen = json.loads((tmp_path / "odd.stderr.log").read_text())
    assert seen["GIVEN"] == "key=${AN_API_KEY}", "it was given the value; its log does not hold it"
    assert seen["PATH"] == os.environ["PATH"]
    assert not {"AN_API_KEY", "UNRELATED"} & seen.keys()


async def test_a_bad_tool_alone_is_left_out_with_a_warning():
    async with connect(odd("bad-schema"), deadlines=PATIENT) as connection:
        assert [tool.name for tool in connection.tools] == ["echo"]
        assert len(connection.warnings) == 3
        assert "'bad' was left out: its inputSchema is empty" in connection.warnings[0]


async def test_all_pages_are_listed():
    async with connect(odd("pages"), deadlines=PATIENT) as connection:
        assert [tool.name for tool in connection.tools] == ["echo-0", "echo-1", "echo-2", "echo-3"]


async def test_a_listing_that_repeats_its_page_ends():
    async with connect(odd("endless-pages"), deadlines=PATIENT) as connection:
        assert [tool.name for tool in connection.tools] == ["echo"]


async def test_lines_that_are_no_json_rpc_do_no_harm(capfd):
    async with connect(odd("chatty"), deadlines=PATIENT) as connection:
        assert (await connection.call("echo", {"text": "hello"})).text == "hello"
    assert capfd.readouterr().err == ""


async def test_a_missed_deadline_leaves_the_connection_usable():
    async with connect(odd("fine"), deadlines=PATIENT) as connection:
        started = time.monotonic()
        with pytest.raises(ServerFault, match=r"did not answer a call of echo within 0.3 s") as fault:
            await connection.call("echo", {"text": "never"}, deadline=0.3)
        assert fault.value.delivered is None
        assert time.monotonic() - started < 20
        assert (await connection.call("echo", {"text": "still here"})).text == "still here"


async def test_an_answer_that_comes_too_late_reaches_no_other_call():
    async with connect(odd("fine"), deadlines=PATIENT) as connection:
        with pytest.raises(ServerFault):
            await connection.call("echo", {"text": "sleep 0.5"}, deadline=0.2)
        assert (await connection.call("echo", {"text": "next"})).text == "next"


async def test_a_reported_error_is_a_result_for_the_model():
    async with connect(odd("fine"), deadlines=PATIENT) as connection:
        result = await connection.call("broken", {})
        assert (result.text, result.is_error) == ("there is no such tool", True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "half a pair: \ud800"])
async def test_arguments_that_are_not_json_are_an_error_result(value):
    async with connect(odd("fine"), deadlines=PATIENT) as connection:
        assert (await connection.call("echo", {"text": value})).is_error
        assert (await connection.call("echo", {"text": "fine"})).text == "fine"


async def test_a_stateful_server_that_exits_is_not_restarted():
    async with connect(odd("fine"), deadlines=PATIENT, name="odd") as connection:
        other = asyncio.create_task(connection.call("write", {"text": "never"}))
        await asyncio.sleep(0.1)
        with pytest.raises(ServerFault, match=r"odd exited in the middle.*I was told to go") as fault:
            await connection.call("write", {"text": "exit"})
        assert fault.value.delivered is None
        with pytest.raises(ServerFault):
            await other
        assert not connection.alive
        with pytest.raises(ServerFault, match="exited in the middle") as later:
            await connection.call("echo", {"text": "hello"})
        assert later.value.delivered is False


async def test_a_read_only_server_that_exits_is_restarted(tmp_path):
    async with connect(odd("dies-once", str(tmp_path / "died")), deadlines=PATIENT) as connection:
        assert (await connection.call("echo", {"text": "hello"})).text == "hello"
        assert (tmp_path / "died").exists()


async def test_a_call_that_kills_its_server_is_repeated_only_once():
    async with connect(odd("read-only"), deadlines=PATIENT) as connection:
        with pytest.raises(ServerFault, match="was lost in a call of echo"):
            await connection.call("echo", {"text": "exit"})
        assert (await connection.call("echo", {"text": "after"})).text == "after"


async def test_a_caller_that_gives_up_takes_nobody_along():
    async with connect(odd("fine"), deadlines=PATIENT) as connection:
        impatient = asyncio.create_task(connection.call("echo", {"text": "never"}))
        await asyncio.sleep(0.1)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert (await connection.call("echo", {"text": "fine"})).text == "fine"


async def test_cancelling_while_the_server_starts_leaves_no_process(started):
    opening = asyncio.create_task(connect(odd("mute"), deadlines=PATIENT).__aenter__())
    while not started():  # noqa: ASYNC110 - nothing tells of a new process
        await asyncio.sleep(0.02)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not wait_until_gone(started())


async def test_connections_may_close_in_any_order_and_in_other_tasks():
    first, second = connect(odd("fine"), deadlines=PATIENT), connect(odd("fine"), deadlines=PATIENT)
    one, two = await first.__aenter__(), await second.__aenter__()
    await asyncio.create_task(first.__aexit__(None, None, None))
    assert not one.alive
    assert (await two.call("echo", {"text": "I live"})).text == "I live"
    await asyncio.create_task(second.__aexit__(None, None, None))


async def test_a_call_in_flight_when_the_connection_closes_is_a_fault():
    async with connect(odd("fine"), deadlines=PATIENT) as connection:
        call = asyncio.create_task(connection.call("echo", {"text": "never"}))
        await asyncio.sleep(0.1)
    with pytest.raises(ServerFault, match="is closed"):
        await call


async def test_a_server_that_ignores_signals_is_ended_with_children(started):
    async with connect(odd("stubborn"), deadlines=PATIENT):
        processes = started()
        assert len(processes) == 3  # the watchdog, the server, and its child in another session
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert not wait_until_gone(processes)


async def test_two_connections_of_one_name_write_to_logs_of_their_own(tmp_path):
    for _ in range(2):
        async with (
            connect(odd("environment"), deadlines=PATIENT, log_dir=tmp_path, name="a/b"),
            connect(odd("environment"), deadlines=PATIENT, log_dir=tmp_path, name="a/b"),
        ):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-b.2.stderr.log", "a-b.stderr.log"]


def run_calculator(port, transport):
    script = bundled_root() / "servers/python/mcp_calculator/server.py"
    process = subprocess.Popen([sys.executable, str(script), "--transport", transport, "--port", str(port)])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.02)
    raise AssertionError("the calculator did not start")


@pytest.mark.parametrize(("transport", "path"), [("sse", "sse"), ("streamable-http", "mcp")])
async def test_a_remote_server_may_restart_between_calls(transport, path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kind = SseServer if transport == "sse" else StreamableHttpServer
    process = run_calculator(port, transport)
    try:
        async with connect(kind(url=f"http://127.0.0.1:{port}/{path}"), deadlines=PATIENT) as connection:
            assert (await connection.call("add", {"a": 1, "b": 2})).text == "3"
            process.kill()
            process.wait()
            with pytest.raises(ServerFault):
                await connection.call("add", {"a": 1, "b": 2})
            assert connection.alive
            process = run_calculator(port, transport)
            results = await asyncio.gather(*(connection.call("add", {"a": 1, "b": n}) for n in range(5)))
            assert [result.text for result in results] == ["1", "2", "3", "4", "5"]
    finally:
        process.kill()
        process.wait()


HOLDER = """
import asyncio, sys
from mcp_rl.scenario import ServerParams
from mcp_rl.toolserver.connection.connection import connect
from pydantic import TypeAdapter

async def main():
    async with connect(TypeAdapter(ServerParams).validate_json(sys.argv[1])):
        print("ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("params", [odd("stubborn"), calculator("sse")], ids=["stdio", "sse"])
def test_killing_the_client_leaves_no_process(params):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, params.model_dump_json()], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        left_behind = psutil.Process(holder.pid).children(recursive=True)
        assert len(left_behind) >= 2
        holder.send_signal(signal.SIGKILL)
    assert not wait_until_gone(left_behind)


def test_killing_the_watchdog_ends_its_server():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, odd("fine").model_dump_json()], stdout=subprocess.PIPE, text=True
    )
    with process as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        watchdog, server = psutil.Process(holder.pid).children(recursive=True)
        watchdog.kill()
        assert not wait_until_gone([server])
        holder.kill()
