"""The game 2048 as an MCP server on stdio. `begin_episode` starts a new game; its seed decides every new tile."""

from typing import Annotated, Literal

from board import Game, shown
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

server = MCPServer("mcp_2048", version="1.0.0", log_level="WARNING")
game = Game()


def state() -> str:
    """Return the board, and above it how the game ended, if it did."""
    if game.won:
        return f"You made {game.largest}. The game is won.\n{shown(game.board)}"
    return f"No move is left. The game is over.\n{shown(game.board)}" if game.over else shown(game.board)


@server.tool(
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False),
    structured_output=False,
)
def move(direction: Literal["up", "down", "left", "right"]) -> str:
    """Move all tiles in a direction. Equal tiles that meet become one. Returns the board."""
    if game.won or game.over:
        raise ToolError(state())
    if not game.move(direction):
        raise ToolError(f"Nothing can move {direction}.")
    return state()


@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False), structured_output=False)
def see_board() -> str:
    """Show the board."""
    return state()


@server.tool(
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False),
    structured_output=False,
)
def begin_episode(seed: int = 0, target: Annotated[int, Field(ge=4)] = 2048) -> str:
    """Start a new game, which is won with the tile `target`."""
    global game
    game = Game(seed, target)
    return state()


server.run("stdio")
