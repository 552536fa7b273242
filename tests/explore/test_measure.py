"""Where a server keeps its state is measured on real processes in real sandboxes, one server for each kind."""

import json
import re
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.explore.answer import shows_empty_overview
from mcp_rl.explore.check.inspection import inspect
from mcp_rl.explore.first_contact import contradictions, recalled, states_of, understood, with_states
from mcp_rl.explore.known_server import known_server
from mcp_rl.explore.measuring import calls, working
from mcp_rl.explore.measuring.seen import ComparedRun, Seen
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.toolserver.connector import Connector
from mcp_rl.toolserver.isolation import effective_isolation
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = Path(__file__).with_name("state_server.py")
BASKETS = Path(__file__).with_name("basket_server.py")
pytestmark = pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def server_of(kind: str, place: object, cwd: Path | None = None) -> ToolServer:
    arguments = ("-I", "-S", str(SCRIPT), kind, str(place))
    params = StdioServer(command=sys.executable, args=arguments, cwd=str(cwd) if cwd else None)
    return ToolServer(kind, "A server with a state.", {"stdio": params}, sandbox="files")


def measured(server: ToolServer, tools: ToolsConfig | None = None) -> ToolServer:
    return anyio.run(understood, server, None, tools or ToolsConfig())


@pytest.mark.parametrize(
    ("kind", "kept", "isolation"),
    [
        ("files", "files", "layer"),
        ("relative", "files", "layer"),
        ("cached", "process", "per-rollout"),
        ("database", "process", "per-rollout"),
        ("memory", "process", "per-rollout"),
        ("switch", "process", "per-rollout"),
        ("counting", "process", "per-rollout"),
        ("nothing", "nothing", "shared"),
        ("sums", "nothing", "shared"),
        ("logs", "nothing", "shared"),
        ("random", "unsure", "per-rollout"),
        ("coins", "nothing", "shared"),
        ("refusing", "unsure", "per-rollout"),
    ],
)
def test_where_a_state_is_kept_is_measured_and_no_file_of_the_user_changes(
    kind: str, kept: str, isolation: str, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    found = measured(server_of(kind, place, place))
    assert found.measured is not None
    assert (found.measured.kept, found.isolation) == (kept, isolation)
    assert effective_isolation(found, [])[1].startswith("measured, since ")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("kind", "kept"), [("files", "files"), ("memory", "process")])
def test_tools_are_called_even_if_slow_ones_took_all_the_time(
    kind: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "_ALL_SECONDS", 0.0)
    state = measured(server_of(kind, tmp_path, tmp_path)).measured
    assert state is not None and state.kept == kept


def test_measuring_ends_however_many_slow_tools_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "_ALL_SECONDS", 0.0)
    monkeypatch.setattr(working, "_LATEST", 0.0)
    state = measured(server_of("files", tmp_path, tmp_path)).measured
    assert state is not None and (state.kept, state.reading) == ("unsure", ())


def test_a_server_may_load_what_it_needs_at_its_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_DEADLINE", 0.3)
    found = measured(server_of("lazy", tmp_path)).measured
    assert found is not None and found.unfit == () and found.call_seconds < 0.3


def test_one_slow_tool_does_not_make_a_server_slow(tmp_path: Path) -> None:
    found = measured(server_of("waiting", tmp_path)).measured
    assert found is not None and found.unfit == found.slow == () and found.call_seconds < 0.1


def test_a_tool_that_takes_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_DEADLINE", "_LONGEST_DEADLINE"):
        monkeypatch.setattr(calls, name, 0.2)
    server = measured(server_of("waiting", tmp_path))
    assert server.measured is not None and server.measured.slow == ("get_length_later",) == server.measured.unfit
    assert Connector("waiting", ToolsConfig(), server=server).deadlines.slow == {"get_length_later"}


class _Keeper(socketserver.StreamRequestHandler):
    """Keeps notes for servers in their sandboxes."""

    notes: list[str] = []  # noqa: RUF012

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        if asked is not None:
            type(self).notes = asked
        self.wfile.write(json.dumps(self.notes).encode() + b"\n")


@contextmanager
def keeper(notes: list[str]) -> Iterator[int]:
    _Keeper.notes = notes
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Keeper) as outside:
        threading.Thread(target=outside.serve_forever, daemon=True).start()
        yield outside.server_address[1]
        outside.shutdown()


def test_a_state_out_of_reach_is_noticed_before_anything_is_destroyed() -> None:
    with keeper(["mine"]) as port:
        found = measured(server_of("outside", port))
        assert found.measured is not None
        assert (found.measured.kept, found.isolation) == ("elsewhere", "shared")
        assert "only its reading tools are called" in found.measured.reason
        assert "mine" in _Keeper.notes
        before = list(_Keeper.notes)
        anyio.run(_explored, found)
        assert _Keeper.notes == before


