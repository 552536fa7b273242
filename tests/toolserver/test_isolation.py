"""Episodes on stateful servers: turns after a reset, private connections, and the reads of verifiers."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from mcp_rl.errors import PluginError, ServerFault
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.verifier import verify
from mcp_rl.rollouts.player import Player
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import McpScenario, StdioServer, Verifier
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import StopReason, Trajectory

NOTES = StdioServer(command="{python}", args=(str(Path(__file__).with_name("notes_server.py")),))
KINDS = load_plugins().verifiers


def server(isolation: str, instances: int = 1) -> ToolServer:
    reset = "reset" if isolation == "reset" else None
    fields = {"reset_tool": reset, "instances": instances, "sandbox": "off"}  # its process id tells processes apart
    return ToolServer("notes", "Notes.", {"stdio": NOTES}, isolation, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(weights_path()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def taking_turns() -> AsyncIterator[Sessions]:
    async with Sessions(server=server("reset")) as sessions:
        yield sessions


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ask(session: Session, tool: str, /, **arguments: Any) -> Any:
    result = await session.connection.call(tool, arguments)
    return result.structured if tool == "count" else result.text


async def test_every_episode_begins_from_its_own_state(taking_turns: Sessions) -> None:
    async with taking_turns.lease(NOTES, {"begin": {"a": "one"}}) as lease:
        assert await ask(lease.session, "read_note", name="a") == "one"
        await ask(lease.session, "write_note", name="b", text="two")
    async with taking_turns.lease(NOTES) as lease:
        assert (await ask(lease.session, "count"))["notes"] == 0


async def test_episodes_on_one_connection_take_turns(taking_turns: Sessions) -> None:
    seen = []

    async def episode(number: int) -> None:
        async with taking_turns.lease(NOTES) as lease:
            await ask(lease.session, "write_note", name=str(number), text="")
            await anyio.sleep(0.01)
            seen.append((await ask(lease.session, "count"))["notes"])

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(episode, number)
    assert seen == [1] * 6


async def test_no_model_sees_the_reset_tool(taking_turns: Sessions) -> None:
    async with taking_turns.lease(NOTES) as lease:
        assert set(lease.session.schemas.to_server) == {"read_note", "count", "write_note"}
    session = await taking_turns.get(NOTES)
    assert session.schemas is lease.session.schemas


async def test_a_connection_is_reused_unless_spoilt(taking_turns: Sessions) -> None:
    pids = []
    for spoilt in (False, True, False):
        async with taking_turns.lease(NOTES) as lease:
            pids.append((await ask(lease.session, "count"))["pid"])
            lease.spoilt = spoilt
    assert pids[0] == pids[1] != pids[2]
    with pytest.raises(ZeroDivisionError):
        async with taking_turns.lease(NOTES) as lease:
            raise ZeroDivisionError
    async with taking_turns.lease(NOTES) as lease:
        assert (await ask(lease.session, "count"))["pid"] != pids[2]


async def test_a_failed_reset_costs_one_episode(taking_turns: Sessions) -> None:
    with pytest.raises(ServerFault, match=r"could not be reset: its tool reset says .*cannot begin like that"):
        async with taking_turns.lease(NOTES, {"begin": {"broken": ""}}):
            raise AssertionError("an episode began")
    async with taking_turns.lease(NOTES) as lease:
        assert await ask(lease.session, "count")


async def test_each_episode_has_a_connection_up_to_the_limit() -> None:
    pids: list[int] = []
    open_now = most = 0
    both_open = anyio.Event()

    async with Sessions(server=server("per-rollout", instances=2)) as sessions:

        async def episode() -> None:
            nonlocal open_now, most
            async with sessions.lease(NOTES) as lease:
                open_now += 1
                most = max(most, open_now)
                if most == 2:
                    both_open.set()
                await both_open.wait()
                counted = await ask(lease.session, "count")
                assert counted["resets"] == counted["notes"] == 0
                pids.append(counted["pid"])
                await ask(lease.session, "write_note", name="a", text="b")
                open_now -= 1

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(episode)
    assert len(set(pids)) == 3 and most == 2


async def test_a_reset_tool_needs_the_isolation_reset() -> None:
    for fields in (
        {"isolation": "reset"},
        {"isolation": "shared", "reset_tool": "reset"},
        {"isolation": "per-rollout", "instances": 0},
    ):
        with pytest.raises(PluginError):
            ToolServer("notes", "Notes.", {"stdio": NOTES}, **fields)  # type: ignore[arg-type]


# -- whole rollouts


def call(tool: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def task(kind: str, expected: Any = None, **options: Any) -> McpScenario:
    return McpScenario(
        task_description="Note that milk is needed.",
        server_params=NOTES,
        verifier=Verifier(kind=kind, expected=expected, options=options),
        initial_state={"begin": {"old": "tea"}},
    )


Play = Callable[..., Any]


@pytest.fixture
def play(taking_turns: Sessions, chat: ChatFormat) -> Play:
    async def played(scenario: McpScenario, *texts: str, **limits: int) -> Trajectory:
        engine = ScriptedEngine(lambda text, seed, turn: texts[turn], chat)
        player = Player(
            engine, chat, taking_turns, limits=Limits(**limits), finish=lambda s, t: verify(t, s, KINDS)
        )  # fmt: skip
        return await player.play(scenario, 1)

    return played


WRITE = call("write_note", name="milk", text="needed")
READS: list[dict[str, Any]] = [
    {"tool": "read_note", "arguments": {"name": "milk"}, "result": "needed"},
    {"tool": "read_note", "arguments": {"name": "old"}, "result": "tea"},
    {"tool": "read_note", "arguments": {"name": "new"}, "is_error": True},
]


async def test_the_final_state_is_read_on_the_rollouts_own_session(play: Play) -> None:
    done = await play(task("state", READS), WRITE, "Done.")
    assert done.success is True and [read.tool for read in done.final_state] == ["read_note"] * 3
    assert len(done.calls) == 1, "the verifier's own calls are not the model's"
    left_out = await play(task("state", READS), "Done.")
    assert left_out.success is False and "there is no note milk" in left_out.explanation
    wrong = await play(task("state", READS), call("write_note", name="milk", text="not needed"), "Done.")
    assert wrong.success is False and "gives 'not needed'" in wrong.explanation
    assert len(wrong.final_state) == 1, "nothing is read after what refutes it"


async def test_rollouts_of_a_group_do_not_see_each_others_notes(taking_turns: Sessions, chat: ChatFormat) -> None:
    counted = task("state", [{"tool": "count", "result": {"notes": 2}}], subset=True)
    engine = ScriptedEngine(lambda text, seed, turn: (call("write_note", name=str(seed), text=""), "Done.")[turn], chat)
    player = Player(engine, chat, taking_turns, finish=lambda s, t: verify(t, s, KINDS))
    played: list[Trajectory] = []

    async def one(seed: int) -> None:
        played.append(await player.play(counted, seed))

    async with anyio.create_task_group() as tasks:
        for seed in range(8):
            tasks.start_soon(one, seed)
    assert [t.success for t in played] == [True] * 8


async def test_a_read_with_an_unknown_tool_is_a_fault(play: Play) -> None:
    made = await play(task("state", [{"tool": "look", "result": "x"}]), WRITE, "Done.")
    assert made.stop_reason is StopReason.FAULT and "'look'" in made.fault and made.reward is None


async def test_a_task_that_cannot_be_done_is_refused_without_a_change(play: Play) -> None:
    no = "There is no tool for that."
    assert (await play(task("none"), no)).success is True
    assert (await play(task("none"), call("count"), no)).success is True, "looking changes nothing"
    assert (await play(task("none"), WRITE, no)).success is False
    assert (await play(task("none"), "Done!")).success is False


async def test_a_scenario_can_ask_for_its_answer_as_a_call(play: Play) -> None:
    asked = task("text", "tea", submit=True)
    read = call("read_note", name="old")
    handed_in = await play(asked, read, call("complete_task", answer="It is tea."), "never said")
    assert handed_in.success is True and handed_in.stop_reason is StopReason.ANSWERED and handed_in.turns == 2
    assert handed_in.final_answer == "It is tea." and not handed_in.calls[1].sent
    only_said = await play(asked, read, "It is tea.")
    assert only_said.success is False and "not handed in with complete_task" in only_said.explanation
    empty = await play(asked, read, call("complete_task"), call("complete_task", answer="tea"))
    assert empty.success is True and empty.calls[1].is_error
    guessed = await play(asked, call("complete_task", answer="tea"))
    assert guessed.success is False, "handing in is no use of the server's tools"


async def test_handing_in_is_allowed_in_the_last_turn(play: Play) -> None:
    asked = task("text", "tea", submit="hand_in")
    read = call("read_note", name="old")
    assert (await play(asked, read, call("hand_in", answer="tea"), max_turns=2)).success is True
    refused = await play(asked, read, call("hand_in"), "never said", max_turns=2)
    assert refused.stop_reason is StopReason.MAX_TURNS and refused.success is False
    plain = await play(task("text", "tea"), read, call("hand_in", answer="tea"), max_turns=2)
    assert plain.stop_reason is StopReason.MAX_TURNS and plain.submission is None
