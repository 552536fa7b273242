"""Servers in a sandbox: what they write stays in a layer, which can be thrown away while they run."""

import hashlib
import os
import signal
import socket
import sys
import tarfile
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import PluginError, ServerError, ServerFault
from mcp_rl.explore.check.caller import lives
from mcp_rl.scenario import Launch, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.connection.connection import Connection, connect
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.sandbox.layer import Layer
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.sandbox.sandbox import Sandbox
from mcp_rl.toolserver.tool_server import ToolServer

SERVER = str(Path(__file__).with_name("files_server.py"))
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}"),
]


def params(folder: Path, *more: str, cwd: Path | None = None) -> StdioServer:
    return StdioServer(command=sys.executable, args=(SERVER, str(folder), *more), cwd=str(cwd) if cwd else None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "a.txt").write_text("the user's")
    (folder / "below").mkdir()
    (folder / "below" / "b.txt").write_text("the user's too")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(folder: Path) -> AsyncIterator[Connection]:
    """A server whose working directory is the user's folder, relative paths and all."""
    async with connect(params(Path(), cwd=folder), sandbox=Sandbox()) as connection:
        yield connection


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def fresh(connection: Connection, folder: Path) -> AsyncIterator[None]:
    before = digest(folder)
    yield
    if connection.alive:
        await layer(connection).throw_away()
    assert digest(folder) == before


def digest(folder: Path) -> str:
    """Return a hash of all that a folder holds."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found.update(repr((str(path), status.st_mode, status.st_uid, status.st_mtime_ns)).encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


def layer(connection: Connection) -> Layer:
    assert connection.layer is not None
    return connection.layer


def running(*words: str) -> list[psutil.Process]:
    """Return the processes with this command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline() == list(words):
                found.append(process)
    return found


