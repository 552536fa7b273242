"""The run's side of its trackers. They work in a process of their own (`host.py`), so that a tracker which hangs, fails
or is slow never holds the run up.

The run sends metrics and the paths of episode files, and never waits for an answer. At the end it says how many steps
and evaluations each tracker did not take.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_rl.errors import ConfigError, PluginError
from mcp_rl.system.processes.spawn import Child, python_path, spawned
from mcp_rl.system.visible import visible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.manager import Plugins
    from mcp_rl.trajectory import Period

LOG = "logs/trackers.log"
"""File in the run's folder with the output of the trackers' process."""
_START_SECONDS = 15.0
"""Longest wait for trackers to start. One that takes longer gets everything once it has started."""
_SILENCE_SECONDS, _STUCK_SECONDS = 5.0, 60.0
"""Longest wait at the end for a tracker that gives no sign of life; after so long without one there is no wait."""
_CLOSE_SECONDS, _INTERRUPTED_CLOSE_SECONDS = 30.0, 0.5
"""Longest wait at the end for trackers that are still sending, after a complete run and after an interrupted one."""
_TELL_SECONDS = 2.0
"""Time at the end after which the user is told what is waited for."""
_MOST_WAITING = 10_000
"""Largest number of entries that are queued for the trackers' process; further ones are lost."""
_LONGEST_LINE = 2**20
_POLL = 0.02


def check_trackers(names: Sequence[str], plugins: Plugins) -> None:
    """Check trackers before anything is started or written. Raises PluginError for a name that no plugin offers, and
    the error of a tracker's `check`: ConfigError if its package is not installed."""
    for name in names:
        check = getattr(plugins.trackers.pick(name, plugins.problems), "check", None)
        if check is not None:
            check()


@dataclass
class _Standing:
    """The progress of one tracker."""

    heard: float
    """Time of its last message; if it was idle then, the time of the next entry that it was sent."""
    started: bool = False
    over: bool = False
    """True once it has failed or is closed."""
    taken: int = 0
    """Number of entries that it has processed."""
    waits: bool = False
    """True while its service takes nothing."""

    def is_hopeless(self, began: float) -> bool:
        """Return True if there is no use in waiting for it any longer, in a wait that began at this time."""
        now = time.monotonic()
        silent = now - max(self.heard, began) > _SILENCE_SECONDS or now - self.heard > _STUCK_SECONDS
        return self.over or self.waits or silent


