"""Episodes as traces in Weave, the part of Weights & Biases for agents."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.runs.trackers.spans import Span, traces
from mcp_rl.runs.trackers.wandb_key import has_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import Period, TrajectoryGroup

for _name in ("CAPTURE_CLIENT_INFO", "CAPTURE_CODE", "CAPTURE_SYSTEM_INFO", "ENABLE_DISK_FALLBACK"):
    os.environ.setdefault(f"WEAVE_{_name}", "false")
for _name in ("IMPLICITLY_PATCH_INTEGRATIONS", "PRINT_CALL_LINK"):
    os.environ.setdefault(f"WEAVE_{_name}", "false")

import weave  # noqa: E402 - reads these variables


class WeaveCalls:
    """Calls in the Weave project of the run's project: an episode with its turns and tool calls."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        if not has_key(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"):
            raise ConfigError(
                "The tracker 'weave' needs a login at Weights & Biases, since Weave keeps nothing on this machine: run "
                "`wandb login`, or set WANDB_API_KEY."
            )
        self._config = config
        self._client: Any = weave.init(os.environ.get("WANDB_PROJECT") or config.project)

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing: Weave has no curves. The tracker wandb draws them."""

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Log the traces of `tracking.episodes` episodes. They are sent in the background; `close` waits for it."""
        for trace in traces(self._config, split, step, {}, groups, update, self._config.tracking.episodes):
            if trace.kind == "episode":
                self._record(trace, None)

    def close(self) -> None:
        weave.finish()

    def _record(self, span: Span, parent: Any) -> None:
        call = self._client.create_call(
            f"mcp_rl.{span.kind}",
            {} if span.inputs is None else {"messages" if span.kind != "tool" else "arguments": span.inputs},
            parent,
            span.attributes,
            span.name,
            use_stack=False,
            started_at=_time(span.period[0]),
        )
        for child in span.children:
            self._record(child, call)
        verdict = {name: span.attributes[f"mcp_rl.{name}"] for name in _VERDICT if f"mcp_rl.{name}" in span.attributes}
        output = verdict if span.outputs is None else {"output": span.outputs, **verdict}
        error = None if span.error is None else RuntimeError(span.error)
        self._client.finish_call(call, output or None, error, ended_at=_time(span.period[1]))


_VERDICT = ("reward", "success", "stop_reason", "explanation")


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
