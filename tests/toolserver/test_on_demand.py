"""Episodes take their place on a server at their first call."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from transformers import AutoTokenizer

from mcp_rl.config import Isolation, ToolsConfig
from mcp_rl.errors import ScenarioError, ServerFault
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.inference.scripted import ScriptedEngine, ScriptedEpisode
from mcp_rl.rollouts.player import Player
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import McpScenario, StdioServer, Verifier
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver import instances
from mcp_rl.toolserver.cassette import Cassette
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.slots import Slots
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import StopReason, Trajectory

STATE = StdioServer(command="{python}", args=("-S", str(Path(__file__).with_name("stateful_server.py"))))
TASK = McpScenario(task_description="Write.", server_params=STATE, initial_state={"text": "begin"})


def server(isolation: Isolation = "reset", *, name: str = "state", most: int | None = None) -> ToolServer:
    reset = "reset" if isolation == "reset" else None
    return ToolServer(name, "A state.", {"stdio": STATE}, isolation, reset_tool=reset, instances=most, sandbox="off")


def call(tool: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


class SlowEngine(ScriptedEngine):
    """Takes a while for each turn, and counts the turns under way."""

    now = most = 0

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[ScriptedEpisode]:
        yield SlowEpisode(self, seed)


class SlowEpisode(ScriptedEpisode):
    _engine: SlowEngine

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        engine = self._engine
        engine.now += 1
        engine.most = max(engine.most, engine.now)
        try:
            await anyio.sleep(0.02)
            return await super().generate(new_ids, sampling)
        finally:
            engine.now -= 1


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(weights_path()))


def writes_and_looks(text: str, seed: int, turn: int) -> str:
    return (call("write", text=str(seed)), call("look"), "Done.")[turn]


async def played(player: Player, count: int, scenario: McpScenario = TASK) -> list[Trajectory]:
    done: list[Trajectory | None] = [None] * count

    async def one(seed: int) -> None:
        done[seed] = await player.play(scenario, seed)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for seed in range(count):
                tasks.start_soon(one, seed)
    return [trajectory for trajectory in done if trajectory is not None]


def seen(trajectory: Trajectory) -> tuple[str, int]:
    """Return the text and the process that the last look saw."""
    found = json.loads(trajectory.calls[-1].result)
    return found["value"], found["pid"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The connections that slots opened, by the name of their server."""
    names: list[str] = []
    opening = Slots._opened

    async def counted(self: Slots, slot: Any, asked: float) -> Any:
        before = slot.connection
        connection = await opening(self, slot, asked)
        names.extend([self._server] if connection is not before else [])
        return connection

    monkeypatch.setattr(Slots, "_opened", counted)
    return names


@pytest.mark.parametrize("isolation", ["reset", "per-rollout"])
async def test_an_episode_without_a_call_starts_no_server(
    chat: ChatFormat, opened: list[str], isolation: Isolation
) -> None:
    async with Sessions(server=server(isolation)) as sessions:
        player = Player(ScriptedEngine(lambda text, seed, turn: "No.", chat), chat, sessions)
        answered = await played(player, 8)
        assert [t.stop_reason for t in answered] == [StopReason.ANSWERED] * 8 and not opened
        read = Verifier(kind="state", expected=[{"tool": "look", "result": "x"}])
        (looked,) = await played(player, 1, TASK.model_copy(update={"verifier": read}))
        assert json.loads(looked.final_state[0].result)["value"] == ("begin" if isolation == "reset" else "")
        assert opened == ["state"]


@pytest.mark.parametrize("isolation", ["reset", "per-rollout"])
async def test_episodes_are_sampled_together_on_few_servers(
    chat: ChatFormat, opened: list[str], isolation: Isolation
) -> None:
    async with Sessions(server=server(isolation, most=3)) as sessions:
        engine = SlowEngine(writes_and_looks, chat)
        count = 64 if isolation == "reset" else 12
        done = await played(Player(engine, chat, sessions), count)
    assert engine.most > 6, "twice as many as there are servers"
    assert [seen(t)[0] for t in done] == [str(seed) for seed in range(count)], "no two states mix"
    pids = {seen(t)[1] for t in done}
    assert len(pids) <= 3 if isolation == "reset" else len(pids) == count
    assert len(opened) <= 3 if isolation == "reset" else count <= len(opened) <= count + 1


@pytest.mark.usefixtures("usual_instances")
async def test_by_default_more_than_four_hold_a_server_at_once(
    chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "cpu_limit", lambda: 1)
    async with Sessions(server=server()) as sessions:
        done = await played(Player(SlowEngine(writes_and_looks, chat), chat, sessions), 24)
        assert len({seen(t)[1] for t in done}) == 8
    async with Sessions(server=server().configured(ToolsConfig(max_servers=1))) as sessions:
        done = await played(Player(SlowEngine(writes_and_looks, chat), chat, sessions), 4)
        assert len({seen(t)[1] for t in done}) == 1


@pytest.mark.usefixtures("usual_instances")
def test_little_memory_means_few_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "cpu_limit", lambda: 2)
    monkeypatch.setattr(instances, "_bytes_of_a_server", lambda: 100 * 2**20)
    found = []
    for free in (64 * 2**30, 2 * 2**30, 50 * 2**20):
        monkeypatch.setattr(instances, "machine_memory", lambda free=free: (2 * free, free))
        found.append(instances.affordable_instances())
    assert found == [16, 5, 1]


