"""Waiting for a judge that is down: all pause, one at a time asks again, and where it stays down the run stops."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from mcp_rl.errors import JudgeDown, JudgeStop

T = TypeVar("T")
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


class Patience:
    """Shared by all who ask a judge. `seconds` is how long it may be down before JudgeStop is raised."""

    def __init__(self, seconds: float, say: Callable[[str], None] = lambda sentence: None) -> None:
        self._seconds = seconds
        self._say = say
        self._turn = anyio.Lock()
        self._since: float | None = None
        self._pause = 0.0

    async def until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` gives, asked again after a pause as long as it raises JudgeDown."""
        while True:
            if self._since is None:
                try:
                    return self._answered(await ask())
                except JudgeDown as error:
                    self._fell(error)
            async with self._turn:
                if self._since is None:  # another one's question was answered while we waited
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
                f"{error} It stayed like that for {now - self._since:.0f} s (judge.patience). The last whole step is "
                "kept, and the same command continues from there."
            ) from error

    def _answered(self, answer: T) -> T:
        if self._since is not None:
            self._say(f"The judge answers again after {time.monotonic() - self._since:.0f} s.")
            self._since = None
        return answer
