"""Episodes that take turns on the processes of one server."""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ServerFault
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.session import Lease
from mcp_rl.toolserver.state import Kept, MeasuredState
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.turns import Turn, Turns

SERVER = str(Path(__file__).with_name("files_server.py"))
pytestmark = pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "a.txt").write_text("the user's")
    return folder


@asynccontextmanager
async def pool(
    folder: Path, kept: Kept = "files", *, call_seconds: float = 0.001, most: int = 4
) -> AsyncIterator[tuple[Sessions, StdioServer]]:
    params = StdioServer(command=sys.executable, args=(SERVER, str(folder)))
    measured = MeasuredState(kept=kept, listing="", reading=("names", "read"), call_seconds=call_seconds)
    server = ToolServer("files", "Files.", {"stdio": params}, instances=most).with_state(measured)
    async with Sessions(server=server, tools=ToolsConfig()) as sessions:
        yield sessions, params


async def ask(link: Link, tool: str, **arguments: Any) -> str:
    return (await link.call(tool, arguments)).text


async def episodes(stack: AsyncExitStack, sessions: Sessions, params: StdioServer, count: int) -> list[Link]:
    return [(await stack.enter_async_context(sessions.episode(params))).session.connection for _ in range(count)]


async def process(link: Link) -> str:
    return await ask(link, "run", command="readlink /proc/self/ns/pid")


async def test_many_episodes_change_files_on_one_process_and_see_only_their_own(folder: Path) -> None:
    async with pool(folder, most=1) as (sessions, params), AsyncExitStack() as stack:
        links = await episodes(stack, sessions, params, 12)

        async def play(number: int, link: Link) -> None:
            assert await ask(link, "names") == "a.txt"
            await ask(link, "write", name=f"{number}.txt", text="mine")
            await ask(link, "write", name="a.txt", text=f"changed by {number}")
            for _ in range(3):
                assert await ask(link, "names") == " ".join(sorted(["a.txt", f"{number}.txt"]))
                assert await ask(link, "read", name="a.txt") == f"changed by {number}"
            if number % 3 == 0:
                await ask(link, "delete", name="a.txt")
                assert await ask(link, "names") == f"{number}.txt"

        async with anyio.create_task_group() as tasks:
            for number, link in enumerate(links):
                tasks.start_soon(play, number, link)
        assert len({await process(link) for link in links}) == 1
        (late,) = await episodes(stack, sessions, params, 1)
        assert await ask(late, "names") == "a.txt" and await ask(late, "read", name="a.txt") == "the user's"
    assert (folder / "a.txt").read_text() == "the user's"


async def test_readers_share_a_process_where_writers_need_their_own(folder: Path) -> None:
    async with pool(folder, "process") as (sessions, params), AsyncExitStack() as stack:
        links = await episodes(stack, sessions, params, 3)
        assert [await ask(link, "names") for link in links] == ["a.txt"] * 3
        await ask(links[0], "write", name="b.txt", text="mine")
        assert await ask(links[0], "names") == "a.txt b.txt"
        assert await ask(links[1], "names") == "a.txt"
        assert len({await process(link) for link in links}) == 3


@pytest.mark.parametrize("most", [1, 2])
async def test_a_server_with_few_processes_serves_all_the_same(folder: Path, most: int) -> None:
    async with pool(folder, "process", most=most) as (sessions, params):

        async def play(number: int) -> None:
            async with sessions.episode(params) as lease:
                link = lease.session.connection
                assert await ask(link, "names") == "a.txt"
                await ask(link, "write", name=f"{number}.txt", text="mine")
                assert len((await ask(link, "names")).split()) == 2

        with anyio.fail_after(300):
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(play, number)


async def test_a_process_that_dies_takes_only_what_was_changed_on_it(folder: Path) -> None:
    async with pool(folder, most=2) as (sessions, params), AsyncExitStack() as stack:
        changed, read, dying = await episodes(stack, sessions, params, 3)
        await ask(changed, "write", name="b.txt", text="mine")
        assert await ask(read, "names") == "a.txt"
        with pytest.raises(ServerFault):
            await ask(dying, "run", command="kill -9 $PPID")
        assert await ask(read, "names") == "a.txt" and read.alive
        assert not changed.alive
        with pytest.raises(ServerFault, match="held this episode's files is gone"):
            await ask(changed, "names")
        (apart,) = await episodes(stack, sessions, params, 1)
        await ask(apart, "write", name="c.txt", text="mine")
        assert await ask(apart, "names") == "a.txt c.txt" and await ask(read, "names") == "a.txt"


async def test_a_cancelled_call_leaves_its_process_to_nobody(folder: Path) -> None:
    async with pool(folder, most=2) as (sessions, params), AsyncExitStack() as stack:
        hanging, other = await episodes(stack, sessions, params, 2)
        assert await ask(hanging, "run", command="echo up") == "up\n"
        with anyio.move_on_after(0.2):
            await ask(hanging, "run", command="sleep 30")
        with pytest.raises(ServerFault):
            await ask(hanging, "names")
        assert await ask(other, "names") == "a.txt"
        assert "sleep" not in await ask(other, "run", command="cat /proc/[0-9]*/comm")


async def test_closing_ends_the_turns_that_episodes_still_take(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        async with pool(folder) as (sessions, params):
            (link,) = await episodes(stack, sessions, params, 1)
            assert await ask(link, "names") == "a.txt" and running(folder)
        with pytest.raises(ServerFault):
            await ask(link, "names")
        with anyio.fail_after(20):  # the kernel ends the processes of a sandbox one after another
            while running(folder):  # noqa: ASYNC110  # other processes have no event
                await anyio.sleep(0.02)


def running(folder: Path) -> list[int]:
    """Return the servers that work in a folder."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in one.cmdline():
                found.append(one.pid)
    return found


async def test_an_episode_that_fills_the_layer_takes_the_process_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_rl.toolserver.sandbox.layer.layer_bytes", lambda: 2**21)
    async with pool(folder) as (sessions, params), AsyncExitStack() as stack:
        filling, innocent = await episodes(stack, sessions, params, 2)
        await ask(filling, "run", command=f"head -c 9999999 /dev/zero > {folder}/flood")
        with pytest.raises(ServerFault):
            await ask(innocent, "write", name="small.txt", text="mine")
        with pytest.raises(ServerFault, match="held this episode's files is gone"):
            await ask(filling, "names")
        filling, innocent = await episodes(stack, sessions, params, 2)  # played again, each has its own process
        said = await ask(filling, "run", command=f"head -c 9999999 /dev/zero > {folder}/flood")
        assert "No space left on device" in said
        assert await ask(innocent, "write", name="small.txt", text="mine") == "written"


async def test_closing_does_not_wait_for_a_server_that_never_starts() -> None:
    @asynccontextmanager
    async def never() -> AsyncIterator[Lease]:
        await anyio.sleep_forever()
        yield

    async def act(link: Link) -> None:
        raise AssertionError

    turns = Turns("slow", never, harmless=(), layered=True, most=1)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def play() -> None:
                with pytest.raises(ServerFault, match="are closed"):
                    await turns.use(Turn(), "write", act)

            tasks.start_soon(play)
            await anyio.wait_all_tasks_blocked()
            await turns.aclose()
