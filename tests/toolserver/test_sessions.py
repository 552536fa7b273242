"""Sessions: isolation, several servers together, the choice of tools, and retries."""

import json
import os
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ConfigError, PluginError, ScenarioError, SchemaChanged, ServerError, ServerFault
from mcp_rl.scenario import McpScenario, StdioServer, scenario_lines
from mcp_rl.toolserver import connector, slots
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.pool import Sessions, open_sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = str(Path(__file__).with_name("stateful_server.py"))


def stdio(*arguments: str) -> StdioServer:
    return StdioServer(command="{python}", args=("-S", SCRIPT, *arguments))


def server(name: str = "state", *arguments: str, **fields: Any) -> ToolServer:
    return ToolServer(name, "A state.", {"stdio": stdio(*arguments)}, sandbox="off", **fields)


def opened(server: ToolServer, **tools: Any) -> AbstractAsyncContextManager[Sessions]:
    return open_sessions(server, ToolsConfig(**tools))


async def ask(session: Session, tool: str, **arguments: Any) -> Any:
    result = await session.connection.call(tool, arguments)
    assert not result.is_error, result.text
    return json.loads(result.text)


# -- isolation


@pytest.mark.parametrize(("arguments", "found"), [((), "shared"), (("destroys",), "per-rollout")])
async def test_annotations_imply_an_undeclared_isolation(arguments: tuple[str, ...], found: str) -> None:
    state = server("state", *arguments)
    async with opened(state) as sessions:
        assert await sessions.isolation(state.params()) == found
        pids = []
        for _ in range(2):
            async with sessions.lease(state.params()) as lease:
                pids.append((await ask(lease.session, "write", text="x"))["pid"])
        assert (pids[0] == pids[1]) == (found == "shared")


async def test_a_declared_isolation_overrides_listing_and_plugin() -> None:
    declared = server("state", "destroys").configured(ToolsConfig(isolation="shared"))
    async with Sessions(server=declared) as sessions:
        assert await sessions.isolation(declared.params()) == "shared"
    resetting = server("state").configured(ToolsConfig(reset_tool="reset"))
    assert (resetting.isolation, resetting.reset_tool) == ("reset", "reset")
    assert resetting.configured(ToolsConfig(isolation="per-rollout")).reset_tool is None
    assert resetting.configured(ToolsConfig(isolation="reset", max_servers=2)).instances == 2
    with pytest.raises(PluginError, match=r"tools\.reset_tool"):
        server().configured(ToolsConfig(isolation="reset"))


async def test_hidden_tools_do_not_affect_the_isolation() -> None:
    state = server("state", "destroys")
    async with opened(state, exclude=("write", "reset")) as sessions:
        assert await sessions.isolation(state.params()) == "shared"


async def test_a_reset_function_gets_the_state_and_may_fail() -> None:
    async def reset(link: Link, state: dict[str, Any]) -> None:
        await link.call("write", {"text": state["text"]})

    state = server(reset=reset)
    assert state.isolation == "reset"
    async with opened(state) as sessions:
        async with sessions.lease(state.params(), {"text": "begin"}) as lease:
            assert (await ask(lease.session, "look"))["value"] == "begin"
        with pytest.raises(ServerFault, match="could not be reset: KeyError"):
            async with sessions.lease(state.params()):
                raise AssertionError("an episode began")


# -- the choice of tools


async def test_included_and_excluded_tools_are_names_or_patterns() -> None:
    state = server()
    for tools, names in (
        ({"include": ("look",)}, {"look"}),
        ({"exclude": ("w*",)}, {"look", "reset"}),
        ({"include": ("state__*",), "exclude": ("state__reset",)}, {"look", "write"}),
    ):
        async with opened(state, **tools) as sessions:
            session = await sessions.get(state.params())
            assert set(session.schemas.to_openai) == {tool.name for tool in session.offered} == names
            assert session.tool_names == {"look", "write", "reset"}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"include": ("lok",)}, "did you mean 'look'"),
        ({"exclude": ("*",)}, "leave no tool"),
        ({"deadlines": {"lok": 1.0}}, "tools.deadlines names 'lok'.*did you mean 'look'"),
        ({"reset_tool": "rest"}, "has no reset tool 'rest'; did you mean 'reset'"),
    ],
)
async def test_a_choice_that_fits_no_tool_or_leaves_none_is_refused(tools: dict[str, Any], words: str) -> None:
    state = server().configured(ToolsConfig(**tools))
    async with opened(state, **tools) as sessions:
        with pytest.raises(ConfigError, match=words):
            await sessions.get(state.params())


