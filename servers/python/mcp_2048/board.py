"""The rules of 2048: a board of 4 x 4, moves, and new tiles that follow from a seed.

A board is a tuple of 16 numbers, row by row; 0 is an empty cell. Nothing here needs a package.
"""

from __future__ import annotations

import random
from functools import cache

SIZE = 4
DIRECTIONS = ("left", "down", "right", "up")
Board = tuple[int, ...]
EMPTY: Board = (0,) * (SIZE * SIZE)
_FOUR = 0.1
"""Share of new tiles that are a 4; the others are a 2."""
_LINES = {
    "left": [[SIZE * row + column for column in range(SIZE)] for row in range(SIZE)],
    "up": [[SIZE * row + column for row in range(SIZE)] for column in range(SIZE)],
}
_LINES["right"] = [line[::-1] for line in _LINES["left"]]
_LINES["down"] = [line[::-1] for line in _LINES["up"]]
"""For each direction the cells of the four lines, the cell that tiles move towards first."""


@cache
def _pushed(line: tuple[int, ...]) -> tuple[int, ...]:
    """Push the tiles of a line to its beginning; equal neighbours become one tile, each tile once."""
    tiles, made = [tile for tile in line if tile], list[int]()
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
        made.append(tile)
    return tuple(made) + (0,) * (SIZE - len(made))


def moved(board: Board, direction: str) -> Board:
    """Return the board after a move, before the new tile; the same board if nothing can move that way."""
    cells = list(board)
    for line in _LINES[direction]:
        for cell, tile in zip(line, _pushed(tuple(board[cell] for cell in line)), strict=True):
            cells[cell] = tile
    return tuple(cells)


def shown(board: Board) -> str:
    """Return the board as four lines, a dot for an empty cell."""
    rows = (board[start : start + SIZE] for start in range(0, len(board), SIZE))
    return "\n".join(" ".join(str(tile) if tile else "." for tile in row) for row in rows)


class Game:
    """A game in progress. The same seed and the same moves give the same boards."""

    def __init__(self, seed: int = 0, target: int = 2048) -> None:
        self.target = target
        self._random = random.Random(f"2048 {seed}")
        self.board = EMPTY
        for _ in range(2):
            self._add_tile()

    def move(self, direction: str) -> bool:
        """Move all tiles and add one; return False, and change nothing, if no tile can move that way."""
        after = self.after(direction)
        if after == self.board:
            return False
        self.board = after
        self._add_tile()
        return True

    @property
    def largest(self) -> int:
        return max(self.board)

    @property
    def won(self) -> bool:
        return self.largest >= self.target

    def after(self, direction: str) -> Board:
        """Return the board after a move, before the new tile."""
        return moved(self.board, direction)

    @property
    def possible(self) -> list[str]:
        """The directions in which a tile can move."""
        return [direction for direction in DIRECTIONS if self.after(direction) != self.board]

    @property
    def over(self) -> bool:
        """True if no tile can move any more."""
        return not self.possible

    def _add_tile(self) -> None:
        cells = list(self.board)
        cell = self._random.choice([cell for cell, tile in enumerate(cells) if not tile])
        cells[cell] = 4 if self._random.random() < _FOUR else 2
        self.board = tuple(cells)
