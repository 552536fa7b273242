"""The game 2048 as an MCP server on stdio. `begin_episode` starts a new game; its seed decides every new tile."""

from typing import Annotated, Literal

from board import Game, shown
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

server = MCPServer("mcp_2048", version="1.0.0", log_level="WARNING")
game = Game()


def state() -> str:
    """Return the board, above it how the game ended, if it did, and below it the moves that are possible."""
    if game.won:
        return f"You made {game.largest}. The game is won.\n{shown(game.board)}"
    if game.over:
        return f"No move is left. The game is over.\n{shown(game.board)}"
    return f"{shown(game.board)}\n{can_move()}"


def can_move() -> str:
    return f"You can move {', '.join(game.possible)}."


@server.tool(
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False),
    structured_output=False,
)
def move(direction: Literal["left", "down", "right", "up"]) -> CallToolResult:
    """Move all tiles in a direction. Equal tiles that meet become one. Returns the board."""
    if game.won or game.over:
        raise ToolError(state())
    text = state() if game.move(direction) else f"Nothing can move {direction}. {can_move()}"
    turn = None if game.won or game.over else "player"
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content={"turn": turn})


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
