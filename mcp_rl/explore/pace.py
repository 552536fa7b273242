"""The time that a server takes, as measured, and what can be afforded of it while tasks are made.

Shares of the time for a server whose calls or starts are slow are constants, so that a command ends in minutes. What
they allow follows from the measurement, which is kept: the same command makes the same tasks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mcp_rl.system.threads import cpu_limit, crowding

if TYPE_CHECKING:
    from mcp_rl.toolserver.tool_server import ToolServer

_DEADLINE, _LONGEST_DEADLINE = 4.0, 30.0
"""Seconds for one call, and on a slow server. A slower tool is of no use to a learner that calls it thousands of times.
"""
_SLOWEST_CALL = 16
"""How many times as long as a typical call one may take."""


def call_deadline(server: ToolServer) -> float:
    """Return the seconds that a call may take: more on a server whose calls were measured to be slow, above all where
    the machine is busy."""
    return min(_LONGEST_DEADLINE, max(_DEADLINE, _SLOWEST_CALL * slowest_call(server) * crowding()))


def slowest_call(server: ToolServer) -> float:
    """Return the seconds that a typical call of the slowest server takes, as measured; 0 where nothing was measured."""
    return max((one.measured.call_seconds for one in server.members or (server,) if one.measured), default=0.0)


def calls_within(server: ToolServer, seconds: float) -> float:
    """Return the number of calls that a server which answers one at a time makes in this time; infinite where nothing
    was measured."""
    slowest = slowest_call(server)
    return seconds / slowest if slowest else math.inf


def episodes_within(server: ToolServer, seconds: float) -> float:
    """Return the number of episodes with a process of their own that start in this time; infinite where none has.

    A start keeps two processors busy: that of the new process, and that of this one.
    """
    members = [one for one in server.members or (server,) if one.measured and one.measured.isolation == "per-rollout"]
    slowest = max((one.measured.start_seconds for one in members if one.measured), default=0.0)
    return seconds * max(1, cpu_limit() // 2) / slowest if slowest else math.inf
