"""Deadlines of the steps of a connection."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.config import RunConfig

SLOW_CALL = 5.0
"""Seconds for a call of a slow tool that no task needs."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each step may take."""

    spawn: float = 30.0
    """Starting a network server, until it accepts connections."""
    initialize: float = 60.0
    """Connecting and the handshake. Generous, since a machine may be busy."""
    list: float = 30.0
    """Listing all pages of the tools."""
    call: float = 60.0
    """A tool call, including the time to reopen a lost session. Each sign of progress begins it anew."""
    longest_call: float = 60.0
    """A tool call, however much progress the server reports. A longer deadline of the call stands."""
    slow_call: float = math.inf
    """A call of one of the `slow` tools, however much progress the server reports, if that is less."""
    slow: frozenset[str] = frozenset()
    """Tools that took too long when the server was measured, by the server's names."""
    close: float = 5.0

    @property
    def hurried(self) -> frozenset[str]:
        """The slow tools, where they get less time than others."""
        return self.slow if self.slow_call < math.inf else frozenset()

    @staticmethod
    def of_episodes(config: RunConfig) -> Deadlines:
        """Return those of a training run's episodes.

        Where its tasks are explored, none needs a slow tool: to call one is a mistake, and all others would wait for
        it.
        """
        explored = config.scenarios.file is None and config.scenarios.source in (None, "explore")
        return Deadlines(call=config.rollout.tool_deadline, slow_call=SLOW_CALL if explored else math.inf)

    def of_steps(self, seconds: Mapping[str, float]) -> Deadlines:
        """Return them with those of some steps, by their names here, replaced."""
        changed: dict[str, Any] = dict(seconds)
        return replace(self, **changed)


class Steps:
    """The current step of a session and its deadline, in one cancel scope around the whole session.

    A scope for each step could not be closed while contexts that were opened in it stay open.
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