async def test_the_next_server_starts_while_the_model_samples(opened: list[str]) -> None:
    async with (
        Sessions(server=server("per-rollout", most=3)) as sessions,
        sessions.episode(STATE) as one,
        sessions.episode(STATE) as two,
    ):
        assert not opened
        await one.session.connection.call("look", {})
        with anyio.fail_after(10):
            while len(opened) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await two.session.connection.call("look", {})
        await anyio.sleep(0.1)
        assert len(opened) == 2, "no further episode is under way"


async def test_two_servers_are_kept_ready_for_many_episodes(opened: list[str]) -> None:
    async with Sessions(server=server("per-rollout", most=6)) as sessions, AsyncExitStack() as episodes:
        one, *_ = [await episodes.enter_async_context(sessions.episode(STATE)) for _ in range(5)]
        await one.session.connection.call("look", {})
        with anyio.fail_after(10):
            while len(opened) < 3:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await anyio.sleep(0.3)
        assert len(opened) == 3, "the one in use and two"


async def test_a_server_starts_when_an_episode_begins_if_earlier_ones_called_it(opened: list[str]) -> None:
    async with Sessions(server=server("per-rollout", most=3)) as sessions:
        async with sessions.episode(STATE) as first:
            await first.session.connection.call("look", {})
        assert len(opened) == 1
        async with sessions.episode(STATE) as next_one:
            with anyio.fail_after(30):
                while len(opened) < 2:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await next_one.session.connection.call("look", {})
            assert len(opened) == 2, "the call found the server that was started ahead"


async def test_episodes_on_two_servers_do_not_block_each_other(chat: ChatFormat) -> None:
    both = ToolServer.together([server(name="a", most=1), server(name="b", most=1)])

    def crosswise(text: str, seed: int, turn: int) -> str:
        order = ("a", "b") if seed % 2 else ("b", "a")
        return (*(call(f"{name}__write", text=str(seed)) for name in order), call("a__look"), "Done.")[turn]

    task = McpScenario(task_description="Write.", server_params=both.params())
    async with Sessions(server=both) as sessions:
        done = await played(Player(SlowEngine(crosswise, chat), chat, sessions), 8, task)
        with pytest.raises(ScenarioError, match="under each server's name"):
            async with sessions.episode(both.params(), {"c": {}}):
                raise AssertionError("an episode began")
    assert [seen(t)[0] for t in done] == [str(seed) for seed in range(8)]


async def test_a_reset_that_fails_is_one_fault_for_all_calls_of_a_turn(chat: ChatFormat) -> None:
    looks = "\n".join([call("look"), call("look")])
    engine = ScriptedEngine(lambda text, seed, turn: (looks, "Done.")[turn], chat)
    async with Sessions(server=server(most=1), deadlines=Deadlines(call=1.0)) as sessions:
        player = Player(engine, chat, sessions)
        (faulted,) = await played(player, 1, TASK.model_copy(update={"initial_state": {"hang": True}}))
        assert faulted.stop_reason is StopReason.FAULT
        assert faulted.fault is not None and "did not answer a call of reset" in faulted.fault
        (after,) = await played(player, 1)
        assert after.stop_reason is StopReason.ANSWERED and len(after.calls) == 2


async def test_a_server_that_cannot_be_opened_is_a_fault_at_the_call() -> None:
    sessions = Sessions(server=server(most=1))
    await sessions.__aenter__()
    async with sessions.episode(STATE) as lease:
        await sessions.__aexit__(None, None, None)
        for _ in range(2):
            with pytest.raises(ServerFault, match="closed"):
                await lease.session.connection.call("look", {})
        assert not lease.session.connection.alive


async def test_a_spoilt_episode_costs_its_server(opened: list[str]) -> None:
    async with Sessions(server=server(most=1)) as sessions:
        for spoilt in (False, True, False):
            async with sessions.episode(STATE) as lease:
                await lease.session.connection.call("look", {})
                lease.spoilt = spoilt
    assert len(opened) == 2


async def test_waiting_for_a_server_is_not_the_episodes_time(chat: ChatFormat) -> None:
    async with Sessions(server=server(most=1)) as sessions:
        async with sessions.lease(STATE):
            player = Player(
                ScriptedEngine(writes_and_looks, chat), chat, sessions, limits=Limits(seconds=0.5)
            )  # fmt: skip
            late: list[Trajectory] = []
            async with anyio.create_task_group() as tasks:

                async def play() -> None:
                    late.extend(await played(player, 1))

                tasks.start_soon(play)
                await anyio.sleep(0.8)
                held = not late
                tasks.cancel_scope.cancel()
        assert held
        (done,) = await played(player, 1)
        assert done.stop_reason is StopReason.ANSWERED and done.seconds < 0.5


async def test_a_recording_replays_episodes_with_and_without_calls(chat: ChatFormat, tmp_path: Path) -> None:
    def sometimes(text: str, seed: int, turn: int) -> str:
        return writes_and_looks(text, seed, turn) if seed % 2 else "No."

    results = []
    for make in (Cassette.recording, Cassette.replaying):
        with make(tmp_path / "calls.jsonl") as cassette:
            async with Sessions(server=server(), cassette=cassette) as sessions:
                done = await played(Player(ScriptedEngine(sometimes, chat), chat, sessions), 6)
                results.append([[c.result for c in t.calls] for t in done])
    assert results[0] == results[1] and [len(calls) for calls in results[0]] == [0, 2] * 3