def appearing(*words: str) -> list[psutil.Process]:
    """Return the processes with this command line as soon as there are any: a fork may still be its parent's copy."""
    deadline = time.monotonic() + 10
    while not (found := running(*words)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


async def ask(connection: Connection, tool: str, **arguments: str) -> str:
    return (await connection.call(tool, dict(arguments))).text


async def test_a_server_sees_the_users_files_and_changes_none(connection: Connection, folder: Path) -> None:
    assert await ask(connection, "names") == "a.txt below below/b.txt"
    assert await ask(connection, "write", name="a.txt", text="the server's") == "written"
    assert await ask(connection, "delete", name="below/b.txt") == "deleted"
    assert await ask(connection, "delete", name="below") == "deleted"
    assert await ask(connection, "write", name="below/c.txt", text="in a new folder") == "written"
    assert await ask(connection, "names") == "a.txt below below/c.txt"
    assert await ask(connection, "run", command=f"cat {folder}/a.txt") == "the server's"
    assert (folder / "a.txt").read_text() == "the user's"


async def test_what_was_written_is_thrown_away_while_the_server_runs(connection: Connection, folder: Path) -> None:
    before = await ask(connection, "run", command="echo $PPID")
    for _ in range(3):
        await ask(connection, "write", name="a.txt", text="changed")
        await ask(connection, "write", name="new/deep/c.txt", text="new")
        await ask(connection, "delete", name="below/b.txt")
        assert await layer(connection).changed()
        await layer(connection).throw_away()
        assert not await layer(connection).changed()
        assert await ask(connection, "names") == "a.txt below below/b.txt"
        assert await ask(connection, "read", name="a.txt") == "the user's"
        assert await ask(connection, "run", command=f"cat {folder}/below/b.txt") == "the user's too"
    assert await ask(connection, "run", command="echo $PPID") == before


WATCH = (
    "import ctypes, sys, time; libc = ctypes.CDLL(None); "
    "libc.inotify_add_watch(libc.inotify_init(), sys.argv[1].encode(), 256); time.sleep(60)"
)


@pytest.mark.parametrize(
    "holds",
    [
        "sleep 60 < {}/below > /dev/null 2>&1 & echo $!",
        f"{sys.executable} -c '{WATCH}' {{}}/below > /dev/null 2>&1 & echo $!; "
        "until grep -qs inotify /proc/$!/fdinfo/*; do sleep 0.02; done",
    ],
    ids=["open", "watched"],
)
async def test_a_directory_that_a_process_holds_takes_new_files_after_all_was_thrown_away(
    connection: Connection, folder: Path, holds: str
) -> None:
    """As where the libraries of a server lie beside its data, or where it watches its files for changes."""
    holder = await ask(connection, "run", command=f"cd /; {holds.format(folder)}")
    for _ in range(2):
        assert await ask(connection, "write", name="below/c.txt", text="new") == "written"
        await ask(connection, "run", command="chmod 700 below")
        await layer(connection).throw_away()
        assert await ask(connection, "names") == "a.txt below below/b.txt" and not await layer(connection).changed()
    await ask(connection, "run", command=f"kill {holder}")


async def test_reading_leaves_the_layer_unchanged_and_undoing_does_too(connection: Connection) -> None:
    await ask(connection, "read", name="below/b.txt")
    assert not await layer(connection).changed()
    await ask(connection, "write", name="below/x.txt", text="for a moment")
    await ask(connection, "delete", name="below/x.txt")
    assert not await layer(connection).changed()
    await ask(connection, "run", command="chmod 700 below")
    assert await layer(connection).changed()


async def test_what_was_written_up_to_a_mark_stays(folder: Path) -> None:
    async with connect(params(folder, "made.txt"), sandbox=Sandbox()) as own:
        await layer(own).begin()
        assert not await layer(own).changed()
        assert await ask(own, "read", name="made.txt") == "made at the start"
        await ask(own, "write", name="made.txt", text="made at the START")
        await ask(own, "write", name="other.txt", text="other")
        assert await layer(own).changed()
        await layer(own).begin()
        assert await ask(own, "names") == "a.txt below below/b.txt made.txt"
        assert await ask(own, "read", name="made.txt") == "made at the start"
        await ask(own, "delete", name="made.txt")
        assert await layer(own).changed()
        await layer(own).begin()
        assert await ask(own, "read", name="made.txt") == "made at the start"
        assert not await layer(own).changed()


async def test_several_states_take_turns_on_one_process(connection: Connection, folder: Path) -> None:
    await layer(connection).begin()
    await ask(connection, "write", name="a.txt", text="one's")
    await ask(connection, "delete", name="below/b.txt")
    await ask(connection, "delete", name="below")
    await layer(connection).turn(1, None)
    assert await ask(connection, "names") == "a.txt below below/b.txt" and not await layer(connection).changed()
    await ask(connection, "write", name="below/two.txt", text="two's")
    await ask(connection, "run", command="chmod 711 .; mkdir below/b; echo x > /dev/shm/two")
    for _ in range(3):
        await layer(connection).turn(2, 1)
        assert await ask(connection, "names") == "a.txt" and await ask(connection, "read", name="a.txt") == "one's"
        seen = await ask(connection, "run", command="stat -c %a .; ls /dev/shm; ls -a")
        assert seen.split() == ["700", ".", "..", "a.txt"]
        await layer(connection).turn(1, 2)
        assert await ask(connection, "names") == "a.txt below below/b below/b.txt below/two.txt"
        assert await ask(connection, "read", name="below/two.txt") == "two's"
        assert (await ask(connection, "run", command="stat -c %a .; ls /dev/shm")).split() == ["711", "two"]
    await layer(connection).drop(1)
    await layer(connection).turn(None, None)
    assert await ask(connection, "names") == "a.txt below below/b.txt" and not await layer(connection).changed()
    with pytest.raises(ServerFault, match="No such file or directory"):
        await layer(connection).turn(None, 1)


async def test_states_over_a_mark_take_turns(folder: Path) -> None:
    async with connect(params(folder, "made.txt"), sandbox=Sandbox()) as own:
        await layer(own).begin()
        await layer(own).turn(0, None)  # the state at the mark is put away and copied, unchanged
        assert await ask(own, "names") == "a.txt below below/b.txt made.txt"
        await ask(own, "delete", name="made.txt")
        await layer(own).turn(1, 0)
        assert await ask(own, "read", name="made.txt") == "made at the start" and not await layer(own).changed()
        await layer(own).turn(0, 1)
        assert await ask(own, "names") == "a.txt below below/b.txt"
        await layer(own).turn(None, 0)
        assert await ask(own, "read", name="made.txt") == "made at the start"
        await layer(own).throw_away()
        assert not await layer(own).changed()


async def test_a_directory_that_was_there_before_is_renamed(connection: Connection, folder: Path) -> None:
    await ask(connection, "write", name="below/deep/new.txt", text="new")
    rename = "import os; os.rename('below', 'moved'); os.rename('moved/deep', 'moved/deeper')"
    assert await ask(connection, "run", command=f'python3 -c "{rename}" && echo done') == "done\n"
    assert await ask(connection, "names") == "a.txt moved moved/b.txt moved/deeper moved/deeper/new.txt"
    assert await ask(connection, "read", name="moved/b.txt") == "the user's too"
    onto = "import os; os.mkdir('full'); open('full/x', 'w'); os.rename('moved', 'full')"
    assert "Directory not empty" in await ask(connection, "run", command=f'python3 -c "{onto}" 2>&1')
    await layer(connection).throw_away()
    assert await ask(connection, "names") == "a.txt below below/b.txt"
    assert await ask(connection, "run", command=f'python3 -c "{rename[:38]}"; ls moved') == "b.txt\n"
    assert (folder / "below" / "b.txt").read_text() == "the user's too"


@pytest.mark.parametrize("inner", ["below/inner", "../moved"])
async def test_a_folder_that_a_process_works_in_is_there_after_a_rename_of_it(
    connection: Connection, folder: Path, inner: str
) -> None:
    rename = f"import os; os.rename('{folder}', os.path.realpath('{folder}/{inner}'))"
    assert "Error" in await ask(connection, "run", command=f'python3 -c "{rename}" 2>&1')
    assert await ask(connection, "run", command=f"ls {folder}; ls .") == "a.txt\nbelow\n" * 2
    await layer(connection).throw_away()
    assert await ask(connection, "run", command=f"ls {folder}; ls .") == "a.txt\nbelow\n" * 2


async def test_a_process_in_a_folder_that_was_replaced_is_given_up(folder: Path) -> None:
    """The kernel finds nothing there any more while a process holds the replaced one."""
    replace = f"chmod 755 .; cd /; mv {folder}/below {folder}/other && rm -r {folder} && mkdir {folder}"
    async with sessions(folder, "layer") as pool:
        for _ in range(3):
            async with pool.lease(params(Path(), cwd=folder)) as lease:
                assert await ask(lease.session.connection, "names") == "a.txt below below/b.txt"
                await ask(lease.session.connection, "run", command=replace)


async def test_a_server_can_neither_mount_nor_look_at_us_nor_end_its_keeper(connection: Connection) -> None:
    assert "3" not in await ask(connection, "run", command="mount -t tmpfs none /mnt && echo 3")
    assert "3" not in await ask(connection, "run", command="umount /tmp && echo 3")
    assert "3" not in await ask(connection, "run", command="cat /proc/1/environ && echo 3")
    await ask(connection, "run", command="kill -9 1")
    further = "umount -l /tmp; mount -t tmpfs none /mnt; echo changed > a.txt"
    await ask(connection, "run", command=f"unshare -Urm sh -c '{further}'")
    await layer(connection).throw_away()
    seen = await ask(connection, "run", command="ls -d /proc/[0-9]*")
    assert f"/proc/{os.getpid()}\n" not in seen
    assert await ask(connection, "names") == "a.txt below below/b.txt"


async def test_devices_pipes_and_shared_memory_work(connection: Connection) -> None:
    said = await ask(
        connection,
        "run",
        command="head -c 3 /dev/zero | wc -c; echo x > /dev/null; head -c1 /dev/urandom | wc -c; echo y > /dev/shm/s; "
        "cat /dev/shm/s; echo z | cat /dev/stdin; mktemp > /dev/null && echo made",
    )
    assert said.split() == ["3", "1", "y", "z", "made"]
    await layer(connection).throw_away()
    assert await ask(connection, "run", command="ls /dev/shm") == ""


async def test_gigabytes_end_in_the_layer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcp_rl.toolserver.sandbox.layer.layer_bytes", lambda: 2**21)
    async with connect(params(folder), name="flood", sandbox=Sandbox()) as own:
        said = await ask(own, "run", command=f"head -c 9999999 /dev/zero > {folder}/flood")
        assert "No space left on device" in said
        await layer(own).throw_away()
        assert await ask(own, "write", name="small.txt", text="fits again") == "written"
    assert "The server flood filled its layer (2 MB)" in caplog.text


async def test_a_process_that_detached_itself_dies_with_its_server(folder: Path) -> None:
    async with connect(params(folder), sandbox=Sandbox()) as own:
        assert await ask(own, "daemon") == "left"
        left = appearing("sleep", "86399")
        assert len(left) == 1
    assert not lives(left[0])


async def test_nothing_survives_a_killed_watchdog(folder: Path) -> None:
    async with connect(params(folder), sandbox=Sandbox()) as own:
        await ask(own, "daemon")
        [watchdog] = [one for one in psutil.Process().children() if str(folder) in " ".join(one.cmdline())]
        below = watchdog.children(recursive=True)
        assert len(below) >= 3
        watchdog.send_signal(signal.SIGKILL)
        psutil.wait_procs(below, timeout=10)
        assert not any(map(lives, below))
        with pytest.raises(ServerFault):
            await own.call("names", {})


async def test_a_port_that_a_server_opens_is_closed_with_it(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(999)"
    async with connect(params(folder), sandbox=Sandbox()) as own:
        wait = f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>&-; do sleep 0.05; done; echo open"
        command = f"(setsid -f python3 -c \"{lines}\" > /dev/null 2>&1); timeout 60 bash -c '{wait}'"
        assert await ask(own, "run", command=command) == "open\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


async def test_without_a_network_a_server_is_alone_on_its_loopback(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        line = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('through')\""
        async with connect(params(folder), sandbox=Sandbox("network")) as own:
            assert "refused" in await ask(own, "run", command=line)
            command = "import socket as s; a = s.create_server(('127.0.0.1', 0)); s.create_connection(a.getsockname())"
            assert await ask(own, "run", command=f'python3 -c "{command}" && echo own') == "own\n"


async def test_a_server_with_a_port_needs_the_network() -> None:
    launched = StreamableHttpServer(url="http://127.0.0.1:{port}/mcp", launch=Launch(command=sys.executable))
    with pytest.raises(ServerError, match="--sandbox network keeps to itself"):
        async with connect(launched, sandbox=Sandbox("network")):
            pass


@asynccontextmanager
async def sessions(folder: Path, isolation: str, sandbox: str = "files") -> AsyncIterator[Sessions]:
    server = ToolServer("files", "Files.", {"stdio": params(folder)}, isolation, instances=1)  # type: ignore[arg-type]
    async with Sessions(server=server, tools=ToolsConfig(sandbox=sandbox)) as opened:  # type: ignore[arg-type]
        yield opened


async def test_episodes_on_a_layer_share_a_process_and_nothing_else(folder: Path) -> None:
    async with sessions(folder, "layer") as pool:
        processes = set()
        for number in range(3):
            async with pool.lease(params(folder)) as lease:
                link = lease.session.connection
                assert (await link.call("names", {})).text == "a.txt below below/b.txt"
                await link.call("write", {"name": f"{number}.txt", "text": "mine"})
                processes.add((await link.call("run", {"command": "echo $PPID"})).text)
        assert len(processes) == 1


async def test_without_a_sandbox_there_is_no_layer_to_throw_away(folder: Path) -> None:
    async with sessions(folder, "layer", "off") as pool:
        with pytest.raises(ServerError, match="needs a server in a sandbox"):
            async with pool.lease(params(folder)):
                pass


async def test_a_new_process_begins_with_a_new_layer(folder: Path) -> None:
    async with sessions(folder, "per-rollout") as pool:
        for _ in range(2):
            async with pool.lease(params(folder)) as lease:
                link = lease.session.connection
                assert (await link.call("names", {})).text == "a.txt below below/b.txt"
                await link.call("write", {"name": "mine.txt", "text": "mine"})


async def test_a_server_declares_a_known_sandbox(folder: Path) -> None:
    with pytest.raises(PluginError, match="sandbox must be one of"):
        ToolServer("files", "Files.", {"stdio": params(folder)}, sandbox="none")  # type: ignore[arg-type]


async def test_where_there_is_no_sandbox_a_server_works_on_copies(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcp_rl.toolserver.sandbox.choice.obstacle", lambda: "this test says so")
    monkeypatch.setattr("mcp_rl.toolserver.sandbox.private._MOST_FILES", 6)
    for number in range(9):
        (tmp_path / f"{number}.txt").touch()
    own_params = params(folder, cwd=folder)
    async with connect(own_params, name="copied", sandbox=Sandbox()) as own:
        assert own.layer is None
        assert await ask(own, "names") == "a.txt below below/b.txt"
        await ask(own, "write", name="a.txt", text="changed")
        assert await ask(own, "run", command=f"cat {folder}/a.txt; echo; pwd") == f"changed\n{folder}\n"
        await ask(own, "run", command="echo x > ~/mine; echo y > relative; mktemp")
        place = (await ask(own, "run", command="echo $HOME")).strip()
        assert os.environ["HOME"] != place
        assert await ask(own, "run", command="cat ~/mine") == "x\n"
    assert not list(Path(place).parent.glob("home"))
    assert "The server copied runs without a sandbox, since this test says so: it gets a home" in caplog.text
    async with connect(own_params.model_copy(update={"cwd": str(tmp_path)}), sandbox=Sandbox()) as own:
        assert await ask(own, "names") == "a.txt below below/b.txt"
    assert f"except for {tmp_path}, which it can change" in caplog.text


async def test_many_processes_end_in_time(folder: Path) -> None:
    async with connect(params(folder), sandbox=Sandbox()) as own:
        await ask(own, "run", command="for i in 1 2 3 4 5; do (trap '' TERM; sleep 77777) & done > /dev/null 2>&1")
        below = running("sleep", "77777")
        assert len(below) == 5
    psutil.wait_procs(below, timeout=10)
    assert not any(map(lives, below))


async def test_what_one_layer_holds_is_put_into_another(connection: Connection, folder: Path) -> None:
    made = "echo new > new.txt; ln -s new.txt link; rm a.txt; rm -r below; mkdir below; echo other > below/c.txt"
    await ask(connection, "run", command=made)
    packed = await layer(connection).packed()
    assert packed is not None
    seen = "ls -lR --time-style=+; cat link below/c.txt"
    wanted = await ask(connection, "run", command=seen)
    assert "a.txt" not in wanted and "b.txt" not in wanted and "other" in wanted
    async with connect(params(Path(), cwd=folder), sandbox=Sandbox()) as another:
        await layer(another).unpack(packed)
        assert await ask(another, "run", command=seen) == wanted
        await layer(another).throw_away()
        assert await ask(another, "names") == "a.txt below below/b.txt"


async def test_a_packed_layer_gets_nowhere_else(connection: Connection, folder: Path) -> None:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        way = tarfile.TarInfo(f"{folder}/way")
        way.type, way.linkname = tarfile.SYMTYPE, "/dev/shm"
        archive.addfile(way)
        archive.addfile(tarfile.TarInfo(f"{folder}/way/out.txt"))
    with pytest.raises(ServerFault, match="would lie outside of its tree"):
        await layer(connection).unpack(zlib.compress(packed.getvalue()))
