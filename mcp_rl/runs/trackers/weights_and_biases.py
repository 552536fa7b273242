"""Curves in Weights & Biases, or in files for `wandb sync` without a login."""

from __future__ import annotations

import json
import netrc
import os
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import wandb

from mcp_rl.runs.trackers.run_id import run_id
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_rl.config import RunConfig


class WeightsAndBiases:
    """A wandb run for all sessions of a run, with files in `<run>/wandb`.

    wandb finds its key itself (`wandb login`, or WANDB_API_KEY); without one, or with WANDB_MODE=offline, everything
    stays on this machine. It receives names, settings and metrics: no code, no output, no command line, and no server
    address, which may hold secrets.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._run = wandb.init(
            project=config.project,
            name=without_secrets(config.name),
            dir=folder,
            id=run_id(folder),
            resume="allow",
            mode=None if "WANDB_MODE" in os.environ or _has_key() else "offline",
            config=_settings(config),
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

    def log(self, split: Literal["train", "val"], step: int, metrics: Mapping[str, float]) -> None:
        """Log each metric under `train/` or `val/`, with `step` as its axis."""
        self._run.log({"step": step, **{f"{split}/{name}": value for name, value in metrics.items()}})

    def close(self) -> None:
        self._run.finish()


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(wandb.Settings().base_url).hostname or ""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _settings(config: RunConfig) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(without_secrets(config.model_dump_json(exclude={"server", "output_dir"})))
    return settings
