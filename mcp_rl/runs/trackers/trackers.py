"""A run's trackers, seen from the run. They work in a process of their own (`host.py`), so one that hangs, fails or
takes long never holds the run up.

The run only hands over metrics and the names of files of episodes. What a tracker did not take is said at the end.
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
"""What trackers and their packages print, in the run's folder."""
_START_SECONDS = 15.0
"""Time for all trackers to start, while the run prepares; one that needs longer gets everything once it has."""
_PATIENCE, _INTERRUPTED_PATIENCE = 10.0, 0.5
"""Seconds at the end for one entry; for a run that was stopped, all that it waits."""
_CLOSE_SECONDS = 60.0
"""Seconds at the end for everything that is still to be sent."""
_MOST_WAITING = 10_000
"""Entries that wait for the trackers' process; later ones are lost."""
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
    """How far a tracker has come."""

    heard: float
    """Time of its last sign of life, or from which it had something to do."""
    started: bool = False
    over: bool = False
    """True once it has failed or is closed."""
    taken: int = 0
    """Entries that it has dealt with."""


class Trackers:
    """The trackers of one session of a run. `say` is told of each tracker that fails."""

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
        """True once the run has begun, which an error no longer ends."""
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
            tasks = [
                asyncio.create_task(trackers._write(child)),
                asyncio.create_task(trackers._read(child, BufferedByteReceiveStream(child.process.stdout))),
            ]
            patience = _INTERRUPTED_PATIENCE
            try:
                trackers._put(
                    {
                        "environment": dict(os.environ),  # not visible to other processes, unlike that of a command
                        "folder": str(place),
                        "config": config.model_dump(mode="json"),
                        "origins": {name: plugins.trackers.origins[name] for name in config.trackers},
                    }
                )
                yield trackers
                patience = _PATIENCE
            finally:
                with anyio.CancelScope(shield=True):
                    await trackers._close(patience)
                    child.kill()
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

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
        """Wait a moment for trackers that are still starting. Raises PluginError or ConfigError if one cannot start."""
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

    async def _close(self, patience: float) -> None:
        """Wait until everything is sent, as long as that gets on; then say what was lost."""
        began = time.monotonic()
        self._put({"close": True})
        total = _CLOSE_SECONDS if patience == _PATIENCE else patience
        while (now := time.monotonic()) < began + total and not self._gone:
            waiting = [one for one in self._standing.values() if not one.over]
            if all(now - one.heard > patience for one in waiting):
                break
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
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):  # the reader handles it
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
        self._gone = True
        await child.wait()
        self._say(f"The trackers' process {child.ending}, and the run goes on without it: see {LOG} in its folder.")

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
            case "waits":
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
