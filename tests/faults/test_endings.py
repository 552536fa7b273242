"""However we end, nothing of a server stays: no process, no temporary directory, no unbounded file."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hostile import PATIENT, TRANSPORTS, hostile, left_of

from mcp_rl.scenario import Launch, SseServer, StdioServer
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.sandbox.sandbox import Sandbox

CLIENT = """
import asyncio, sys
from pathlib import Path
from hostile import PATIENT, hostile
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.sandbox.sandbox import Sandbox

async def main():
    connecting = [
        connect(hostile(t, Path(sys.argv[1]), mode=mode), deadlines=PATIENT, sandbox=Sandbox("off", private=True))
        for t in ("stdio", "sse", "streamable-http") for mode in ("fine", "leaks")
    ]
    connections = await asyncio.gather(*(c.__aenter__() for c in connecting))
    waiting = [asyncio.create_task(c.call("read", {"n": 1})) for c in connections]
    await asyncio.gather(*waiting)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_killed_client_leaves_no_process_or_directory(tmp_path: Path) -> None:
    """The servers use all transports; half have children in their own sessions that ignore SIGTERM."""
    log, temporary = tmp_path / "calls", tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(log)], stdout=subprocess.PIPE, env=environment)
    try:
        assert client.stdout is not None and client.stdout.readline() == b"ready\n"
        family = psutil.Process(client.pid).children(recursive=True)
        assert len(family) >= 2 * 6 + 3 * 2, "a watchdog and a server each, and two children of every second one"
        assert len([path for path in temporary.iterdir() if path.is_dir()]) == 6
    finally:
        client.kill()
        client.wait()
    assert not left_of(log, 20)
    assert not psutil.wait_procs(family, timeout=10)[1]
    assert not [path for path in temporary.iterdir() if path.is_dir()]


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "server.py"
    path.write_text(text)
    return ("-I", "-S", str(path))


ANSWERS = """
import json, os, sys
print(os.getcwd(), *sys.argv[1:], os.environ.get("TMPDIR"), os.environ.get("PLACE"), file=sys.stderr, flush=True)
if "TMPDIR" in os.environ:
    open(os.path.join(os.environ["TMPDIR"], "left"), "w").write("something")
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "a", "version": "0"},
                  "tools": [{"name": "a", "inputSchema": {"type": "object"}}]}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


async def first_words(log: Path) -> list[str]:
    """Return the output of a server, which its watchdog passes on."""
    while not (words := log.read_text().split()):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    return words


async def test_a_private_server_has_its_own_temporary_directory(tmp_path: Path) -> None:
    args = (*script(tmp_path, ANSWERS), "{tmp}/data")
    params = StdioServer(command="{python}", args=args, cwd="{tmp}", env={"PLACE": "in {tmp}"})
    seen = []
    for name in ("one", "two"):
        async with connect(
            params, deadlines=PATIENT, log_dir=tmp_path / "logs", name=name, sandbox=Sandbox("off", private=True)
        ):
            words = await first_words(tmp_path / "logs" / f"{name}.stderr.log")
            folder = Path(words[0])
            assert words == [str(folder), f"{folder}/data", str(folder), "in", str(folder)]
            assert (folder / "left").exists() and folder.stat().st_mode & 0o777 == 0o700  # noqa: ASYNC240
        assert not folder.exists()  # noqa: ASYNC240
        seen.append(folder)
    assert seen[0] != seen[1]


async def test_a_shared_server_has_a_directory_only_if_it_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    args = script(tmp_path, ANSWERS)
    for name, params in (
        ("named", StdioServer(command="{python}", args=(*args, "{tmp}"))),
        ("plain", StdioServer(command="{python}", args=args)),
    ):
        async with connect(params, deadlines=PATIENT, log_dir=tmp_path / "logs", name=name):
            words = await first_words(tmp_path / "logs" / f"{name}.stderr.log")
            assert (words[-2] == str(tmp_path)) == (name == "plain")
        assert name == "plain" or not Path(words[1]).exists()  # noqa: ASYNC240


async def test_a_directory_goes_also_where_the_watchdog_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    params = hostile("stdio", log, mode="fine")
    others = set(psutil.Process().children())
    async with connect(
        params, deadlines=PATIENT, sandbox=Sandbox("off", private=True), log_dir=tmp_path / "logs"
    ) as connection:
        [watchdog] = set(psutil.Process().children()) - others
        folder = Path(watchdog.cmdline()[-len(params.args) - 4])  # type: ignore[union-attr]
        assert folder.is_dir()  # noqa: ASYNC240
        watchdog.kill()
        with contextlib.suppress(Exception):
            await connection.call("read", {"n": 1})
    assert not folder.exists() and not left_of(log)  # noqa: ASYNC240


async def test_a_server_that_reads_nothing_can_be_ended(tmp_path: Path) -> None:
    """Our messages fill the pipe, so that the end of the input does not reach the server."""
    text = ANSWERS.replace("flush=True)\n", "flush=True)\n", 1) + ""
    text = text.replace(
        "    asked = json.loads(line)\n",
        '    asked = json.loads(line)\n    if asked["method"] == "tools/call": __import__("time").sleep(3600)\n',
    )
    others = set(psutil.Process().children())
    async with connect(StdioServer(command="{python}", args=script(tmp_path, text)), deadlines=PATIENT) as connection:
        family = set(psutil.Process().children(recursive=True)) - others
        for _ in range(2):
            with pytest.raises(Exception, match="did not answer"):
                await connection.call("a", {"x": "x" * 300_000}, deadline=0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 30
    assert not psutil.wait_procs(family, timeout=10)[1]


async def test_the_log_of_a_server_that_was_long_is_put_aside(tmp_path: Path) -> None:
    old = tmp_path / "server.stderr.log"
    old.write_bytes(b"x" * (9 * 2**20))
    async with connect(StdioServer(command="{python}", args=script(tmp_path, ANSWERS)), log_dir=tmp_path):
        pass
    assert old.stat().st_size < 1000 and old.with_name(old.name + ".old").stat().st_size == 9 * 2**20


async def test_what_a_network_server_prints_is_in_its_log(tmp_path: Path) -> None:
    text = "import sys, time\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\nsys.exit(1)"
    params = SseServer(
        url="http://127.0.0.1:{port}/sse", launch=Launch(command="{python}", args=script(tmp_path, text))
    )
    with pytest.raises(Exception, match=r"exited at start. Its last lines: out \| err"):
        async with connect(params, deadlines=PATIENT):
            pass


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_cancelling_a_call_leaves_the_connection_to_the_others(tmp_path: Path, transport: str) -> None:
    log = tmp_path / "calls"
    async with connect(hostile(transport, log, trouble="never"), deadlines=PATIENT) as connection:
        waiting = asyncio.create_task(connection.call("write", {"n": 0}))
        while not log.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await connection.call("write", {"n": 1})).text == "2"
    assert not left_of(log)
