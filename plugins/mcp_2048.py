"""Offers the game 2048: games with a target as scenarios, each with a known solution, and the verifier of a game.

docs/game_2048.md explains the choices.
"""

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mcp_rl.config import level_shares
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verdict import Verdict
from mcp_rl.scenario import Level, McpScenario, ServerParams, StdioServer, ToolCall, Verifier
from mcp_rl.toolserver.bundled import bundled_root, server_module
from mcp_rl.toolserver.seats import Seats
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import Trajectory

NAME = "mcp_2048"
FOLDER = bundled_root() / "servers/python/mcp_2048"
board = server_module(FOLDER, "board")
SHORT, LONG = (8, 16, 32), (64, 128, 256, 512)
"""Tiles to make in the games of the sources `game_2048` and `game_2048_long`.

A game to 32 takes some 20 moves, one to 128 some 85, one to 512 some 300."""
VAL_SHARE = 6
"""One game in six is held out."""
_SPELLED = (
    "Use move with direction = '{0}', then use move with direction = '{1}', then use move with direction = '{2}', then "
    "use move with direction = '{3}', and so on until you made {target}.",
    "First call move with direction '{0}', then call move with direction '{1}', then call move with direction '{2}', "
    "then call move with direction '{3}', again and again, until the tile {target} is there.",
)
_WANTED = (
    "Play 2048 until the tile {target} is there.",
    "Make the tile {target}, with as many moves as it takes.",
    "Keep on moving the tiles until one of them is {target}.",
)
_ROW = re.compile(r"^[\d.]+(?: [\d.]+){3}$", re.MULTILINE)
_CORNER = (64, 32, 16, 8, 8, 8, 4, 4, 4, 4, 2, 2, 2, 2, 1, 1)
"""Weights of cells for the player that looks ahead: large tiles stay in a corner."""


# Scenarios


def short_games(sessions: object, *, server: ToolServer, params: ServerParams, recipe: Recipe) -> list[McpScenario]:
    """Return games to 8, 16 and 32, as many of each."""
    return _games(SHORT, server.name, params, recipe)


def long_games(sessions: object, *, server: ToolServer, params: ServerParams, recipe: Recipe) -> list[McpScenario]:
    """Return games to 64, 128, 256 and 512, as many of each."""
    return _games(LONG, server.name, params, recipe)


def _games(targets: tuple[int, ...], server: str, params: ServerParams, recipe: Recipe) -> list[McpScenario]:
    """Return games; those of level `spelled` name the first four moves, the others what is wanted."""
    draw = random.Random(f"games {recipe.seed}")
    seeds, spelled = _seeds(draw), level_shares(recipe.levels).get("spelled", 0.0)
    made = []
    for number in draw.sample(range(recipe.count), recipe.count):
        level: Level = "spelled" if draw.random() < spelled else "brought-about"
        held_out = number // len(targets) % VAL_SHARE == 0
        made.append(_scenario(targets[number % len(targets)], level, seeds, draw, server, params, held_out=held_out))
    return made


def _seeds(draw: random.Random) -> Iterator[int]:
    seen: set[int] = set()
    while True:
        if (seed := draw.randrange(10**6)) not in seen:
            seen.add(seed)
            yield seed


def _scenario(
    target: int,
    level: Level,
    seeds: Iterator[int],
    draw: random.Random,
    server: str,
    params: ServerParams,
    *,
    held_out: bool,
) -> McpScenario:
    """Return a game with the next seed for which a solution is found."""
    ways = draw.sample(board.DIRECTIONS, len(board.DIRECTIONS))
    if target > max(SHORT):
        level = "brought-about"  # going round makes no large tile
    named = ways if level == "spelled" else ()
    seed, moves = next((seed, moves) for seed in seeds if (moves := solution(seed, target, named)) is not None)
    return McpScenario(
        task_description=draw.choice(_SPELLED if level == "spelled" else _WANTED).format(*ways, target=target),
        server_params=params,
        server=server,
        id=f"2048-{target}-{seed}",
        max_turns=2 * target + 60,
        split="val" if held_out else "train",
        level=level,
        initial_state={"seed": seed, "target": target},
        reference=tuple(ToolCall(tool="move", arguments={"direction": direction}) for direction in moves),
        reference_answer=f"You made {target}.",
        verifier=Verifier(
            kind="tile_made", expected=target, options={"reads": [{"tool": "see_board", "arguments": {}}]}
        ),
        tags=(f"target-{target}",),
    )


def solution(seed: int, target: int, ways: Sequence[str] = ()) -> list[str] | None:
    """Return moves that make the target's tile; None if the game is lost first.

    They go round the directions `ways`, as a request of level `spelled` says, also where nothing can move. Without
    `ways`, they are those of a player that looks one move ahead.
    """
    game, moves = board.Game(seed, target), list[str]()
    while not game.won:
        if game.over:
            return None
        ahead = ways[len(moves) % len(ways)] if ways else max(game.possible, key=lambda way: _worth(game.after(way)))
        moves.append(ahead)
        game.move(ahead)
    return moves


def _worth(cells: tuple[int, ...]) -> float:
    return sum(map(lambda tile, weight: tile * weight, cells, _CORNER)) + 20 * cells.count(0)


# Reward


def tile_made(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Score the last board, whatever ended the episode: 1 with the target's tile, else up to a half for the way there.

    The way is counted in doublings: with 16 of 32, three of the four from 2 to 32 are made.
    """
    assert scenario.verifier is not None
    target: Any = scenario.verifier.expected
    rows = _ROW.findall("\n".join(read.result for read in trajectory.final_state))
    largest = max((int(tile) for row in rows for tile in row.split() if tile != "."), default=2)
    moves = sum(call.tool == "move" and call.sent and not call.is_error for call in trajectory.calls)
    metrics = {"largest_tile": float(largest), "moves": float(moves)}
    if largest >= target:
        return Verdict(1.0, f"The tile {largest} was made in {moves} moves.", metrics)
    way = (math.log2(largest) - 1) / (math.log2(target) - 1)
    return Verdict(0.5 * way, f"The largest tile is {largest} after {moves} moves; {target} was wanted.", metrics)


# Plugin


@hookimpl
def register_servers(register: Callable[[ToolServer], None]) -> None:
    register(
        ToolServer(
            NAME,
            "The game 2048: move the tiles until one has the wanted number.",
            {"stdio": StdioServer(command="{python}", args=("{bundled}/servers/python/mcp_2048/game_server.py",))},
            isolation="reset",
            reset_tool="begin_episode",
            sandbox="off",  # it touches no file
            source="game_2048",
            verifiers={"tile_made": tile_made},
            seats=Seats(yields=("move",)),  # the move that ends the game ends the episode
        )
    )


@hookimpl
def register_scenario_sources(register: Callable[[str, Any], None]) -> None:
    register("game_2048", short_games)
    register("game_2048_long", long_games)
