"""The trackers that come with the package, offered through the same hook as everyone's. Their packages are extras."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError
from mcp_rl.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import MakeTracker, Tracker


@hookimpl
def register_trackers(register: "Callable[[str, MakeTracker], None]") -> None:
    """TensorBoard and Weights & Biases."""
    register("tensorboard", _OfExtra("tensorboard", "mcp_rl.tracking.tensorboard_files", "TensorBoardFiles"))
    register("wandb", _OfExtra("wandb", "mcp_rl.tracking.weights_and_biases", "WeightsAndBiases"))


@dataclass(frozen=True)
class _OfExtra:
    """Makes a tracker whose package may not be installed."""

    package: str
    module: str
    name: str

    def check(self) -> None:
        """Raises ConfigError with the command that installs the package."""
        if find_spec(self.package) is None:
            raise ConfigError(
                f"The tracker {self.package!r} needs a package that is not installed: "
                f"python -m pip install 'mcp-rl[tracking]' brings it."
            )

    def __call__(self, folder: Path, config: "RunConfig") -> "Tracker":
        tracker: Tracker = getattr(import_module(self.module), self.name)(folder, config)
        return tracker
