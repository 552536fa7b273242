"""How long each step of a connection may take."""

import math
from dataclasses import dataclass

import anyio


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each step may take."""

    spawn: float = 30.0
    """From starting a network server to its first open port."""
    initialize: float = 60.0
    """Connecting and the handshake. Generous, since `npx` and `uvx` download the server before they start it."""
    list: float = 30.0
    """All pages of the tools."""
    call: float = 60.0
    """One tool call, with whatever it takes to open a lost session again; each sign of progress begins it anew."""
    longest_call: float = 600.0
    """One tool call, however much progress the server reports. A deadline that is longer than this stands."""
    close: float = 5.0


class Steps:
    """The step that a session is in, with its deadline, in one cancel scope around all of it.

    A scope for each step could not be closed while the contexts opened in it stay open.
    """

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self.scope = anyio.CancelScope()
        self.name = ""

    @property
    def seconds(self) -> float:
        return self._seconds.get(self.name, math.inf)

    def begin(self, name: str) -> None:
        self.name = name
        self.scope.deadline = anyio.current_time() + self.seconds
