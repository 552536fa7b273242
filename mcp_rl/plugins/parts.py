"""Types of the parts of a run that plugins can replace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from mcp_rl.config import RunConfig
    from mcp_rl.model import Backend
    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.trajectory import Period, TrajectoryGroup

Split = Literal["train", "val"]


class ScenarioSource(Protocol):
    """Makes tasks for a running server. It may be asynchronous, and the same seed should give the same tasks."""

    def __call__(
        self, sessions: Sessions, *, server: ToolServer, params: ServerParams, recipe: Recipe
    ) -> Sequence[McpScenario] | Awaitable[Sequence[McpScenario]]:
        """Make the tasks. `await sessions.get(params)` is a session; `recipe` holds their number and the seed."""


MakeBackend = Callable[["RunConfig"], "Backend"]
"""Makes a backend, before its model is registered. Import torch in here, not in the plugin's module. If the factory has
a method `check()`, that is called before anything is started or written, and may raise ConfigError."""


class Tracker(Protocol):
    """Receives a run's metrics, in a process of its own, so that the run never waits for it.

    It is given each step and each evaluation once, in order, whatever kills happen. An error ends it, unless it is
    NotDelivered: then the same entry is given again later.
    """

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Log the finite metrics of a training step ("train") or an evaluation ("val"; step 0 is the base model). Those
        of a small evaluation have names with `subset_`."""

    def close(self) -> None:
        """End this session of the run, whether the run is complete or not."""


class EpisodeTracker(Tracker, Protocol):
    """A tracker that receives the episodes too."""

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Log the episodes of the step or evaluation whose metrics came last. `update` says when the weights were
        updated; None for an evaluation, or if it is not known any more."""


class RewindingTracker(Tracker, Protocol):
    """A tracker that can forget. Others are not given a step again that is played again after a kill."""

    def rewind(self, step: int) -> None:
        """Forget what was logged from this training step on: it comes again."""


MakeTracker = Callable[[Path, "RunConfig"], Tracker]
"""Starts to track the run in this folder. Each later session of the run calls it again. If the factory has a method
`check()`, that is called before anything is started or written, and may raise ConfigError."""
