"""Tic-tac-toe: positions, the built-in players, and the board as text.

A board is a string of nine squares, `x`, `o` or `-`, row by row; squares are named 1 to 9. x moves first.
"""

import random
from functools import cache
from itertools import combinations

EMPTY = "-" * 9
MARKS = ("x", "o")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
PLAYERS = ("random", "mixed", "minimax")
_TURNED = (6, 3, 0, 7, 4, 1, 8, 5, 2)
_MIRRORED = (2, 1, 0, 5, 4, 3, 8, 7, 6)


class MoveError(Exception):
    """A move or a position that the rules forbid. Its text is for the player."""


def other(mark: str) -> str:
    return "o" if mark == "x" else "x"


def to_move(board: str) -> str:
    """Return the mark that moves next."""
    return "x" if board.count("x") == board.count("o") else "o"


def winner(board: str) -> str | None:
    """Return the mark with three in a row, `draw` on a full board without one, None while the game goes on."""
    for a, b, c in LINES:
        if board[a] != "-" and board[a] == board[b] == board[c]:
            return board[a]
    return None if "-" in board else "draw"


def free(board: str) -> list[int]:
    """Return the names of the free squares, 1 to 9."""
    return [square for square, mark in enumerate(board, 1) if mark == "-"]


def placed(board: str, square: int, mark: str) -> str:
    """Return the board with one more mark. Raises MoveError, which says why, for a move that is not allowed."""
    end = winner(board)
    if end is not None:
        raise MoveError(f"The game is over: {ending(end)}. No mark can be placed any more.")
    if not 1 <= square <= 9:
        raise MoveError(f"There is no square {square}: the squares are 1 to 9. Free squares: {named(free(board))}.")
    if board[square - 1] != "-":
        raise MoveError(f"Square {square} is taken by {board[square - 1]}. Free squares: {named(free(board))}.")
    return board[: square - 1] + mark + board[square:]


def opened(moves: list[int]) -> str:
    """Return the board after these moves from the empty one. Raises MoveError if one is not allowed."""
    board = EMPTY
    for square in moves:
        board = placed(board, square, to_move(board))
    return board


@cache
def value(board: str) -> int:
    """Return the end of the game for the mark that moves next, if both play best: 1 won, 0 drawn, -1 lost."""
    end = winner(board)
    if end is not None:
        return 0 if end == "draw" else -1  # only the mark that moved last can have won
    mark = to_move(board)
    return max(-value(placed(board, square, mark)) for square in free(board))


def best_moves(board: str) -> list[int]:
    """Return the squares that keep the value of the position."""
    mark = to_move(board)
    return [square for square in free(board) if -value(placed(board, square, mark)) == value(board)]


def reply(board: str, player: str, seed: int) -> int:
    """Return the built-in player's move: the same one for the same board and seed.

    `random` moves anywhere, `minimax` never loses, and `mixed` is one or the other, by the toss of a coin, each move.
    """
    rng = random.Random(f"{seed} {board}")
    perfect = player == "minimax" or (player == "mixed" and rng.random() < 0.5)
    return rng.choice(best_moves(board) if perfect else free(board))


def canonical(board: str) -> str:
    """Return the one board that stands for all that are equal to it when turned or mirrored."""
    found = []
    for start in (board, "".join(board[i] for i in _MIRRORED)):
        for _ in range(4):
            found.append(start)
            start = "".join(start[i] for i in _TURNED)
    return min(found)


def positions(plies: int) -> list[str]:
    """Return all boards after so many moves, in a fixed order, on which the game goes on."""
    boards = []
    for xs in combinations(range(9), (plies + 1) // 2):
        for os in combinations([i for i in range(9) if i not in xs], plies // 2):
            board = "".join("x" if i in xs else "o" if i in os else "-" for i in range(9))
            if winner(board) is None:
                boards.append(board)
    return boards


def moves_to(board: str) -> list[int]:
    """Return moves that lead to a board, in the order of the squares."""
    turns = {mark: [square for square, at in enumerate(board, 1) if at == mark] for mark in MARKS}
    return [turns[MARKS[ply % 2]][ply // 2] for ply in range(len(turns["x"]) + len(turns["o"]))]


def shown(board: str) -> str:
    """Return the board as text: three rows with the numbers of free squares, the lines that can still be won, and how
    to move.

    In a line, marks come before free squares, so that two marks and a number are a line that one move completes.
    """
    cells = [mark if mark != "-" else str(square) for square, mark in enumerate(board, 1)]
    rows = "\n".join(" ".join(cells[at : at + 3]) for at in (0, 3, 6))
    lines = []
    for line in LINES:
        inside = [cells[i] for i in line]
        if not ("x" in inside and "o" in inside) and any(one.isdigit() for one in inside):
            lines.append(" ".join(sorted(inside, key=str.isdigit)))
    return (
        f"{rows}\nOpen lines: {', '.join(lines) or 'none'}.\n"
        f"Use place_mark with square = {free(board)[0]}, or another free square.\n"
        "Then call place_mark again with square from the result."
    )


def ending(end: str) -> str:
    return "a draw" if end == "draw" else f"{end} wins"


def named(squares: list[int]) -> str:
    return ", ".join(map(str, squares)) or "none"
