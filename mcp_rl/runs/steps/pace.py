"""How often a run writes checkpoints: by what one weighs, and by what writing it costs beside a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mcp_rl.config.presets import DEFAULTS, kind_of

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.config import RunConfig

SHARE = 0.05
"""Largest share of a run's time that checkpoints take."""
LIGHT = 100e6
"""Bytes below which a checkpoint costs nothing worth measuring, as the built-in model's."""
LEAST, MOST = 2, 50
"""Steps between two heavy checkpoints, at least and at most: a kill loses so many."""


class CheckpointPace:
    """The steps between checkpoints: those of `train.checkpoint_every`, and where these are the default for the model,
    as many as keep the time of writing within its share, from the first heavy checkpoint on."""

    def __init__(self, config: RunConfig) -> None:
        self.every = config.train.checkpoint_every
        kind = kind_of(config.base_model, {"train": {"method": config.train.method}})
        preset = next(default for default in DEFAULTS if default.key == "train.checkpoint_every")
        self._open = self.every == preset.value(kind)

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due after a step."""
        return step % self.every == 0

    def saved(self, folder: Path, seconds: float, step_seconds: float) -> str | None:
        """Take what a checkpoint has cost into account; return a sentence if the pace changes."""
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        if not self._open or size < LIGHT or step_seconds <= 0:
            return None
        self._open, before = False, self.every
        self.every = max(LEAST, min(MOST, math.ceil(seconds / (SHARE * step_seconds))))
        if self.every == before:
            return None
        return (
            f"A checkpoint weighs {size / 1e9:.1f} GB and took {seconds:.1f} s, a step {step_seconds:.0f} s: from now "
            f"on one every {self.every} steps (train.checkpoint_every)."
        )