class Trackers:
    """The trackers of one session of a run. `say` prints a sentence for the user, such as that a tracker has failed."""

    def __init__(self, say: Callable[[str], None] = lambda sentence: None, names: Sequence[str] = ()) -> None:
        self._say = say
        self._standing = {name: _Standing(time.monotonic()) for name in names}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue(_MOST_WAITING)
        self._sent = 0
        self._gone = False
        """True once the trackers' process has ended."""
        self._error: ConfigError | PluginError | None = None
        """The error of a tracker that cannot start."""
        self._waited = False
        """True once `started` has returned; from then on a tracker's error does not end the run."""
        self._began = time.monotonic()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, folder: Path, config: RunConfig, plugins: Plugins, say: Callable[[str], None]
    ) -> AsyncIterator[Trackers]:
        """Start the trackers that the configuration names, and close them on leaving."""
        trackers = cls(say, config.trackers)
        place = folder.absolute()  # noqa: ASYNC240
        if not config.trackers:
            yield trackers
            return
        starting = spawned(
            [sys.executable, "-P", "-m", "mcp_rl.runs.trackers.host"],
            role="trackers",
            run=folder,
            log=folder / LOG,
            environment={"PYTHONPATH": python_path()},
            pipes="pass",
        )
        async with starting as child:
            assert child.process.stdin is not None and child.process.stdout is not None
            trackers._put(
                {
                    "environment": dict(os.environ),  # not visible to other processes, unlike that of a command
                    "folder": str(place),
                    "config": config.model_dump(mode="json"),
                    "origins": {name: plugins.trackers.origins[name] for name in config.trackers},
                }
            )
            error: BaseException | None = None
            async with anyio.create_task_group() as pipes:
                pipes.start_soon(trackers._write, child)
                pipes.start_soon(trackers._read, child, BufferedByteReceiveStream(child.process.stdout))
                longest = _INTERRUPTED_CLOSE_SECONDS
                try:
                    yield trackers
                    longest = _CLOSE_SECONDS
                except (Exception, KeyboardInterrupt) as raised:  # raised again below, and not in a group
                    error = raised
                finally:
                    with anyio.CancelScope(shield=True):
                        await trackers._close(longest)
                        child.kill()
                    pipes.cancel_scope.cancel()
            if error is not None:
                raise error

    def log(
        self,
        split: Literal["train", "val"],
        step: int,
        metrics: Mapping[str, Any],
        episodes: Path | None = None,
        update: Period | None = None,
    ) -> None:
        """Send the finite numbers among these metrics to every tracker; an interval becomes its two ends.

        `episodes` is the file of the step's or evaluation's episodes, and `update` says when the weights were updated.
        Returns at once.
        """
        if not self._standing:
            return
        entry = {"split": split, "step": step, "metrics": finite(metrics), "update": update}
        self._put(entry | {"episodes": episodes and str(episodes.absolute())})
        self._sent += 1

    async def started(self) -> None:
        """Wait until all trackers have started, at most 15 s. Raises PluginError or ConfigError if one cannot start."""
        while (slow := [repr(name) for name, one in self._standing.items() if not one.started]) and not self._gone:
            if self._error is not None:
                raise self._error
            if time.monotonic() > self._began + _START_SECONDS:
                self._say(f"Still starting after {_START_SECONDS:.0f} s: tracker {', '.join(slow)}. The run goes on.")
                break
            await anyio.sleep(_POLL)
        self._waited = True

    def _put(self, message: Mapping[str, Any]) -> None:
        for standing in self._standing.values():
            if standing.taken == self._sent:  # it was idle until now
                standing.heard = time.monotonic()
        with suppress(asyncio.QueueFull):
            self._outgoing.put_nowait(json.dumps(message).encode() + b"\n")

    async def _close(self, longest: float) -> None:
        """Wait until all trackers have closed or are silent, at most this many seconds; then say what was lost."""
        began, told = time.monotonic(), False
        self._put({"close": True})
        while (now := time.monotonic()) < began + longest and not self._gone:
            waiting = [name for name, one in self._standing.items() if not one.is_hopeless(began)]
            if not waiting:
                break
            if now > began + _TELL_SECONDS and not told:
                told = True
                names = ", ".join(map(repr, waiting))
                self._say(f"Waiting for trackers that are still sending: {names} ({longest:.0f} s at most).")
            await anyio.sleep(_POLL)
        if (self._waited or self._error is None) and (lost := self._lost()):
            self._say(f"Not everything reached the trackers: {lost}. history.jsonl and trajectories/ have it all.")

    def _lost(self) -> str:
        missing = {name: self._sent - one.taken for name, one in self._standing.items()}
        return "; ".join(
            f"{name!r} is missing {count} of {self._sent} steps and evaluations"
            for name, count in missing.items()
            if count > 0
        )

    async def _write(self, child: Child) -> None:
        assert child.process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):  # `_read` sees the end, too
            while True:
                await child.process.stdin.send(await self._outgoing.get())

    async def _read(self, child: Child, stream: BufferedByteReceiveStream) -> None:
        with suppress(
            anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.DelimiterNotFound, OSError
        ):
            while True:
                line = await stream.receive_until(b"\n", _LONGEST_LINE)
                try:
                    self._take(json.loads(line))
                except (ValueError, LookupError, TypeError, AttributeError):  # printed by something else
                    continue
        await child.wait()
        self._say(f"The trackers' process {child.ending}, and the run goes on without it: see {LOG} in its folder.")
        self._gone = True

    def _take(self, message: Mapping[str, Any]) -> None:
        standing = self._standing[message["tracker"]]
        standing.heard = time.monotonic()
        match message["event"]:
            case "started":
                standing.started = True
            case "unstartable":
                kind = ConfigError if message["config"] else PluginError
                self._error = self._error or kind(str(message["sentence"]))
                standing.over = True
                if self._waited:
                    self._say(visible(f"{message['sentence']} The run goes on without it."))
            case "taken":
                standing.taken += 1
                standing.waits = False
            case "waits":
                standing.waits = True
                self._say(visible(str(message["sentence"])))
            case "failed":
                standing.over = True
                self._say(visible(str(message["sentence"])))
            case "closed":
                standing.over = True


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that can be drawn: a finite `x` itself, a pair `x` as `x_low` and `x_high`."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, list | tuple) and len(value) == 2:
            numbers |= finite({f"{name}_low": value[0], f"{name}_high": value[1]})
        elif isinstance(value, int | float) and math.isfinite(value):
            numbers[name] = float(value)
    return numbers
