"""The built-in trackers, registered through the same hook as a plugin's. The extra of its name brings a package."""

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
    """Register the trackers whose packages are extras."""
    for name, (package, module, kind) in _BUILT_IN.items():
        register(name, _FromExtra(name, package, f"mcp_rl.runs.trackers.{module}", kind))


_BUILT_IN = {
    "mlflow": ("mlflow", "mlflow_run", "MlflowRun"),
    "otlp": ("opentelemetry.exporter.otlp.proto.http", "otlp", "OpenTelemetryTraces"),
    "tensorboard": ("tensorboard", "tensorboard_files", "TensorBoardFiles"),
    "trackio": ("trackio", "trackio_run", "TrackioRun"),
    "wandb": ("wandb", "weights_and_biases", "WeightsAndBiases"),
    "weave": ("weave", "weave_calls", "WeaveCalls"),
}
"""For each name the package it needs, and the module and class here."""


@dataclass(frozen=True)
class _FromExtra:
    """Makes a tracker whose package may not be installed."""

    name: str
    package: str
    module: str
    kind: str

    def check(self) -> None:
        """Raise ConfigError with the command that installs the package if it is missing."""
        if not _is_installed(self.package):
            raise ConfigError(
                f"The tracker {self.name!r} needs a package that is not installed: "
                f"python -m pip install 'mcp-rl[{self.name}]'."
            )

    def __call__(self, folder: Path, config: RunConfig) -> Tracker:
        tracker: Tracker = getattr(import_module(self.module), self.kind)(folder, config)
        return tracker


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
