"""Curves in Weights & Biases, or in files for `wandb sync` without a login."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import wandb

from mcp_rl.runs.trackers.run_id import run_id
from mcp_rl.runs.trackers.run_summary import settings_of, table_of
from mcp_rl.runs.trackers.spans import traces
from mcp_rl.runs.trackers.wandb_key import has_key
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import Period, TrajectoryGroup


class WeightsAndBiases:
    """A wandb run for all sessions of a run, with files in `<run>/wandb`.

    wandb finds its key itself (`wandb login`, or WANDB_API_KEY); without one, or with WANDB_MODE=offline, everything
    stays on this machine. It receives names, settings, metrics and tables of episodes: no code, no output, no command
    line, and no server address, which may hold secrets.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._config = config
        self._run = wandb.init(
            project=config.project,
            name=without_secrets(config.name),
            dir=folder,
            id=run_id(folder),
            resume="allow",
            mode=None if "WANDB_MODE" in os.environ or has_key(wandb.Settings().base_url) else "offline",
            config=settings_of(config),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Log each metric under `train/` or `val/`, with `step` as its axis."""
        self._run.log({"step": step, **{f"{split}/{name}": value for name, value in metrics.items()}})

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Log a table of `tracking.episodes` episodes."""
        most, texts = self._config.tracking.episodes, self._config.tracking.texts
        found = traces(self._config, split, step, {}, groups, update, most)
        columns, rows = table_of([trace for trace in found if trace.kind == "episode"], texts=texts)
        self._run.log({"step": step, f"{split}/episodes": wandb.Table(columns, rows)})

    def close(self) -> None:
        self._run.finish()
