"""The game 2048: its rules, games with known solutions on the live server, and scores of games that end early."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.cli import main
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verifier import verify
from mcp_rl.scenario import McpScenario, scenario_lines
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


@pytest.fixture(scope="module")
def rules(plugins: Plugins) -> Any:
    import sys

    return sys.modules["mcp_2048_board"]


def games(
    plugins: Plugins, count: int, source: str = "game_2048", seed: int = 0, levels: str = "spelled"
) -> list[McpScenario]:
    server = plugins.servers["mcp_2048"]
    recipe = Recipe(count, seed, levels=levels)
    return list(plugins.scenario_sources[source](None, server=server, params=server.params(), recipe=recipe))


@pytest.mark.parametrize(
    ("row", "after"),
    [
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((2, 0, 2, 4), (4, 4, 0, 0)),
        ((4, 2, 2, 0), (4, 4, 0, 0)),
        ((0, 0, 0, 2), (2, 0, 0, 0)),
        ((2, 2, 2, 0), (4, 2, 0, 0)),
        ((8, 4, 2, 4), (8, 4, 2, 4)),
    ],
)
def test_tiles_move_and_each_merges_once(rules: Any, row: tuple[int, ...], after: tuple[int, ...]) -> None:
    board = row + (0,) * 12
    assert rules.moved(board, "left") == after + (0,) * 12
    mirrored = tuple(reversed(row)) + (0,) * 12
    assert rules.moved(mirrored, "right") == tuple(reversed(after)) + (0,) * 12
    column = tuple(row[cell // 4] if cell % 4 == 0 else 0 for cell in range(16))
    assert rules.moved(column, "up")[::4] == after


def test_a_seed_and_moves_decide_the_game(rules: Any) -> None:
    boards = []
    for _ in range(2):
        game = rules.Game(seed=7, target=32)
        moves = sum(game.move(way) for _ in range(9) for way in rules.DIRECTIONS)
        boards.append((game.board, moves))
    assert boards[0] == boards[1] and rules.Game(8).board != rules.Game(9).board
    stuck = rules.Game()
    stuck.board = (2, 4, 2, 4, 4, 2, 4, 2) * 2
    assert stuck.over and not stuck.move("left")
    assert rules.Game(seed=7).possible and stuck.possible == []
    assert rules.shown((2, 0, 0, 16) + (0,) * 12) == "2 . . 16\n. . . .\n. . . .\n. . . ."


def test_games_have_targets_and_solutions_and_are_held_out(plugins: Plugins) -> None:
    made = games(plugins, 36)
    assert {s.tags for s in made} == {("target-8",), ("target-16",), ("target-32",)}
    assert len({json.dumps(s.initial_state) for s in made}) == 36 == len({s.id for s in made})
    assert (
        sorted(s.tags[0] for s in made if s.split == "val") == ["target-16"] * 2 + ["target-32"] * 2 + ["target-8"] * 2
    )
    assert made == games(plugins, 36) != games(plugins, 36, seed=1)
    for scenario in made:
        assert scenario.task_description.count(str((scenario.initial_state or {})["target"])) == 1
        assert len(scenario.reference) < scenario.max_turns
        moves = [call.arguments["direction"] for call in scenario.reference]
        named = re.findall(r"'(\w+)'", scenario.task_description)
        assert moves == list(itertools.islice(itertools.cycle(named), len(moves))) and len(set(named)) == 4
    wanted = games(plugins, 6, levels="brought-about")
    assert {s.level for s in made} == {"spelled"} and {s.level for s in wanted} == {"brought-about"}
    assert not any("direction" in s.task_description for s in wanted)
    calls = {s.tags[0]: len(s.reference) for s in games(plugins, 4, "game_2048_long")}
    assert calls["target-128"] > 60 and calls["target-256"] > 100 and calls["target-512"] > 200


@pytest.mark.parametrize(
    ("board", "stop", "reward"),
    [
        ("You made 64. The game is won.\n64 . . .\n. . . .\n. . . .\n. . . 2", StopReason.MAX_TURNS, 1.0),
        ("64 2 . .\n128 . . .\n. . . .\n. . . .", StopReason.CONTEXT_FULL, 1.0),
        ("32 16 . .\n. . . .\n. . . .\n. . . .", StopReason.MAX_TOOL_CALLS, 0.4),
        ("No move is left. The game is over.\n16 8 4 2\n2 4 2 4\n4 2 4 2\n2 4 2 4", StopReason.ANSWERED, 0.3),
        ("2 . . .\n. . . .\n. 2 . .\n. . . .", StopReason.ANSWERED, 0.0),
    ],
)
def test_the_last_board_is_scored_whatever_ended_the_game(
    plugins: Plugins, board: str, stop: StopReason, reward: float
) -> None:
    [scenario] = [s for s in games(plugins, 4, "game_2048_long") if s.tags == ("target-64",)]
    seen = CallRecord(turn=3, name="see_board", tool="see_board", arguments={}, result=board)
    said = [{"role": "assistant", "content": "You made 64."}]  # what is said does not count
    played = Trajectory(scenario_id=scenario.id, stop_reason=stop, final_state=[seen], messages=said)
    verify(played, scenario, plugins.verifiers)
    assert played.reward is not None and math.isclose(played.reward, reward) and played.success == (reward == 1)


async def test_a_move_that_nothing_can_make_is_told_and_the_move_that_wins_ends_the_episode(plugins: Plugins) -> None:
    server = plugins.servers["mcp_2048"]
    refused, said = 0, None
    async with (
        Sessions(server=server) as sessions,
        sessions.episode(server.params(), {"seed": 1, "target": 8}) as lease,
    ):
        call = lease.session.connection.call
        while said is None or said.structured != {"turn": None}:
            said = await call("move", {"direction": "left"})
            if said.text.startswith("Nothing can move left. You can move "):
                refused += 1
                said = await call("move", {"direction": "down"})
            assert not said.is_error
        late = await call("move", {"direction": "left"})
    assert refused and said.text.startswith("You made 8. The game is won.") and late.is_error


def test_a_long_game_is_solved_on_the_server_and_a_limit_cuts_it_off(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [long] = [s for s in games(plugins, 4, "game_2048_long") if s.tags == ("target-128",)]
    Path("long.jsonl").write_text(scenario_lines([long.model_copy(update={"split": "test"})]))
    few = ["--server", "mcp_2048", "--scenarios", "long.jsonl", "--no-greedy", "--samples", "1", "--json"]
    few += ["--model", "scripted:reference", "--model", "scripted:refuse"]

    def rewards(limit: int) -> list[float]:
        limits = [f"rollout.{name}={limit}" for name in ("max_turns", "max_tool_calls")]
        assert main(["evaluate", *few, *limits]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        return [model["result"]["sampled"]["reward"] for model in report["models"]]

    solved, refused = rewards(200)
    cut, _ = rewards(40)
    assert solved == 1 and 0.2 < cut < 0.5 and refused < 0.1
