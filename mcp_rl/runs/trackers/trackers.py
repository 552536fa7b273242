"""A run's trackers: each receives the metrics as they come, and a tracker that fails is dropped alone."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.errors import PluginError, UserError
from mcp_rl.plugins.manager import Plugins, named_while_slow, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Tracker


def check_trackers(names: Sequence[str], plugins: Plugins) -> None:
    """Check trackers before anything is started or written. Raises PluginError for a name that no plugin offers, and
    the error of a tracker's `check`: ConfigError if its package is not installed."""
    for name in names:
        check = getattr(plugins.trackers.pick(name, plugins.problems), "check", None)
        if check is not None:
            check()


class Trackers:
    """The open trackers of one session of a run. `say` is told once of each tracker that fails."""

    def __init__(self, say: Callable[[str], None] = lambda sentence: None) -> None:
        self._say = say
        self._open: dict[str, tuple[Tracker, str]] = {}

    @classmethod
    @contextmanager
    def opened(
        cls, folder: Path, config: RunConfig, plugins: Plugins, say: Callable[[str], None]
    ) -> Iterator[Trackers]:
        """Open the trackers that the configuration names, and close them on leaving.

        Raises PluginError if one cannot be started, since nothing is lost yet.
        """
        trackers = cls(say)
        try:
            for name in config.trackers:
                trackers._start(name, folder, config, plugins)
            yield trackers
        finally:
            trackers._close()

    def _start(self, name: str, folder: Path, config: RunConfig, plugins: Plugins) -> None:
        origin = plugins.trackers.origins[name]
        try:
            tracker = plugins.trackers[name](folder, config)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"The tracker {name!r} ({place(error, origin)}) cannot be started: {type(error).__name__}: {error}"
            ) from error
        missing = [method for method in ("log", "close") if not callable(getattr(tracker, method, None))]
        if missing:
            raise PluginError(f"The tracker {name!r} ({origin}) made {tracker!r:.80}, which has no {missing[0]}().")
        self._open[name] = tracker, origin

    def log(self, split: Literal["train", "val"], step: int, metrics: Mapping[str, Any]) -> None:
        """Send the finite numbers among these metrics to every tracker; an interval becomes its two ends."""
        numbers = finite(metrics)
        for name, (tracker, origin) in list(self._open.items()):
            try:
                with named_while_slow(f"The tracker {name!r} ({origin}) is still busy with step {step}"):
                    tracker.log(split, step, dict(numbers))
            except (Exception, SystemExit) as error:
                self._failed(name, origin, error)

    def _close(self) -> None:
        for name, (tracker, origin) in list(self._open.items()):
            try:
                tracker.close()
            except (Exception, SystemExit) as error:
                self._failed(name, origin, error)
        self._open.clear()

    def _failed(self, name: str, origin: str, error: BaseException) -> None:
        """Report and drop a tracker that failed, and try to close it."""
        tracker, _ = self._open.pop(name)
        self._say(
            f"The tracker {name!r} ({place(error, origin)}) failed, and the run goes on without it: "
            f"{type(error).__name__}: {error}"
        )
        try:
            tracker.close()
        except (Exception, SystemExit):
            return  # its failure has been reported


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that can be drawn: a finite `x` itself, a pair `x` as `x_low` and `x_high`."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, list | tuple) and len(value) == 2:
            numbers |= finite({f"{name}_low": value[0], f"{name}_high": value[1]})
        elif isinstance(value, int | float) and math.isfinite(value):
            numbers[name] = float(value)
    return numbers
