"""Offers the bundled tic-tac-toe: games from openings as scenarios, and the verifier of their ends.

docs/tictactoe.md explains the choices.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from mcp_rl.config import level_shares
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verdict import Verdict
from mcp_rl.scenario import Level, McpScenario, ScenarioSeat, ServerParams, Split, StdioServer, ToolCall, Verifier
from mcp_rl.toolserver.bundled import bundled_root, server_module
from mcp_rl.toolserver.seats import Seats
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import Trajectory

NAME = "mcp_tictactoe"
FOLDER = bundled_root() / "servers/python/mcp_tictactoe"
game = server_module(FOLDER, "game")
OPENINGS = (2, 3, 4)
"""Numbers of moves in an opening. The model moves next, at most four times."""
_HELD_OUT = 6
"""One opening in six is held out, together with its rotations and reflections."""
_MOST_ROUNDS = 100
"""Maximum number of games that begin with the same opening."""
_MOVE = 0.03
"""Reward for each of up to three legal moves of a game that was neither won nor drawn."""


# Scenarios


def games(
    sessions: object,
    *,
    server: ToolServer,
    params: ServerParams,
    recipe: Recipe,
    player: str | None = None,
    tested: str | None = None,
) -> list[McpScenario]:
    """Return games from openings of each length, a third of each: against a built-in player, or between two seats.

    Held-out games are against the player `tested`, or between seats, where None. No opening is lost for the model,
    which moves next. Openings that are equal under the board's symmetry are in one split.
    """
    rng = random.Random(f"{NAME} {recipe.seed}")
    held_out = _held_out()
    level: Level = "spelled" if "spelled" in level_shares(recipe.levels) else "told"
    made: list[McpScenario] = []
    for plies, board, again in _in_turn(rng):
        split: Split = "val" if game.canonical(board) in held_out else "train"
        opponent, seed = tested if split == "val" else player, rng.randrange(10**6)
        common: dict[str, Any] = {
            "id": f"{NAME}-{opponent or 'seats'}-{len(made):04d}",
            "server": server.name,
            "server_params": params,
            "split": split,
            "level": level,
            "apart": (f"opening {game.canonical(board)}",),
            "tags": (opponent or "seats", f"{plies}-moves"),
        }
        if opponent is not None:
            made.append(_against(board, opponent, seed, common))
        elif again < len(game.MARKS):
            made.append(_between_seats(board, game.MARKS[(board.index("x") + again) % 2], common))
        if len(made) == recipe.count or again > _MOST_ROUNDS:
            break
    return made


def _in_turn(rng: random.Random) -> Iterator[tuple[int, str, int]]:
    """Yield openings of each length by turns, shuffled, with the number of times that each has come before."""
    boards = {plies: rng.sample(found := _openings(plies), len(found)) for plies in OPENINGS}
    for number in count():
        for plies, each in boards.items():
            yield plies, each[number % len(each)], number // len(each)


def _openings(plies: int) -> list[str]:
    return [board for board in game.positions(plies) if game.value(board) >= 0]


def _held_out() -> set[str]:
    """Return the openings that are held out, each for all that are equal to it."""
    found: set[str] = set()
    for plies in OPENINGS:
        classes = sorted({game.canonical(board) for board in _openings(plies)})
        random.Random(plies).shuffle(classes)
        found.update(classes[::_HELD_OUT])
    return found


def _against(board: str, player: str, seed: int, common: dict[str, Any]) -> McpScenario:
    mark = game.to_move(board)
    moves, end = _best_game(board, player, seed)
    return McpScenario(
        task_description=f"{task(mark)}\n{game.shown(board)}",
        initial_state={"opening": game.moves_to(board), "plays": mark, "player": player, "seed": seed},
        reference=tuple(ToolCall(tool="place_mark", arguments={"square": square}) for square in moves),
        reference_answer=f"{game.ending(end).capitalize()} after {game.named(moves)}.",
        verifier=Verifier(kind="tictactoe", expected=mark),
        **common,
    )


def _between_seats(board: str, first: str, common: dict[str, Any]) -> McpScenario:
    """Return a game between two seats, in which each is shown the board at its turn."""
    return McpScenario(
        task_description=task(first),
        initial_state={"opening": game.moves_to(board)},
        seats=tuple(ScenarioSeat(name=mark, task=task(mark)) for mark in (first, game.other(first))),
        verifier=Verifier(kind="tictactoe"),
        **common,
    )


def task(mark: str) -> str:
    """Return the request to a player, which the board follows."""
    return f"You play {mark} in tic-tac-toe."


def _best_game(board: str, player: str, seed: int) -> tuple[list[int], str]:
    """Return the moves and the end of a game without a mistake, the best one against this player and seed.

    The player's replies are known, so this is the shortest way to a win where it makes a mistake that allows one.
    """
    mark = game.to_move(board)
    best: tuple[int, int, list[int], str] | None = None
    for square in game.free(board):
        after = game.placed(board, square, mark)
        if game.winner(after) is None:
            answer = game.reply(after, player, seed)
            after = game.placed(after, answer, game.other(mark))
        end = game.winner(after)
        moves, end = ([], end) if end is not None else _best_game(after, player, seed)
        rank = {mark: 0, "draw": 1}.get(end, 2)
        if best is None or (rank, len(moves)) < best[:2]:
            best = rank, len(moves), [square, *moves], end
    assert best is not None
    return best[2], best[3]


# Reward


def tictactoe(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Score a game: 1 if it was won, 0.5 if it was drawn, else 0.03 for each of up to three legal moves.

    With an illegal move it counts as neither won nor drawn. Those that were are successes. Metrics:
    `won`, `drawn`, `lost`, `illegal`, `unfinished`.
    """
    assert scenario.verifier is not None
    mark = scenario.seats[0].name if scenario.seats else scenario.verifier.expected
    moves = [call for call in trajectory.calls if (call.tool or call.name) == "place_mark"]
    illegal = [call for call in moves if call.is_error]
    legal = sum(call.sent and not call.is_error for call in moves)
    seen = [*trajectory.calls, *trajectory.final_state]
    end = next((call.structured["winner"] for call in reversed(seen) if _tells(call.structured)), None)
    if illegal:
        how, said = "illegal", f"An illegal move: {illegal[0].result}"
    elif end is None:
        how, said = "unfinished", f"The game was not finished ({trajectory.stop_reason.replace('_', ' ')})."
    elif end == "draw":
        how, said = "drawn", "The game was a draw."
    else:
        how = "won" if end == mark else "lost"
        said = f"{end} won, and the model played {mark}."
    metrics = {one: float(one == how) for one in ("won", "drawn", "lost", "illegal", "unfinished")}
    score = {"won": 1.0, "drawn": 0.5}.get(how, _MOVE * min(legal, 3))
    return Verdict(score, said, metrics, succeeded=how in ("won", "drawn"))


def _tells(structured: object) -> bool:
    return isinstance(structured, dict) and structured.get("winner") is not None


# Plugin


@hookimpl
def register_servers(register: Callable[[ToolServer], None]) -> None:
    script = "{bundled}/servers/python/mcp_tictactoe/tictactoe_server.py"
    register(
        ToolServer(
            NAME,
            "Tic-tac-toe: place marks against a built-in player.",
            {"stdio": StdioServer(command="{python}", args=(script,))},
            isolation="reset",
            reset_tool="begin_game",
            sandbox="off",  # it touches no file
            source="tictactoe",
            verifiers={"tictactoe": tictactoe},
            seats=Seats(yields=("place_mark",), view="show_board", leave="leave_game", source="tictactoe_seats"),
        )
    )


@hookimpl
def register_scenario_sources(register: Callable[[str, Any], None]) -> None:
    register("tictactoe", partial(games, player="random", tested="random"))
    register("tictactoe_mixed", partial(games, player="mixed", tested="mixed"))
    register("tictactoe_minimax", partial(games, player="minimax", tested="minimax"))
    register("tictactoe_selfplay", partial(games, tested="random"))
    register("tictactoe_seats", games)
