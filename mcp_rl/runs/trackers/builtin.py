"""The built-in trackers, registered through the same hook as a plugin's. Their packages are extras."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError
from mcp_rl.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import MakeTracker, Tracker


@hookimpl
def register_trackers(register: Callable[[str, MakeTracker], None]) -> None:
    """Register TensorBoard and Weights & Biases."""
    register("tensorboard", _FromExtra("tensorboard", "mcp_rl.runs.trackers.tensorboard_files", "TensorBoardFiles"))
    register("wandb", _FromExtra("wandb", "mcp_rl.runs.trackers.weights_and_biases", "WeightsAndBiases"))


@dataclass(frozen=True)
class _FromExtra:
    """Makes a tracker whose package may not be installed."""

    package: str
    module: str
    name: str

    def check(self) -> None:
        """Raise ConfigError with the command that installs the package if it is missing."""
        if find_spec(self.package) is None:
            raise ConfigError(
                f"The tracker {self.package!r} needs a package that is not installed: "
                "python -m pip install 'mcp-rl[tracking]'."
            )

    def __call__(self, folder: Path, config: RunConfig) -> Tracker:
        tracker: Tracker = getattr(import_module(self.module), self.name)(folder, config)
        return tracker