async def _explored(server: ToolServer) -> list[str]:
    params = server.params()
    async with Sessions(server=server) as sessions:
        made = await explored_scenarios(sessions, server=server, params=params, recipe=Recipe(20, max_steps=2))
        assert await broken_scenarios(sessions, params, made) == []
    return [scenario.task_description for scenario in made]


def test_an_empty_server_is_filled_once_and_every_episode_begins_in_that_world(tmp_path: Path) -> None:
    server = measured(server_of("files", tmp_path))
    assert server.measured is not None
    assert server.measured.began_empty
    titles = [call.arguments["title"] for call in server.measured.setup]
    assert len(titles) == len(set(titles)) >= 5

    async def episodes() -> list[str]:
        seen = []
        async with Sessions(server=replace(server, instances=1)) as sessions:
            for _ in range(3):
                async with sessions.lease(server.params()) as lease:
                    link = lease.session.connection
                    seen.append((await link.call("list_notes", {})).text)
                    await link.call("add_note", {"title": "of an episode"})
        return seen

    assert anyio.run(episodes) == [json.dumps(titles)] * 3
    assert not list(tmp_path.glob("notes*"))
    assert len(anyio.run(_explored, server)) == 20


def test_an_overview_of_settings_and_empty_lists_hides_no_empty_server(tmp_path: Path) -> None:
    server = measured(server_of("overview", tmp_path))
    assert server.measured is not None and server.measured.began_empty and "get_overview" in server.measured.shown_by
    assert len(server.measured.setup) >= 5
    assert shows_empty_overview('{"notes": [], "rights": {"given": ["read"]}}')
    for full in ('{"notes": [], "tags": ["home"]}', '{"notes": [], "by": {"ada": [{"id": 1}]}}', '{"rights": {}}'):
        assert not shows_empty_overview(full)


def test_things_of_two_kinds_have_names_and_texts_of_their_own() -> None:
    script = str(Path(__file__).with_name("pages_server.py"))
    server = measured(ToolServer("pages", "", {"stdio": StdioServer(command=sys.executable, args=("-S", script))}))
    assert server.measured is not None
    made = {
        tool: [c.arguments for c in server.measured.setup if c.tool == tool] for tool in ("write_page", "create_stamp")
    }
    pages, stamps = made["write_page"], made["create_stamp"]
    assert len(pages) >= 5 and len(stamps) >= 5
    assert not {one["name"] for one in pages} & {one["name"] for one in stamps}
    assert len({one["content"] for one in pages}) == len(pages)


def test_files_of_a_kind_that_errors_name_fill_an_empty_folder(tmp_path: Path) -> None:
    server = measured(server_of("sheets", tmp_path, tmp_path))
    assert server.measured is not None and server.measured.kept == "files"
    made = {call.arguments["filepath"] for call in server.measured.setup}
    assert len(made) > 2 and all(path.startswith(f"{tmp_path}/") and path.endswith(".sht") for path in made)
    tasks = anyio.run(_explored, server)
    read = [text for text in tasks if re.search(r"(?i)(?:read|size).sheet|sheet.size", text)]
    assert any(path in text for text in read for path in made)
    assert list(tmp_path.glob("*.sht")) == []


def test_the_users_data_are_the_world_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('["of the user"]')
    server = measured(server_of("files", tmp_path))
    assert server.measured is not None
    assert (server.measured.kept, server.measured.setup) == ("files", ())
    assert (tmp_path / "notes.json").read_text() == '["of the user"]'


def test_a_process_is_used_again_after_an_episode_that_only_read(tmp_path: Path) -> None:
    server = measured(server_of("memory", tmp_path))

    async def births() -> list[str]:
        seen = []
        async with Sessions(server=replace(server, instances=1)) as sessions:
            for changes in (False, True, False):
                async with sessions.lease(server.params()) as lease:
                    link = lease.session.connection
                    seen.append((await link.call("get_birth", {})).text)
                    await link.call("list_notes", {})
                    if changes:
                        await link.call("add_note", {"title": "mine"})
        return seen

    first, second, third = anyio.run(births)
    assert first == second != third


