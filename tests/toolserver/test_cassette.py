"""Calls recorded from a live server are replayed without it, and the file holds no secret."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.errors import CassetteError, CassetteMiss, ServerFault, UserError
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.scenario import ServerGroup, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.caller import calling_as
from mcp_rl.toolserver.cassette import Cassette
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.results import ToolResult
from tests.cassettes import FOLDER

SCRIPT = str(Path(__file__).with_name("recorded_server.py"))
NOWHERE = StdioServer(command="/there/is/no/such/program")
SECRET = 'tok"en-0123456789'
ENV = {"API_TOKEN": "${API_TOKEN}", "PLACE": "a-secret-place"}


def live(*args: str) -> StdioServer:
    return StdioServer(command="{python}", args=("-S", SCRIPT, *args), env=ENV)


def server_of(params: StdioServer, *, reset: bool = False) -> ToolServer:
    """A server that episodes share, or use in turns with a reset."""
    isolation: Any = "reset" if reset else "shared"
    return ToolServer(
        "recorded", "Recorded.", {"stdio": params}, isolation, reset_tool="reset" if reset else None, instances=2
    )


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)


@asynccontextmanager
async def sessions(cassette: Cassette, params: StdioServer | None = None, **fields: Any) -> AsyncIterator[Sessions]:
    """Open sessions on a live server to record, or on a program that does not exist to replay."""
    with cassette:
        used = params or (NOWHERE.model_copy(update={"env": ENV}) if cassette.replays else live())
        async with Sessions(server=server_of(used, **fields), cassette=cassette) as opened:
            opened.params = used  # type: ignore[attr-defined]
            yield opened


async def shared(opened: Sessions) -> Link:
    return (await opened.get(opened.params)).connection  # type: ignore[attr-defined]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


class Scripted:
    """A live link that returns given results at given moments, which no server can be made to do."""

    def __init__(self, answer: Callable[[str, dict[str, Any]], ToolResult]) -> None:
        self.answer = answer
        self.tools = [Tool("tool", "", {"type": "object"})]
        self.warnings: list[str] = []
        self.server_info = {"name": "scripted"}
        self.alive = True

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        await anyio.lowlevel.checkpoint()
        return self.answer(tool_name, arguments)

    async def resources(self) -> list[dict[str, Any]]:
        return []


async def everything(link: Link) -> list[Any]:
    """Everything that a rollout sees of a link."""
    results = [
        await link.call(tool, arguments)
        for tool, arguments in (
            ("echo", {"text": "é 日本 \u2028", "number": 1.0}),
            ("echo", {"number": 1, "text": "\ud83d\ude00"}),
            ("echo", {}),
            ("echo", {"text": "half a pair \ud800"}),
            ("echo", {"text": float("nan")}),
            ("pages", {}),
            ("tick", {}),
            ("tick", {}),
        )
    ]
    seen = [(r.text, repr(r.structured), r.is_error) for r in results]
    return [*seen, link.tools, link.warnings, link.server_info, await link.resources(), link.alive]


async def test_what_was_recorded_comes_back_with_no_server(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    async with sessions(Cassette.recording(path)) as opened:
        recorded = await everything(await shared(opened))
    async with sessions(Cassette.replaying(path)) as opened:
        assert await everything(await shared(opened)) == recorded
    assert [seen[0] for seen in recorded[6:8]] == ["tick 1", "tick 2"]
    assert recorded[2][2] and recorded[3][2] and "bad" in recorded[9][0]
    assert lines(path)[0]["cassette"] == 1


async def test_an_unrecorded_call_stops_the_run_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    async with sessions(Cassette.recording(path)) as opened:
        await (await shared(opened)).call("echo", {"a": 1, "b": 2})
    async with sessions(Cassette.replaying(path)) as opened:
        link = await shared(opened)
        await link.call("echo", {"b": 2, "a": 1})
        with pytest.raises(CassetteMiss) as miss:
            await link.call("echo", {"text": "x" * 500})
    message = str(miss.value)
    assert miss.value.exit_code == 2
    assert str(path) in message and "echo(" in message and "recorded" in message and "--record" in message
    assert len(message) < 500


async def test_equal_calls_after_different_calls_are_different(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def episode(opened: Sessions, state: str, text: str | None) -> str:
        async with opened.lease(opened.params, {"text": state}) as lease:  # type: ignore[attr-defined]
            link = lease.session.connection
            if text is not None:
                await link.call("put", {"text": text})
            return (await link.call("look", {})).text

    episodes = [("a", None), ("b", None), ("a", "c"), ("b", "d"), ("a", None)]
    async with sessions(Cassette.recording(path), reset=True) as opened:
        recorded = [await episode(opened, *how) for how in episodes]
    assert recorded == ["held: a", "held: b", "held: c", "held: d", "held: a"]
    async with sessions(Cassette.replaying(path), reset=True) as opened:
        assert [await episode(opened, *how) for how in reversed(episodes)] == recorded[::-1]
        with pytest.raises(CassetteMiss, match="reset"):
            await episode(opened, "z", None)
        with pytest.raises(CassetteMiss, match=r"put\(.*only after other preceding calls"):
            await episode(opened, "a", "d")
    assert sum(line.get("call") == "look" for line in lines(path)) == 4


async def test_each_rollout_gets_its_own_results_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    names = [f"rollout {number}" for number in range(4)]

    async def play(opened: Sessions, order: list[str]) -> dict[str, list[str]]:
        seen: dict[str, list[str]] = {}

        async def one(name: str) -> None:
            link = await shared(opened)
            with calling_as(name):
                seen[name] = [(await link.call("tick", {})).text for _ in range(3)]

        async with anyio.create_task_group() as tasks:
            for name in order:
                tasks.start_soon(one, name)
        return seen

    async with sessions(Cassette.recording(path)) as opened:
        recorded = [await play(opened, names), await play(opened, names)]
    assert len({text for seen in recorded for texts in seen.values() for text in texts}) == 24
    async with sessions(Cassette.replaying(path)) as opened:
        assert [await play(opened, names[::-1]), await play(opened, names[2:] + names[:2])] == recorded
        link = await shared(opened)
        with calling_as("a stranger"):
            assert [(await link.call("tick", {})).text for _ in range(5)] == ["tick 1"] * 5


async def test_random_identifiers_are_replayed_for_each_rollout(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    drawn = iter(range(100))

    def answer(tool: str, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(f"id-{next(drawn)}" if tool == "create" else f"read {arguments['id']}")

    async def episode(link: Link, name: str, seen: dict[str, list[str]]) -> None:
        with calling_as(name):
            made = [(await link.call("create", {})).text for _ in range(2)]
            seen[name] = [*made, *[(await link.call("read", {"id": id})).text for id in reversed(made)]]

    async def job(link: Callable[[], Link], names: list[str]) -> dict[str, list[str]]:
        seen: dict[str, list[str]] = {}
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(episode, link(), name, seen)
        return seen

    with Cassette.recording(path) as cassette:
        live_link = Scripted(answer)
        recorded = await job(lambda: cassette.record(live_link, "s", stateful=True), ["a", "b", "c"])
    assert len({id for seen in recorded.values() for id in seen[:2]}) == 6
    with Cassette.replaying(path) as cassette:
        assert await job(lambda: cassette.player("s", stateful=True), ["c", "a", "b"]) == recorded


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.dictionaries(st.text(), JSON, max_size=4), st.text(), JSON, st.booleans()), max_size=6))
def test_whatever_json_was_said_comes_back(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[dict[str, Any], str, Any, bool]]
) -> None:
    path = tmp_path_factory.mktemp("said") / "run.jsonl"
    results = iter([ToolResult(text, structured, is_error) for _, text, structured, is_error in calls])

    async def seen(link: Link, *, backwards: bool = False) -> list[str]:
        found = []
        for arguments, *_ in calls:
            given = dict(reversed(arguments.items())) if backwards else arguments
            result = await link.call("tool", given)
            found.append(repr((result.text, result.structured, result.is_error)))
        return found

    with Cassette.recording(path) as cassette:
        link = cassette.record(Scripted(lambda tool, arguments: next(results)), "s", stateful=False)
        recorded = anyio.run(seen, link)
    with Cassette.replaying(path) as cassette:
        assert anyio.run(lambda: seen(cassette.player("s", stateful=False), backwards=True)) == recorded


async def test_a_fault_comes_back_to_the_rollout_that_met_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    async with sessions(Cassette.recording(path)) as opened:
        link = await shared(opened)
        with calling_as("a"), pytest.raises(ServerFault) as recorded:
            await link.call("die", {})
        assert not link.alive
    async with sessions(Cassette.replaying(path)) as opened:
        link = await shared(opened)
        with calling_as("b"), pytest.raises(CassetteMiss, match="failed when it was recorded"):
            await link.call("die", {})
        with calling_as("a"), pytest.raises(ServerFault) as replayed:
            await link.call("die", {})
        assert str(replayed.value) == str(recorded.value)
        assert replayed.value.delivered == recorded.value.delivered
        assert not link.alive
        assert (await shared(opened)).alive


async def test_a_death_between_episodes_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def episode(opened: Sessions, name: str, tool: str) -> str:
        with calling_as(name):
            async with opened.lease(opened.params, {}) as lease:  # type: ignore[attr-defined]
                return (await lease.session.connection.call(tool, {})).text

    async with sessions(Cassette.recording(path), reset=True) as opened:
        assert await episode(opened, "a", "look") == "held: "
        opened._slots[repr(live())]._slots[-1].connection._broken = "The server exited."  # type: ignore
        assert await episode(opened, "b", "look") == "held: "
    async with sessions(Cassette.replaying(path), reset=True) as opened:
        assert await episode(opened, "a", "look") == await episode(opened, "b", "look") == "held: "


async def test_a_result_is_better_than_a_fault(tmp_path: Path) -> None:
    """A continued run repeats its last step; a call that failed then may succeed now."""
    path = tmp_path / "run.jsonl"

    def fails(tool: str, arguments: dict[str, Any]) -> ToolResult:
        raise ServerFault("It did not answer.")

    for answer in (fails, lambda tool, arguments: ToolResult("fine"), lambda tool, arguments: ToolResult("new")):
        with Cassette.recording(path) as cassette, calling_as("a"):
            link = cassette.record(Scripted(answer), "s", stateful=False)
            try:
                await link.call("tool", {})
            except ServerFault:
                assert answer is fails
    with Cassette.replaying(path) as cassette, calling_as("a"):
        assert (await cassette.player("s", stateful=False).call("tool", {})).text == "new"
    with Cassette.replaying(path) as cassette, calling_as("b"):
        assert (await cassette.player("s", stateful=False).call("tool", {})).text == "fine"


async def test_numbers_that_differ_in_json_are_different_calls(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Cassette.recording(path) as cassette:
        link = cassette.record(Scripted(lambda tool, given: ToolResult(repr(given), given)), "s", stateful=False)
        recorded = [await link.call("tool", {"n": n}) for n in (1, 1.0, True, None, "1", 1e100, 10**30)]
    with Cassette.replaying(path) as cassette:
        link = cassette.player("s", stateful=False)
        replayed = [await link.call("tool", {"n": n}) for n in (1, 1.0, True, None, "1", 1e100, 10**30)]
    assert [(r.text, repr(r.structured)) for r in replayed] == [(r.text, repr(r.structured)) for r in recorded]


async def test_secrets_are_redacted_and_their_calls_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    async with sessions(Cassette.recording(path)) as opened:
        link = await shared(opened)
        login = await link.call("login", {})
        assert login.text == "your token is ${API_TOKEN}" and login.structured["token"] == "${API_TOKEN}"
        await link.call("echo", {"text": f"Bearer {SECRET}", SECRET: [SECRET, "a-secret-place"]})
    written = path.read_text()
    for secret in (SECRET, json.dumps(SECRET)[1:-1], json.dumps(json.dumps(SECRET)[1:-1])[1:-1], "0123456789"):
        assert secret not in written
    assert "a-secret-place" in written, "PLACE is not a secret's name"
    for value in (SECRET, "another-token-9876", ""):
        monkeypatch.setenv("API_TOKEN", value) if value else monkeypatch.delenv("API_TOKEN")
        async with sessions(Cassette.replaying(path)) as opened:
            link = await shared(opened)
            login = await link.call("login", {})
            assert login.text == "your token is ${API_TOKEN}"
            assert json.loads(login.structured["said"]) == {"inner": "${API_TOKEN}"}
            token = value or "${API_TOKEN}"
            await link.call("echo", {"text": f"Bearer {token}", token: [token, "a-secret-place"]})


async def test_what_a_server_is_given_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    monkeypatch.setenv("TENANT_KEY", "tenant-4711")
    params = StreamableHttpServer(
        url="http://localhost/mcp",
        headers={"Authorization": "Bearer abcdefgh", "X-Tenant": "${TENANT_KEY}", "Accept": "application/json"},
    )
    text = "abcdefgh, tenant-4711, application/json, Bearer abcdefgh"
    with Cassette.recording(path) as cassette:
        link = cassette.record(
            Scripted(lambda tool, given: ToolResult(text, [text])), "s", stateful=False, params=params
        )
        assert (await link.call("tool", {"text": text})).text == text
    written = path.read_text()
    assert "abcdefgh" not in written and "tenant-4711" not in written and "application/json" in written
    with Cassette.replaying(path) as cassette:
        assert await cassette.player("s", stateful=False, params=params).call("tool", {"text": text})


async def test_two_servers_are_kept_apart_in_one_cassette(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def together(params: StdioServer) -> ToolServer:
        one = ToolServer("one", "", {"stdio": params}, "reset", reset_tool="reset")
        return ToolServer.together([one, ToolServer("two", "", {"stdio": params}, "shared")])

    async def play(cassette: Cassette, params: StdioServer) -> list[str]:
        server = together(params)
        group = server.params()
        assert isinstance(group, ServerGroup)
        opened = Sessions(server=server, cassette=cassette)
        with cassette:
            async with opened, opened.lease(group, {"one": {"text": "first"}}) as lease:
                link = lease.session.connection
                await link.call("two__put", {"text": "second"})
                return [(await link.call(f"{name}__look", {})).text for name in ("one", "two")]

    recorded = await play(Cassette.recording(path), live())
    assert recorded == ["held: first", "held: second"]
    assert await play(Cassette.replaying(path), NOWHERE) == recorded
    assert {line["server"] for line in lines(path)[1:]} == {"one", "two"}
    with Cassette.replaying(path) as cassette, pytest.raises(UserError, match=r"'three'.*one, two"):
        cassette.player("three", stateful=False)


async def test_a_changed_listing_is_not_recorded_into_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    async with sessions(Cassette.recording(path)) as opened:
        await (await shared(opened)).call("echo", {"n": 1})
    before = path.read_bytes()
    async with sessions(Cassette.recording(path), live("--other-tools")) as opened:
        with pytest.raises(CassetteError, match=r"listed other tools than now; record into another file\."):
            await shared(opened)
    assert path.read_bytes() == before
    async with sessions(Cassette.recording(path)) as opened:
        await (await shared(opened)).call("echo", {"n": 2})
    assert path.read_bytes().startswith(before)
    assert len(lines(path)) == len(before.splitlines()) + 1


async def test_the_recorded_calculator_is_the_one_that_is_bundled(tmp_path: Path) -> None:
    path = tmp_path / "calculator.jsonl"
    path.write_bytes((FOLDER / "calculator.jsonl").read_bytes())
    calculator = load_plugins(()).servers["mcp_calculator"]
    with Cassette.recording(path) as cassette:
        async with Sessions(server=calculator, cassette=cassette) as opened:
            link = (await opened.get(calculator.params("stdio"))).connection
            assert (await link.call("add", {"a": 3, "b": 1})).text == "4"
    assert path.read_bytes() == (FOLDER / "calculator.jsonl").read_bytes()


async def test_what_was_called_under_other_schemas_is_not_found(tmp_path: Path) -> None:
    """A server that changes its tools during the run, where that is allowed."""
    path = tmp_path / "run.jsonl"
    with Cassette.recording(path) as cassette:
        live_link = Scripted(lambda tool, given: ToolResult("fine"))
        link = cassette.record(live_link, "s", stateful=False)
        await link.call("tool", {"n": 1})
        live_link.tools = [*live_link.tools, Tool("more", "", {"type": "object"})]
        await link.call("tool", {"n": 1})
        await link.call("tool", {"n": 2})
    with Cassette.replaying(path) as cassette:
        player = cassette.player("s", stateful=False)
        assert [tool.name for tool in player.tools] == ["tool"]
        await player.call("tool", {"n": 1})
        with pytest.raises(CassetteMiss):
            await player.call("tool", {"n": 2})


async def test_a_torn_last_line_is_left_out_and_recorded_over(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def record(number: int) -> None:
        with Cassette.recording(path) as cassette:
            link = cassette.record(Scripted(lambda tool, given: ToolResult("x" * 700)), "s", stateful=False)
            await link.call("tool", {"n": number})

    await record(1)
    await record(2)
    whole = path.read_bytes()
    edges = [end + by for end, byte in enumerate(whole) if byte == ord("\n") for by in (-1, 0, 1, 2)]
    for end in sorted({*edges, *range(0, len(whole), 41)}):
        path.write_bytes(whole[:end])
        await record(3)
        with Cassette.replaying(path) as cassette:
            assert (await cassette.player("s", stateful=False).call("tool", {"n": 3})).text == "x" * 700
    path.write_bytes(whole[:-1])
    with Cassette.replaying(path) as cassette:
        assert (await cassette.player("s", stateful=False).call("tool", {"n": 2})).text == "x" * 700
    path.write_bytes(whole[:-9])
    with Cassette.replaying(path) as cassette, pytest.raises(CassetteMiss):
        await cassette.player("s", stateful=False).call("tool", {"n": 2})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a cassette"),
        (b"hello\n", "is not a cassette"),
        (b'{"task_description": "add 1 and 2"}\n', "is not a cassette"),
        (b"\xff\xfe\x00", "is not a cassette"),
        (b"[" * 100_000, "is not a cassette"),
        (b'{"cassette": 99}\n', "version 99"),
        (b'{"cassette": 1}\nnonsense\n{"server": "s"}\n', "line 2"),
        (b'{"cassette": 1}\n{"call": "add", "server": "s", "arguments": {}, "text": ""}\n', "line 2"),
        (b'{"cassette": 1}\n{"server": "s", "schema": "x", "tools": [1], "warnings": [], "info": {}}\n', "line 2"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused_and_left_alone(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        Cassette.replaying(path)
    if content:
        with pytest.raises(UserError, match=message):
            Cassette.recording(path)
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing/run\.jsonl: no such file"):
        Cassette.recording(tmp_path / "missing" / "run.jsonl")
    with pytest.raises(UserError, match=r"run\.jsonl: no such file"):
        Cassette.replaying(tmp_path / "run.jsonl")
    for open_ in (Cassette.recording, Cassette.replaying):
        with pytest.raises(UserError, match="is a directory"):
            open_(tmp_path)
    with (
        Cassette.recording(tmp_path / "run.jsonl"),
        pytest.raises(UserError, match="Another process is recording"),
    ):
        Cassette.recording(tmp_path / "run.jsonl")


async def test_a_full_disk_stops_the_run_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Cassette.recording(path) as cassette:
        link = cassette.record(Scripted(lambda tool, given: ToolResult("fine")), "s", stateful=False)
        await link.call("tool", {"n": 1})
        whole = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, limits[1]))  # half a line more
        try:
            with pytest.raises(CassetteError, match=r"run\.jsonl: the disk is full\."):
                await link.call("tool", {"n": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        with pytest.raises(CassetteError, match="the disk is full"):
            await link.call("tool", {"n": 3})
    assert path.read_bytes() == whole


def test_a_killed_process_leaves_every_call_that_it_made(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    program = f"""
import anyio, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_cassette import *
async def main():
    cassette = Cassette.recording({str(path)!r})
    link = cassette.record(Scripted(lambda tool, given: ToolResult("fine")), "s", stateful=False)
    for number in range(50):
        await link.call("tool", {{"n": number}})
    os.kill(os.getpid(), 9)
anyio.run(main)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    with Cassette.replaying(path) as cassette:
        player = cassette.player("s", stateful=False)
        for number in range(50):
            assert anyio.run(player.call, "tool", {"n": number}).text == "fine"


async def test_thousands_of_calls_stay_small_and_are_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    page = "All work and no play. " * 200

    def answer(tool: str, given: dict[str, Any]) -> ToolResult:
        return ToolResult(page) if given["a"] % 10 == 0 else ToolResult(str(given["a"]), {"result": given["a"]})

    with Cassette.recording(path) as cassette:
        link = cassette.record(Scripted(answer), "s", stateful=False)
        for _ in range(2):
            for number in range(5000):
                await link.call("tool", {"a": number, "b": 2})
    assert path.stat().st_size < 800_000
    assert path.read_text().count(page) == 1
    started = time.perf_counter()
    with Cassette.replaying(path) as cassette:
        assert time.perf_counter() - started < 5
        assert (await cassette.player("s", stateful=False).call("tool", {"a": 4990, "b": 2})).text == page
