"""Curves for TensorBoard, in the run's folder: `tensorboard --logdir .mcp_rl` shows all runs below it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_rl.config import RunConfig


class TensorBoardFiles:
    """Event files in `<run>/tensorboard`, a new one for each session of the run."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._writer = EventFileWriter(str(folder / "tensorboard"))

    def log(self, split: Literal["train", "val"], step: int, metrics: Mapping[str, float]) -> None:
        """Log each metric under `train/` or `val/`; the values are on disk when this returns."""
        values = [Summary.Value(tag=f"{split}/{name}", simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=Summary(value=values))
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """Make TensorBoard drop what was logged from this step on."""
        self._add(step, session_log=SessionLog(status=SessionLog.START))

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **what: object) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, **what))