def test_what_was_measured_is_remembered_until_it_is_measured_anew(tmp_path: Path) -> None:
    server = server_of("files", tmp_path)
    assert recalled(server, None, ToolsConfig()).measured is None
    first = measured(server)
    assert recalled(server, None, ToolsConfig()) == first
    (tmp_path / "notes.json").write_text('["of the user"]')
    assert measured(server) == first
    again = anyio.run(lambda: understood(server, None, ToolsConfig(), anew=True))
    assert again.measured is not None
    assert again.measured.setup == ()
    assert with_states(server, states_of(first)) == first


def test_a_server_that_lists_other_tools_than_then_is_measured_anew(tmp_path: Path) -> None:
    server = server_of("files", tmp_path)
    first = measured(server).measured

    async def contact(server: ToolServer) -> tuple[ToolServer, list[str]]:
        async with known_server(server, None, ToolsConfig()) as known:
            session = await known.session()
            return known.server, [tool.name for tool in session.offered]

    assert anyio.run(contact, server)[0].measured == first
    (tmp_path / "more").touch()
    about = anyio.run(inspect, recalled(server, None, ToolsConfig()), server.params())
    assert about.isolation_reason.endswith("the first run measures it, and mcp-rl servers check does so now")
    again, tools = anyio.run(contact, server)
    assert "count_notes" in tools
    assert first is not None and again.measured is not None
    assert "count_notes" in again.measured.shown_by and first.listing != again.measured.listing
    assert recalled(server, None, ToolsConfig()) == again
    together, tools = anyio.run(contact, ToolServer.together([server, replace(server, name="other")]))
    assert [one.measured for one in together.members] == [again.measured, again.measured]
    assert "other__count_notes" in tools


@pytest.mark.parametrize("form", ["bare", "named"])
def test_a_state_behind_handles_is_filled_and_its_tasks_pass_them_on(form: str, tmp_path: Path) -> None:
    params = StdioServer(command=sys.executable, args=("-I", "-S", str(BASKETS), form, str(tmp_path)))
    server = measured(ToolServer("baskets", "Baskets.", {"stdio": params}, sandbox="files"))
    assert server.measured is not None
    assert (server.measured.kept, server.measured.began_empty) == ("files", True)
    assert {call.tool for call in server.measured.setup} == {"open_new_basket", "put_item"}
    tasks = anyio.run(_explored, server)
    assert any("the basket in that result" in task for task in tasks), tasks
    assert not (tmp_path / "baskets.json").exists()


def test_a_declaration_wins_and_without_a_sandbox_nothing_is_measured(tmp_path: Path) -> None:
    declared = replace(server_of("files", tmp_path), isolation="shared")
    assert measured(declared) == declared
    assert contradictions(declared, None, ToolsConfig()) == []
    measured(server_of("files", tmp_path))
    [sentence] = contradictions(declared, None, ToolsConfig())
    assert sentence.startswith("files is declared shared, but calls showed that what it keeps lies in files")
    assert contradictions(replace(declared, isolation="per-rollout"), None, ToolsConfig()) == []
    off = server_of("files", tmp_path)
    assert measured(off, ToolsConfig(sandbox="off")) == off
    assert measured(replace(off, sandbox="off")).measured is None


def test_a_tool_that_no_model_gets_is_never_called(tmp_path: Path) -> None:
    found = measured(server_of("files", tmp_path), ToolsConfig(exclude=("add_*", "delete_*")))
    assert found.measured is not None
    assert (found.measured.kept, found.measured.changing) == ("nothing", ())


def test_what_two_processes_answered_alike_in_one_second_is_no_state_if_a_third_one_differs() -> None:
    def run(second: str, kept: str) -> ComparedRun:
        return ComparedRun({"show": (False, kept)}, {"commit": (False, second)}, {}, {})

    first, fresh, later = run("12:00:00", "a"), run("12:00:00", "a"), run("12:00:02", "a")
    assert not first.agrees(run("12:00:01", "a"), fresh)
    assert first.agrees(run("12:00:01", "a"), fresh, later)
    assert not first.agrees(run("12:00:01", "b"), fresh, later), "what the process has kept differs from both"


def test_the_size_of_a_folder_is_no_state() -> None:
    def answer(text: str) -> tuple[bool, str]:
        return Seen("info", {}, text).answer

    assert answer("size: 4096\nisDirectory: true") == answer("size: 40\nisDirectory: true")
    assert answer('{"type": "directory", "size": 4096}') == answer('{"type": "directory", "size": 60}')
    assert answer("size: 3\nisDirectory: false") != answer("size: 4\nisDirectory: false")
    listed = '[{{"type": "file", "size": {}}}, {{"type": "directory", "size": {}}}]'
    assert answer(listed.format(3, 4096)) == answer(listed.format(3, 40))
    assert answer(listed.format(3, 4096)) != answer(listed.format(5, 4096))
