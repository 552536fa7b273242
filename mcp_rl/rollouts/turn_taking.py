"""Turns of several seats on one server: a seat acts while it is its turn, and the server says whose turn it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mcp_rl.errors import ServerFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.toolserver.seats import Seats
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tools.results import ToolResult


class TurnTaking:
    """The turns of one game. `begin` asks whose turn it is; after that, the results of moves say it.

    A turn always belongs to a seat that still plays, or the game is over, so no seat waits for ever. Methods raise
    ServerFault where the server says otherwise, RunStop where the run cannot continue.
    """

    def __init__(self, session: Session, seats: Seats, names: Iterable[str], deadline: float | None) -> None:
        self.seats = seats
        self.over = False
        self._names, self._deadline = tuple(names), deadline
        self._playing = set(self._names)
        self._sessions = {name: session.at(name) for name in self._names}
        self._turn: str | None = None
        self._changed = anyio.Event()

    async def begin(self) -> None:
        """Ask the server whose turn it is."""
        first = self._names[0]
        if self.seats.view is None:
            self._pass_to(first)
        else:
            self.moved((await self.view(first)).structured)

    async def come(self, name: str) -> None:
        """Wait until it is this seat's turn, or the game is over."""
        while not self.over and self._turn != name:
            await self._changed.wait()

    def moved(self, structured: object) -> None:
        """Pass the turn on as the result of a move says."""
        if not isinstance(structured, dict) or "turn" not in structured:
            raise ServerFault(
                "The server does not say whose turn it is: the structured content of a move needs the field 'turn'."
            )
        self._pass_to(structured["turn"])

    async def view(self, name: str) -> ToolResult:
        """Return what the server shows a seat."""
        assert self.seats.view is not None
        result = await self._sessions[name].connection.call(self.seats.view, {}, deadline=self._deadline)
        if result.is_error:
            raise ServerFault(f"The server shows the seat {name} nothing: {result.text[:200]}")
        return result

    async def leave(self, name: str) -> None:
        """Tell the server that a seat has ended, and pass its turn on."""
        if self.over:
            return
        self._playing.discard(name)
        if self.seats.leave is None:
            raise ServerFault(
                f"The seat {name} ended before the game was over, and the server has no tool to leave it."
            )
        result = await self._sessions[name].connection.call(self.seats.leave, {}, deadline=self._deadline)
        if result.is_error:
            raise ServerFault(
                f"The seat {name} ended before the game was over, and cannot leave it: {result.text[:200]}"
            )
        self.moved(result.structured)

    def _pass_to(self, turn: object) -> None:
        if turn is None:
            self.over = True
        elif turn not in self._playing:
            others = ", ".join(sorted(self._playing)) or "nobody"
            raise ServerFault(
                f"It is the turn of {turn!r:.50}, who does not play, so the others wait for ever: {others}."
            )
        else:
            self._turn = str(turn)
        self._changed.set()
        self._changed = anyio.Event()
