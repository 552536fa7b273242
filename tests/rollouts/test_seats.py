"""Several seats in one episode, on the real tic-tac-toe server with scripted models.

1. Each seat has a conversation of its own; a move is answered when the seat's turn comes again.
2. Both seats of one policy are scored, and learned from in groups of their own.
3. A seat that ends early loses; where the server cannot be told, the episode is a fault.
4. A seat whose model cannot be asked, and a turn that belongs to nobody, are faults of the whole episode.
5. Opponents are drawn by the episode's seed, and nothing is learned from them.
6. A scenario without seats is played by the plain loop.
7. A seat has tools and limits of its own.
8. A user's function speaks in a seat; one that fails or never returns costs its own episode.
9. A move after the end is answered with one sentence, and the game stays as it was.
10. A chat model behind an API speaks in a seat; one that refuses the key costs its own episode.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mcp_rl.config import JudgeConfig, RunConfig
from mcp_rl.errors import ConfigError, EngineError
from mcp_rl.evaluation.opponents import check_seats, find_opponents, opened_opponents
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rollouts.episode import EpisodePlan
from mcp_rl.rollouts.own_loop import OwnLoop
from mcp_rl.rollouts.player import SettingPlayer
from mcp_rl.rollouts.seated import Opponent, Opponents, only_the_policy, own_episode, with_seats
from mcp_rl.rollouts.speaker import Limits, PolicySetting
from mcp_rl.scenario import McpScenario, ScenarioSeat, Verifier
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.seats import Seats
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup
from tests.evaluation.chat_server import call, failure, serve

PLUGINS = load_plugins()
SERVER = PLUGINS.servers["mcp_tictactoe"]
Reply = Callable[[str, int, int], str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sessions() -> AsyncIterator[Sessions]:
    async with Sessions(server=SERVER) as opened:
        yield opened


pytestmark = pytest.mark.asyncio(loop_scope="module")


def place(square: int) -> str:
    return f'<tool_call>\n{{"name": "place_mark", "arguments": {{"square": {square}}}}}\n</tool_call>'


def moves(**by_seat: Sequence[int | str]) -> Reply:
    """Make a model that makes these moves, or says these words, by the seat that its request names."""

    def reply(text: str, seed: int, turn: int) -> str:
        seat = re.findall(r"You play (\w)", text)[0]
        said = by_seat[seat][turn]
        return place(said) if isinstance(said, int) else said

    return reply


def scenario(*opening: int, seats: Sequence[str] = ("x", "o"), **fields: Any) -> McpScenario:
    return McpScenario(
        id="a-game", task_description=f"You play {seats[0]}.", server_params=SERVER.params(),
        initial_state={"opening": list(opening)}, verifier=Verifier(kind="tictactoe"),
        seats=tuple(ScenarioSeat(name=name, task=f"You play {name}.") for name in seats), **fields,
    )  # fmt: skip


async def played(
    sessions: Sessions,
    chat: ChatFormat,
    game: McpScenario,
    reply: Reply,
    *,
    opponents: Opponents = only_the_policy,
    seed: int = 1,
    limits: Limits | None = None,
) -> Trajectory:
    engine = ScriptedEngine(reply, chat, version=4)
    player = SettingPlayer(
        partial(PolicySetting, engine, chat), sessions, limits=limits,
        driver=partial(own_episode, opponents=opponents), finish=Scoring(JudgeConfig(), PLUGINS.verifiers).rollout,
    )  # fmt: skip
    return await player.play(game, seed)


def with_rollout(**changes: Any) -> RunConfig:
    config = RunConfig(server=("mcp_tictactoe",))
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=changes)})


def heard(trajectory: Trajectory) -> list[str]:
    return [str(m["content"]).split("\n")[0] for m in trajectory.messages if m["role"] == "tool"]


async def test_1_a_move_is_answered_when_the_seats_turn_comes_again(sessions: Sessions, chat: ChatFormat) -> None:
    first = await played(sessions, chat, scenario(5, 1), moves(x=[3, 7], o=[2]))
    [second] = first.others
    assert (first.seat, second.seat, first.speaker, second.speaker) == ("x", "o", "policy", "policy")
    assert first.messages[0]["content"].startswith("You play x.\no 2 3\n4 x 6\n7 8 9\nOpen lines: ")
    assert second.messages[0]["content"].startswith("You play o.\no 2 x\n4 x 6\n7 8 9\n")
    assert heard(first) == ["o o x", "Game over: x wins."] and heard(second) == ["Game over: x wins."]
    assert [call.arguments for call in second.calls] == [{"square": 2}]
    assert first.stop_reason is second.stop_reason is StopReason.ANSWERED
    assert (first.reward, second.reward, first.success, second.success) == (1.0, pytest.approx(0.03), True, False)
    again = await played(sessions, chat, scenario(5, 1), moves(x=[3, 7], o=[2]))
    assert [one.segments for one in (first, second)] == [one.segments for one in (again, again.others[0])]
    assert Trajectory.model_validate_json(first.model_dump_json()) == first


async def test_1_the_first_seat_need_not_move_first_and_may_mend_an_illegal_move(
    sessions: Sessions, chat: ChatFormat
) -> None:
    trajectory = await played(sessions, chat, scenario(5, 1, seats=("o", "x")), moves(x=[3, 7], o=[5, 2]))
    [other] = trajectory.others
    assert (trajectory.seat, other.seat) == ("o", "x")
    assert heard(trajectory)[0].startswith("Square 5 is taken by x.") and heard(trajectory)[1] == "Game over: x wins."
    assert (trajectory.metrics["illegal"], other.metrics["won"]) == (1.0, 1.0)


async def test_2_each_seat_of_the_policy_is_learned_from_in_a_group_of_its_own(
    sessions: Sessions, chat: ChatFormat
) -> None:
    game = scenario(5, 1)
    won = await played(sessions, chat, game, moves(x=[3, 7], o=[2]))
    lost = await played(sessions, chat, game, moves(x=[9, 6], o=[3, 2]), seed=2)
    groups = with_seats([TrajectoryGroup(scenario=game, trajectories=[won, lost])])
    assert [(group.scenario.id, len(group)) for group in groups] == [("a-game", 2), ("a-game/o", 2)]
    assert groups[1].scenario.task_description == "You play o." and groups[1].scenario.seats[0].name == "o"
    assert all(group.has_variance for group in groups)


async def test_3_a_seat_that_ends_early_loses(sessions: Sessions, chat: ChatFormat) -> None:
    trajectory = await played(sessions, chat, scenario(5, 1), moves(x=[3, 9], o=["I give up."]))
    [other] = trajectory.others
    assert heard(trajectory) == ["o has left the game. Game over: x wins."]
    assert (trajectory.reward, other.reward, other.metrics["lost"]) == (1.0, 0.0, 1.0)
    trajectory = await played(sessions, chat, scenario(5, 1), moves(x=["I give up."], o=[]))
    [other] = trajectory.others
    assert (trajectory.metrics["lost"], other.metrics["won"], other.turns) == (1.0, 1.0, 0)


async def test_3_without_a_tool_to_leave_a_seat_that_ends_early_is_a_fault(
    sessions: Sessions, chat: ChatFormat
) -> None:
    seats = Seats(yields=("place_mark",), view="show_board")
    async with Sessions(server=replace(SERVER, seats=seats)) as others:
        trajectory = await played(others, chat, scenario(5, 1), moves(x=[3], o=["No."]))
    assert trajectory.stop_reason is trajectory.others[0].stop_reason is StopReason.FAULT
    assert trajectory.fault == "The seat o ended before the game was over, and the server has no tool to leave it."
    assert trajectory.reward is None and with_seats([TrajectoryGroup(scenario=scenario(5, 1))])[1:] == []


class Silent(ScriptedEngine):
    """A model that cannot be asked."""

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[Any]:
        raise EngineError("The model gave no turn: connection refused.")
        yield


async def test_4_an_opponent_that_cannot_be_asked_is_a_fault_of_the_episode(
    sessions: Sessions, chat: ChatFormat
) -> None:
    engine = Silent(lambda text, seed, turn: "", chat)
    silent = Opponent("far", lambda session: PolicySetting(engine, chat, session))
    trajectory = await played(sessions, chat, scenario(5, 1), moves(x=[3]), opponents=lambda named, seed: silent)
    assert trajectory.stop_reason is StopReason.FAULT and trajectory.reward is None
    assert trajectory.fault == "Seat o (far): The model gave no turn: connection refused."


async def test_4_a_turn_that_belongs_to_nobody_is_a_fault(sessions: Sessions, chat: ChatFormat) -> None:
    trajectory = await played(sessions, chat, scenario(5, 1, seats=("x", "z")), moves(x=[3], z=[1]))
    assert trajectory.fault and "It is the turn of 'o', who does not play" in trajectory.fault


async def test_4_on_a_server_without_seats_the_episode_is_a_fault(sessions: Sessions, chat: ChatFormat) -> None:
    async with Sessions(server=replace(SERVER, seats=None)) as others:
        trajectory = await played(others, chat, scenario(5, 1), moves(x=[3], o=[2]))
    assert trajectory.fault == "The scenario has seats, and its server declares none." and trajectory.reward is None


async def test_4_a_deadline_ends_all_seats(sessions: Sessions, chat: ChatFormat) -> None:
    trajectory = await played(sessions, chat, scenario(5, 1), moves(x=[3, 7], o=[2]), limits=Limits(seconds=0.0))
    assert trajectory.stop_reason is StopReason.TIMEOUT and trajectory.reward is trajectory.others[0].reward is None


async def test_5_opponents_are_drawn_by_the_seed_and_nothing_is_learned_from_them(
    sessions: Sessions, chat: ChatFormat
) -> None:
    config = with_rollout(opponents=("policy", "scripted:refuse"))
    async with opened_opponents(config) as opponents:
        drawn = Counter(opponents(None, seed).name for seed in range(200))
        assert 60 < drawn["policy"] < 140 and opponents("scripted:refuse", 1).name == "scripted:refuse"
        game = scenario(5, 1)
        games = [
            await played(sessions, chat, game, moves(x=[3, 7], o=[2]), opponents=opponents, seed=seed)
            for seed in range(8)
        ]
    speakers = [one.others[0].speaker for one in games]
    assert set(speakers) == {"policy", "scripted:refuse"} and all(one.reward == 1.0 for one in games)
    [_, group] = with_seats([TrajectoryGroup(scenario=game, trajectories=games)])
    assert {one.speaker for one in group} == {"policy"} and len(group) == speakers.count("policy")
    assert find_opponents(RunConfig(server=("x",))) == {"policy": None}


async def test_6_a_scenario_without_seats_is_played_by_the_plain_loop(sessions: Sessions, chat: ChatFormat) -> None:
    session: Session = await sessions.get(SERVER.params())
    plain = scenario(5, 1).model_copy(update={"seats": ()})
    setting = PolicySetting(ScriptedEngine(moves(x=[3]), chat), chat, session)
    assert type(own_episode(EpisodePlan(setting, plain, 1, 1.0, Limits()))) is OwnLoop


async def test_7_a_seat_has_tools_and_limits_of_its_own(sessions: Sessions, chat: ChatFormat) -> None:
    seats = (ScenarioSeat(name="x", max_turns=1), ScenarioSeat(name="o", task="You play o.", tools=("place_mark",)))
    look = '<tool_call>\n{"name": "show_board", "arguments": {}}\n</tool_call>'
    game = scenario(5).model_copy(update={"seats": seats})
    trajectory = await played(sessions, chat, game, moves(o=[look, 1], x=[look]))
    [other] = trajectory.others
    assert "place_mark" in heard(other)[0] and other.calls[0].is_error and not other.calls[0].sent
    assert [call.arguments for call in other.calls[1:]] == [{"square": 1}]
    assert (trajectory.stop_reason, trajectory.turns, trajectory.metrics["lost"]) == (StopReason.MAX_TURNS, 1, 1.0)
    assert other.metrics["won"] == 1.0 and heard(other)[1] == "x has left the game. Game over: o wins."


PLAYERS = """
import time

