"""What plugins offer, as types: the parts of a run that can be exchanged."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from mcp_rl.config import RunConfig
    from mcp_rl.model import Backend
    from mcp_rl.plugins.server import ToolServer
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.scenarios.recipe import Recipe
    from mcp_rl.toolserver.pool import Sessions


class ScenarioSource(Protocol):
    """Makes tasks for a server that runs. It may be asynchronous, and the same seed should give the same tasks."""

    def __call__(
        self, sessions: "Sessions", *, server: "ToolServer", params: "ServerParams", recipe: "Recipe"
    ) -> "Sequence[McpScenario] | Awaitable[Sequence[McpScenario]]":
        """`await sessions.get(params)` is a session with the server; `recipe` says how many tasks, and the seed."""


MakeBackend = Callable[["RunConfig"], "Backend"]
"""Makes what trains and samples, before its model is registered. Torch is imported in here and no sooner."""


class Tracker(Protocol):
    """Takes a run's metrics as they come. Both methods hold the run up for as long as they take."""

    def log(self, split: Literal["train", "val"], step: int, metrics: Mapping[str, float]) -> None:
        """The finite metrics of a training step ("train") or of an evaluation ("val", step 0 is the base's)."""

    def close(self) -> None:
        """The session of the run ends, whether all of it is done or not."""


MakeTracker = Callable[[Path, "RunConfig"], Tracker]
"""Starts to track the run in this folder. A later session of the same run calls it again, and may play a step again
that was logged already. Where the factory has a method `check()`, that is called before anything is started or written,
and may raise ConfigError."""
