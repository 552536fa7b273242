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
    """Event files in `<run>/tensorboard`, a new one for each session of the run.

    A session that continues a killed one may play a step again. Its first event names the step at which it starts, so
    that TensorBoard drops what was logged from there on.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._writer = EventFileWriter(str(folder / "tensorboard"))
        self._started = False

    def log(self, split: Literal["train", "val"], step: int, metrics: Mapping[str, float]) -> None:
        """Log each metric under `train/` or `val/`; the values are on disk when this returns."""
        if not self._started:
            self._started = True
            self._add(step, session_log=SessionLog(status=SessionLog.START))
        values = [Summary.Value(tag=f"{split}/{name}", simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=Summary(value=values))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **what: object) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, **what))
