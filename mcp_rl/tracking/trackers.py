"""A run's trackers: each gets the metrics as they come, and one that fails ends for itself alone."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mcp_rl.config import RunConfig
from mcp_rl.errors import PluginError, UserError
from mcp_rl.plugins.manager import Plugins, named_while_slow, place
from mcp_rl.plugins.parts import Tracker


def check_trackers(names: Sequence[str], plugins: Plugins) -> None:
    """Before anything is started or written. Raises PluginError for a name that no plugin offers, and what a tracker's
    `check` raises: ConfigError where its package is not installed."""
    for name in names:
        check = getattr(plugins.trackers.pick(name, plugins.problems), "check", None)
        if check is not None:
            check()


class Trackers:
    """The open trackers of one session of a run. `say` hears, once, of each that fails."""

    def __init__(self, say: Callable[[str], None] = lambda sentence: None) -> None:
        self._say = say
        self._open: dict[str, tuple[Tracker, str]] = {}

    @classmethod
    @contextmanager
    def opened(
        cls, folder: Path, config: RunConfig, plugins: Plugins, say: Callable[[str], None]
    ) -> Iterator["Trackers"]:
        """Those that the configuration names, closed in the end.

        Raises PluginError where one cannot be started: it was asked for, and nothing is lost yet.
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
        """Hand the finite numbers among these metrics to every tracker; an interval becomes its two ends."""
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
        """From now on without it; what it holds open is let go where that still works."""
        tracker, _ = self._open.pop(name)
        self._say(
            f"The tracker {name!r} ({place(error, origin)}) failed, and the run goes on without it: "
            f"{type(error).__name__}: {error}"
        )
        try:
            tracker.close()
        except (Exception, SystemExit):
            return  # it has been said that it fails


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among metrics that can be drawn: `x` itself, `x_low` and `x_high` of a pair."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, list | tuple) and len(value) == 2:
            numbers |= finite({f"{name}_low": value[0], f"{name}_high": value[1]})
        elif isinstance(value, int | float) and math.isfinite(value):
            numbers[name] = float(value)
    return numbers