def first_free(turn):
    taken = turn.messages[-1]["content"]
    assert turn.seat == "o" and turn.tools[0]["type"] == "function" and turn.seed
    return {"name": "place_mark", "arguments": {"square": next(n for n in range(1, 10) if str(n) in taken)}}

async def gives_up(turn):
    return "I give up."

def broken(turn):
    raise KeyError("board")

def nonsense(turn):
    return 7

def never(turn):
    time.sleep(60)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def players(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("players") / "players.py"
    file.write_text(PLAYERS)
    return file


@pytest.mark.parametrize(
    ("function", "stop", "said"),
    [
        ("first_free", StopReason.ANSWERED, None),
        ("gives_up", StopReason.ANSWERED, None),
        ("broken", StopReason.FAULT, "failed: KeyError: 'board'."),
        ("nonsense", StopReason.FAULT, 'must return a text, or calls as {"name": …, "arguments": {…}}, not 7.'),
        ("never", StopReason.TIMEOUT, None),
    ],
)
async def test_8_a_function_speaks_in_a_seat(
    sessions: Sessions, chat: ChatFormat, players: Path, function: str, stop: StopReason, said: str | None
) -> None:
    name = f"{players}:{function}"
    async with opened_opponents(with_rollout(opponents=(name,))) as opponents:
        limits = Limits(seconds=1.0 if function == "never" else 60.0)
        game = scenario(5, 1)
        trajectory = await played(sessions, chat, game, moves(x=[3, 7, 7]), opponents=opponents, limits=limits)
    [other] = trajectory.others
    assert (trajectory.stop_reason, other.speaker) == (stop, name)
    assert trajectory.fault == (f"Seat o ({name}): The function {name} {said}" if said else None)
    if function == "first_free":
        assert [call.arguments for call in other.calls] == [{"square": 2}] and other.segments == []
    assert (trajectory.reward is None) == (stop is not StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.py:play", "The opponent's file 'nowhere.py' cannot be read"),
        ("{players}:plays", "has no function 'plays'; there are: first_free, gives_up, broken, nonsense, never"),
        ("no_such_package:play", "The opponent's module 'no_such_package' is neither in"),
    ],
)
async def test_8_a_function_that_is_not_there_is_refused(players: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        find_opponents(with_rollout(opponents=(name.format(players=players),)))


async def test_9_a_move_after_the_end_is_one_sentence(sessions: Sessions, chat: ChatFormat) -> None:
    both = f"{place(7)}\n{place(9)}"  # the first one wins
    trajectory = await played(sessions, chat, scenario(5, 1, 3, 2), moves(x=[both], o=[]))
    won, late = trajectory.calls
    assert won.result == "Game over: x wins." and not won.is_error
    assert late.is_error and late.result.startswith("The game is over") and "\n" not in late.result
    assert trajectory.stop_reason is StopReason.ANSWERED and trajectory.fault is None
    assert trajectory.others[0].metrics["lost"] == 1.0 and trajectory.metrics["illegal"] == 1.0
    after = await played(sessions, chat, scenario(5, 1), moves(x=[3, 7], o=[2]))  # on the same server
    assert after.reward == 1.0


async def test_10_a_chat_model_speaks_in_a_seat(
    sessions: Sessions, chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-stub")

    def says(body: dict[str, Any], number: int) -> Any:
        return failure(401, "no such key") if number else call("place_mark", {"square": 2})

    with serve(says) as server:
        name = f"openai/far@{server.url}"
        async with opened_opponents(with_rollout(opponents=(name,))) as opponents:
            won = await played(sessions, chat, scenario(5, 1), moves(x=[3, 7], o=[]), opponents=opponents)
            lost = await played(sessions, chat, scenario(5, 1), moves(x=[3, 7], o=[]), opponents=opponents)
    [other] = won.others
    assert (won.reward, other.speaker, other.metrics["lost"]) == (1.0, name, 1.0)
    assert other.messages[0]["content"].startswith("You play o.") and not other.segments
    asked = server.requests[0]
    assert asked["model"] == "far" and [tool["function"]["name"] for tool in asked["tools"]] == [
        "place_mark",
        "show_board",
    ]
    assert lost.stop_reason is StopReason.FAULT and lost.reward is None
    assert "no such key" in (lost.fault or "")


@pytest.mark.parametrize(
    ("changes", "declared", "judged", "said"),
    [
        ({}, False, False, "its server declares none"),
        ({}, True, True, "no judge scores"),
        ({"agent": "python x.py"}, True, False, "agent program cannot play"),
        ({"opponents": ("earlier",)}, True, False, "'teacher', which is not among the opponents (earlier)"),
    ],
)
async def test_seats_that_cannot_be_played_are_refused_before_a_run(
    changes: dict[str, Any], declared: bool, judged: bool, said: str
) -> None:
    config = with_rollout(**changes)
    seats = (ScenarioSeat(name="x"), ScenarioSeat(name="o", played_by="teacher"))
    game = scenario(5, 1).model_copy(update={"seats": seats})
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_seats([game], config, seats=declared, judged=judged)


@pytest.mark.parametrize("names", [("policy", "policy"), ("scripted:refus",)])
async def test_opponents_that_cannot_be_found_are_refused(names: tuple[str, ...]) -> None:
    config = with_rollout(opponents=names)
    with pytest.raises(ConfigError, match=re.escape(repr(names[-1]).strip("'").removeprefix("scripted:"))):
        find_opponents(config)
