"""Tic-tac-toe as an MCP server on stdio. Its tools show the board and place a mark.

The position and the players belong to the episode: `begin_game` sets them. Against a built-in player, the answer to a
move holds the player's reply. Between two seats, a move is followed by the other seat's.
"""

import gc

gc.disable()  # imports leave no garbage, and collecting it would take a fifth of the start

from dataclasses import dataclass
from typing import Any

from game import EMPTY, MARKS, PLAYERS, MoveError, ending, opened, other, placed, reply, shown, to_move, winner
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

gc.freeze()
gc.enable()

SEAT = {"type": "string", "enum": list(MARKS), "description": "Whose side is playing"}


@dataclass
class Game:
    """One game: the board and who plays. Methods return a text for the player and change the board."""

    board: str = EMPTY
    plays: str | None = "x"
    """The mark that the model plays against the built-in player; None if each mark is played by a seat."""
    player: str = "random"
    seed: int = 0
    left: str | None = None
    """The seat that gave up."""

    @property
    def winner(self) -> str | None:
        return other(self.left) if self.left else winner(self.board)

    @property
    def state(self) -> dict[str, str | None]:
        """Whose turn it is, None once the game is over, and who has won."""
        return {"turn": None if self.winner else to_move(self.board), "winner": self.winner}

    def begin_game(
        self,
        opening: list[int] | None = None,
        plays: str | None = None,
        player: str | None = None,
        seed: int = 0,
    ) -> str:
        for name, given, known in (("plays", plays, MARKS), ("player", player, PLAYERS)):
            if given is not None and given not in known:
                raise MoveError(f"{name} must be {' or '.join(known)}, not {given!r:.50}.")
        if plays is None and player is not None:
            raise MoveError("A built-in player needs to know the model's side: give plays as well.")
        board = opened(opening or [])
        self.board, self.plays, self.player, self.seed, self.left = board, plays, player or "random", seed, None
        if plays is not None and self.state["turn"] == other(plays):
            self._reply()
        return "Ready."

    def show_board(self, seat: str | None = None) -> str:
        return self._shown()

    def place_mark(self, square: float, seat: str | None = None) -> str:
        mark = self._side(seat)
        if square != int(square):
            raise MoveError(f"There is no square {square:g}: the squares are 1 to 9.")
        if self.left:
            raise MoveError(f"The game is over: {self.left} has left. No mark can be placed any more.")
        turn = self.state["turn"]
        if turn is not None and turn != mark:
            raise MoveError(f"It is the turn of {turn}.")
        self.board = placed(self.board, int(square), mark)
        said = self._reply() if self.plays is not None and not self.winner else ""
        return said + self._shown()

    def leave_game(self, seat: str) -> str:
        if not self.winner:
            self.left = seat
        return self._shown()

    def _side(self, seat: str | None) -> str:
        if self.plays is None and seat is None:
            raise MoveError("Both sides are seats: say which one plays, with seat.")
        if self.plays is not None and seat not in (None, self.plays):
            raise MoveError(f"The model plays {self.plays}, and the built-in player {other(self.plays)}.")
        return seat or self.plays or "x"

    def _reply(self) -> str:
        square, mark = reply(self.board, self.player, self.seed), to_move(self.board)
        self.board = placed(self.board, square, mark)
        return f"{mark} takes {square}.\n"

    def _shown(self) -> str:
        if self.winner:
            gone = f"{self.left} has left the game. " if self.left else ""
            return f"{gone}Game over: {ending(self.winner)}."
        return shown(self.board)


@dataclass(frozen=True)
class GameTool:
    """A tool: its name, which is that of a method of Game, and its description and arguments for the model."""

    name: str
    description: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...] = ()
    reads: bool = False

    @property
    def tool(self) -> Tool:
        return Tool(
            name=self.name,
            description=self.description,
            input_schema={"type": "object", "properties": self.properties, "required": list(self.required)},
            annotations=ToolAnnotations(
                read_only_hint=self.reads, destructive_hint=False, idempotent_hint=self.reads, open_world_hint=False
            ),
        )


TOOLS = {
    tool.name: tool
    for tool in (
        GameTool(
            "place_mark",
            "Place your mark on a free square.",
            {"square": {"type": "integer"}, "seat": SEAT},
            ("square",),
        ),
        GameTool("show_board", "Show the board.", {"seat": SEAT}, reads=True),
        GameTool(
            "begin_game",
            "Begin a game after the moves of an opening. Without plays, both sides are seats.",
            {
                "opening": {"type": "array", "items": {"type": "integer"}},
                "plays": SEAT,
                "player": {"type": "string", "enum": list(PLAYERS)},
                "seed": {"type": "integer"},
            },
        ),
        GameTool("leave_game", "Give the game up, which the other seat wins.", {"seat": SEAT}, ("seat",)),
    )
}
KINDS: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int, float), "array": (list,)}


class GameServer(MCPServer[Any]):
    """Lists and calls the tools. The schemas are hand-written, since the model reads every byte of them."""

    game: Game

    async def list_tools(self) -> list[Tool]:
        return [tool.tool for tool in TOOLS.values()]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        try:
            text, failed = called(self.game, name, arguments), False
        except MoveError as error:
            text, failed = str(error), True
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content=self.game.state, is_error=failed
        )


def called(game: Game, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool and return its text. Raises MoveError for a move or arguments that are not allowed."""
    if name not in TOOLS:
        raise MoveError(f"There is no tool {name!r:.100}.")
    tool = TOOLS[name]
    given = {key: value for key, value in arguments.items() if value is not None and key in tool.properties}
    for key, value in given.items():
        schema = tool.properties[key]
        listed = value if schema["type"] == "array" and isinstance(value, list) else [value]
        kind = schema["items"]["type"] if schema["type"] == "array" and isinstance(value, list) else schema["type"]
        if any(not isinstance(one, KINDS[kind]) or isinstance(one, bool) for one in listed):
            raise MoveError(f"{key} must be of type {schema['type']}, not {value!r:.100}.")
        if value not in schema.get("enum", [value]):
            raise MoveError(f"{key} must be {' or '.join(schema['enum'])}, not {value!r:.100}.")
    for key in tool.required:
        if key not in given:
            raise MoveError(f"The argument {key} is missing.")
    text: str = getattr(game, name)(**given)
    return text


def main() -> None:
    server = GameServer("mcp_tictactoe", version="1.0.0", log_level="WARNING", subscriptions=False)
    server.game = Game()
    server.run("stdio")


if __name__ == "__main__":
    main()