async def test_tool_names_may_hold_two_underscores() -> None:
    deep = server("one", "nested")
    both = ToolServer.together([deep, server("two")])
    for asked, tools, names in (
        (deep, {"exclude": ("look",)}, {"write", "reset", "deep__look"}),
        (both, {"include": ("deep__look",)}, {"one__deep__look"}),
        (both, {"include": ("one__deep__look", "two__look")}, {"one__deep__look", "two__look"}),
    ):
        async with opened(asked, **tools) as sessions:
            assert set((await sessions.get(asked.params())).schemas.to_openai) == names


async def test_deadlines_of_tools_apply_by_either_name() -> None:
    both = ToolServer.together([server("one"), server("two")])
    for asked, named, called in (
        (server(), "look", "look"),
        (both, "one__look", "one__look"),
        (both, "look", "two__look"),
    ):
        async with opened(asked, deadlines={named: 0.2}) as sessions:
            session = await sessions.get(asked.params())
            with anyio.fail_after(20), pytest.raises(ServerFault, match="did not answer a call of look within"):
                await session.connection.call(called, {"hang": True})


# -- several servers


async def test_a_reset_tool_is_one_servers_where_there_are_several() -> None:
    both = ToolServer.together([server("one"), server("two")])
    with pytest.raises(PluginError, match="such as one__reset"):
        both.configured(ToolsConfig(reset_tool="reset"))
    settings = ToolsConfig(isolation="reset", reset_tool="two__reset")
    chosen = both.configured(settings)
    assert [member.isolation for member in chosen.members] == [None, "reset"]
    async with (
        Sessions(server=chosen, tools=settings) as sessions,
        sessions.lease(chosen.params(), {"two": {"text": "begin"}}) as lease,
    ):
        assert (await ask(lease.session, "two__look"))["value"] == "begin"
        assert "two__reset" not in lease.session.schemas.to_openai


async def test_servers_in_a_group_keep_their_own_states() -> None:
    one, two = server("one", reset_tool="reset"), server("two")
    both = ToolServer.together([one, two])
    params = both.params()
    async with opened(both) as sessions:
        session = await sessions.get(params)
        assert set(session.schemas.to_server.values()) == {"one__look", "one__write", "two__look", "two__write",
                                                           "two__reset"}  # fmt: skip
        assert await sessions.isolation(params) == "reset"
        async with sessions.lease(params, {"one": {"text": "begin"}}) as lease:
            assert lease.session.schemas is session.schemas
            first = await ask(lease.session, "one__look")
            assert first["value"] == "begin"
            other = await ask(lease.session, "two__write", text="shared")
            assert other["pid"] != first["pid"]
        async with sessions.lease(params) as lease:
            assert await ask(lease.session, "one__look") == {"value": "", "pid": first["pid"]}
            assert await ask(lease.session, "two__look") == {"value": "shared", "pid": other["pid"]}
            lease.spoilt = True
        async with sessions.lease(params) as lease:
            assert (await ask(lease.session, "one__look"))["pid"] != first["pid"]


async def test_leases_of_several_servers_never_deadlock() -> None:
    a, b = (server(name, reset_tool="reset", instances=1) for name in "ab")
    groups = [ToolServer.together([a, b]), ToolServer.together([b, a])]
    played = []
    async with opened(groups[0]) as sessions:

        async def episode(number: int) -> None:
            async with sessions.lease(groups[number % 2].params()) as lease:
                await ask(lease.session, "a__write", text=str(number))
                await ask(lease.session, "b__write", text=str(number))
                played.append((await ask(lease.session, "a__look"))["value"] == str(number))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(episode, number)
    assert played == [True] * 12


async def test_several_servers_that_cannot_be_one_are_refused() -> None:
    with pytest.raises(PluginError, match="Next to the server one, no server may be called one__…"):
        ToolServer.together([server("one"), server("one__two")])
    with pytest.raises(PluginError, match="'one' is named twice"):
        ToolServer.together([server("one"), server("one")])
    both = ToolServer.together([server("one"), server("two", reset_tool="reset")])
    async with opened(both) as sessions:
        with pytest.raises(ScenarioError, match="under each server's name"):
            async with sessions.lease(both.params(), {"text": "begin"}):
                raise AssertionError("an episode began")


def test_a_scenario_for_several_servers_round_trips() -> None:
    both = ToolServer.together([server("one"), server("two")])
    scenario = McpScenario(task_description="x", server_params=both.params(), server=both.name)
    read = McpScenario.model_validate_json(scenario_lines([scenario]))
    assert read == scenario and read.server_params == both.params()


