"""Tic-tac-toe: its rules, its players, the real server, scenarios split by openings, and the verifier."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verifier import verify
from mcp_rl.scenario import McpScenario, distinct
from mcp_rl.scenarios.split import overlap
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

sys.path.append(str(bundled_root() / "servers/python/mcp_tictactoe"))
import game

PLUGINS = load_plugins()
SERVER = PLUGINS.servers["mcp_tictactoe"]


def made(source: str, count: int = 90) -> list[McpScenario]:
    recipe = Recipe(count)
    return list(PLUGINS.scenario_sources[source](None, server=SERVER, params=SERVER.params(), recipe=recipe))


def test_every_player_moves_as_it_says_and_repeats_itself() -> None:
    board = game.opened([1, 5, 2])  # o must take 3
    assert game.shown(board).splitlines()[0] == "x x 3"
    assert {game.reply(board, "minimax", seed) for seed in range(20)} == {3}
    assert len({game.reply(board, "random", seed) for seed in range(20)}) > 3
    mixed = Counter(game.reply(board, "mixed", seed) for seed in range(60))
    assert mixed[3] > 20 and len(mixed) > 3
    assert game.reply(board, "mixed", 7) == game.reply(board, "mixed", 7)
    assert all(game.value(board) == 0 for board in game.positions(1))


def test_openings_that_are_equal_under_symmetry_are_in_one_split() -> None:
    for source in ("tictactoe", "tictactoe_selfplay"):
        scenarios = made(source, 720)
        assert len(scenarios) == 720 == len(distinct(Path("games"), enumerate(scenarios)))
        train = [s for s in scenarios if s.split == "train"]
        val = [s for s in scenarios if s.split == "val"]
        assert 0.1 < len(val) / len(scenarios) < 0.25
        boards = [
            {game.canonical(game.opened((s.initial_state or {})["opening"])) for s in split} for split in (train, val)
        ]
        assert not boards[0] & boards[1] and not overlap(train, val)
        assert {bool(s.seats) for s in train} == {source == "tictactoe_selfplay"} and not any(s.seats for s in val)


@pytest.mark.parametrize(
    ("results", "reward", "how"),
    [
        ([("x", False)], 1.0, "won"),
        ([(None, False), ("draw", False)], 0.5, "drawn"),
        ([(None, False), ("o", False)], 0.06, "lost"),
        ([(None, False), (None, True), ("x", False)], 0.06, "illegal"),
        ([(None, False)] * 5, 0.09, "unfinished"),
        ([], 0.0, "unfinished"),
    ],
)
def test_a_game_is_scored_by_its_end(results: list[tuple[str | None, bool]], reward: float, how: str) -> None:
    scenario = next(s for s in made("tictactoe") if s.verifier and s.verifier.expected == "x")
    calls = [
        CallRecord(turn=turn, name="place_mark", tool="place_mark", arguments={"square": 1},
                   structured={"winner": winner}, is_error=error)
        for turn, (winner, error) in enumerate(results)
    ]  # fmt: skip
    trajectory = Trajectory(scenario_id=scenario.id, calls=calls, stop_reason=StopReason.ANSWERED)
    verify(trajectory, scenario, PLUGINS.verifiers)
    assert (trajectory.reward, trajectory.success) == (pytest.approx(reward), how in ("won", "drawn"))
    assert trajectory.metrics[how] == 1.0 and trajectory.explanation


async def test_the_server_plays_its_reply_and_says_why_a_move_is_illegal() -> None:
    async with Sessions(server=SERVER) as sessions:
        shared = await sessions.get(SERVER.params())
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in shared.schemas.openai}
        assert set(offered) == {"place_mark", "show_board"} and list(offered["place_mark"]["properties"]) == ["square"]
        state = {"opening": [5, 1], "plays": "x", "player": "random", "seed": 3}
        async with sessions.lease(SERVER.params(), state) as lease:
            call = lease.session.connection.call
            taken = await call("place_mark", {"square": 5})
            assert taken.is_error and taken.text.startswith("Square 5 is taken by x. Free squares: 2, 3")
            assert (await call("place_mark", {"square": 12})).text.startswith("There is no square 12")
            moved = await call("place_mark", {"square": 2})
            answer = game.reply(game.opened([5, 1, 2]), "random", 3)
            assert moved.text == f"o takes {answer}.\n{game.shown(game.opened([5, 1, 2, answer]))}"
            assert moved.structured == {"turn": "x", "winner": None}
            refused = await call("place_mark", {"square": 3, "seat": "o"})
            assert refused.is_error and "The model plays x" in refused.text
        won = {"opening": [5, 1, 3, 2], "plays": "x", "player": "random", "seed": 3}
        async with sessions.lease(SERVER.params(), won) as lease:
            call = lease.session.connection.call
            end = await call("place_mark", {"square": 7})
            assert (end.text, end.structured) == ("Game over: x wins.", {"turn": None, "winner": "x"})
            after = await call("place_mark", {"square": 9})
            assert after.is_error and after.text.startswith("The game is over: x wins.")
