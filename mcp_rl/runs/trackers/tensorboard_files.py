"""Curves for TensorBoard, in the run's folder: `tensorboard --logdir .mcp_rl` shows all runs below it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from mcp_rl.runs.trackers.run_summary import table_of
from mcp_rl.runs.trackers.spans import traces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import Period, TrajectoryGroup


class TensorBoardFiles:
    """Event files in `<run>/tensorboard`, a new one for each session of the run."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._config = config
        self._writer = EventFileWriter(str(folder / "tensorboard"))

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Log each metric under `train/` or `val/`; the values are on disk when this returns."""
        values = [Summary.Value(tag=f"{split}/{name}", simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=Summary(value=values))
        self._writer.flush()

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Log a table of `tracking.episodes` episodes as text."""
        most, texts = self._config.tracking.episodes, self._config.tracking.texts
        found = traces(self._config, split, step, {}, groups, update, most)
        columns, rows = table_of([trace for trace in found if trace.kind == "episode"], texts=texts)
        cells = [str(cell) for row in (columns, *rows) for cell in row]
        size = [TensorShapeProto.Dim(size=length) for length in (len(rows) + 1, len(columns))]
        table = TensorProto(
            dtype=DT_STRING, tensor_shape=TensorShapeProto(dim=size), string_val=[cell.encode() for cell in cells]
        )
        about = create_summary_metadata(display_name=None, description=None)
        value = Summary.Value(tag=f"{split}/episodes/text_summary", tensor=table, metadata=about)
        self._add(step, summary=Summary(value=[value]))
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """Make TensorBoard drop what was logged from this step on."""
        self._add(step, session_log=SessionLog(status=SessionLog.START))

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **what: object) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, **what))
