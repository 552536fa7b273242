"""Waiting for a judge that is down: everything pauses, one question at a time retries, and at last the run stops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import anyio

from mcp_rl.errors import JudgeDown, JudgeStop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


class Patience:
    """Shared by all questions. JudgeStop is raised once the judge has been down for `seconds`."""

    def __init__(self, seconds: float, say: Callable[[str], None] = lambda sentence: None) -> None:
        self._seconds = seconds
        self._say = say
        self._turn = anyio.Lock()
        self._since: float | None = None
        self._pause = 0.0

    async def until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `ask`, called again after a pause for as long as it raises JudgeDown."""
        while True:
            if self._since is None:
                try:
                    return self._answered(await ask())
                except JudgeDown as error:
                    self._fell(error)
            async with self._turn:
                if self._since is None:  # another question was answered in the meantime
                    continue
                await anyio.sleep(self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                try:
                    return self._answered(await ask())
                except JudgeDown as error:
                    self._fell(error)

    def _fell(self, error: JudgeDown) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since, self._pause = now, min(_FIRST_PAUSE, self._seconds / 10)
            self._say(f"{error} Everything waits for it, up to {self._seconds:g} s.")
        if now - self._since >= self._seconds:
            raise JudgeStop(
                f"{error} It stayed down for {now - self._since:.0f} s (judge.patience). The last whole step is kept, "
                "and the same command continues from there."
            ) from error

    def _answered(self, answer: T) -> T:
        if self._since is not None:
            self._say(f"The judge answers again after {time.monotonic() - self._since:.0f} s.")
            self._since = None
        return answer