# -- restarts and idle connections


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_changed_listing_stops_the_run_unless_allowed(tmp_path: Path, allowed: bool) -> None:
    state = server("state", "grows", str(tmp_path / "grown"), isolation="per-rollout")
    async with opened(state, allow_schema_change=allowed) as sessions:
        async with sessions.lease(state.params()) as lease:
            assert "erase" not in lease.session.schemas.to_server
        (tmp_path / "grown").touch()
        if allowed:
            async with sessions.lease(state.params()) as lease:
                assert "erase" in lease.session.schemas.to_server
        else:
            with pytest.raises(SchemaChanged, match="has added 'erase' since"):
                async with sessions.lease(state.params()):
                    raise AssertionError("an episode began")


async def test_a_server_that_worked_is_tried_again_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "_FIRST_PAUSE", 0.2)
    away, tries = tmp_path / "away", tmp_path / "away.tries"
    state = server("state", "down", str(away), isolation="per-rollout")
    async with opened(state) as sessions:

        async def episode() -> None:
            async with sessions.lease(state.params()) as lease:
                await ask(lease.session, "look")

        await episode()
        away.touch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(episode)
            with anyio.fail_after(20):
                while not tries.exists():  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            away.unlink()
        tries.unlink()
        away.touch()
        with pytest.raises(ServerError, match="the database is away"):
            await episode()
        assert tries.read_text() == 4 * "tried\n"
        away.unlink()
        await episode()


async def test_waiting_callers_share_the_failure_of_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "_FIRST_PAUSE", 0.2)
    monkeypatch.setattr(connector, "_WAITED", 0.4)
    away = tmp_path / "away"
    state = server("state", "down", str(away), isolation="per-rollout", instances=1)
    async with opened(state) as sessions:
        await sessions.get(state.params())
        away.touch()
        failed = 0

        async def episode() -> None:
            nonlocal failed
            with pytest.raises(ServerError, match="the database is away"):
                async with sessions.lease(state.params()):
                    raise AssertionError("an episode began")
            failed += 1

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(episode)
        assert failed == 20


async def test_occasional_failed_starts_cost_no_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "_FIRST_PAUSE", 0.1)
    state = server("state", "falters", str(tmp_path / "starts"), isolation="per-rollout", instances=1)
    async with opened(state) as sessions:
        await sessions.get(state.params())
        played = 0

        async def episode() -> None:
            nonlocal played
            for attempt in range(3):
                try:
                    async with sessions.lease(state.params()):
                        played += 1
                        return
                except ServerError:
                    assert attempt < 2, "the fault was there again at once"

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(episode)
        assert played == 3


async def test_a_server_that_never_worked_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "away").touch()
    state = server("state", "down", str(tmp_path / "away"))
    async with opened(state) as sessions:
        with pytest.raises(ServerError, match="the database is away"):
            await sessions.get(state.params())
    tried = (tmp_path / "away.tries").read_text()
    assert tried == "tried\n" * 2  # once for each era of the protocol


async def test_idle_connections_are_closed_and_reopened() -> None:
    state = server("state", reset_tool="reset", instances=2)
    async with opened(state, idle_seconds=0.4) as sessions:
        async with sessions.lease(state.params()) as first:
            async with sessions.lease(state.params()) as second:
                idle = second.session.connection
            with anyio.fail_after(20):
                while idle.alive:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert first.session.connection.alive  # an episode holds it, however long it takes
            before = await ask(first.session, "look")
        with anyio.fail_after(20):
            while first.session.connection.alive:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        async with sessions.lease(state.params()) as lease:
            assert (await ask(lease.session, "look"))["pid"] != before["pid"]


async def test_a_rested_connection_is_pinged_before_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_PING_AFTER", 0.0)
    monkeypatch.setattr(slots, "_PING_SECONDS", 1.0)
    state = server("state", reset_tool="reset", instances=1)
    async with opened(state) as sessions:
        pids = []
        for stopped in (False, False, True):
            async with sessions.lease(state.params()) as lease:
                pids.append((await ask(lease.session, "look"))["pid"])
                await anyio.sleep(0.01)
            if stopped:
                os.kill(pids[-1], signal.SIGSTOP)
        async with sessions.lease(state.params()) as lease:
            assert (await ask(lease.session, "look"))["pid"] != pids[0] == pids[1] == pids[2]


async def test_a_server_that_does_not_list_resources_is_a_fault(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    deadlines = {"list": 1.0, "call": 1.0}
    state = server("state", "mute", str(mute), isolation="per-rollout", offer=("resources",), deadlines=deadlines)
    async with opened(state) as sessions:
        assert "read_resource" in (await sessions.get(state.params())).schemas.to_openai
        mute.touch()
        with pytest.raises(ServerFault, match="resources/list"):
            async with sessions.lease(state.params()):
                raise AssertionError("an episode began")
        mute.unlink()
        async with sessions.lease(state.params()) as lease:
            assert "read_resource" in lease.session.schemas.to_openai
