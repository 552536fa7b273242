"""The report of a fine-tuning, and the command to train on."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from mcp_rl.config import TINY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_rl.runs.sft.settings import SftConfig


class SftReport(BaseModel):
    """Results of a fine-tuning; kept as report.json."""

    run_dir: str
    base_model: str
    step: int
    epochs: int
    conversations: int
    """Conversations trained on; equal ones count once."""
    held_out: int
    trained_tokens: int
    """Tokens in the loss, over all epochs."""
    held_out_loss_before: float | None
    """Nats per token of the assistant."""
    held_out_loss_after: float | None
    best_step: int | None
    """The step with the lowest held-out loss."""
    best_loss: float | None
    seconds: float
    peak_rss_mb: float

    def sentences(self) -> Iterator[str]:
        """Yield the report as sentences for the user."""
        yield (
            f"{self.step} steps on {counted(self.conversations, 'conversation')}, {self.trained_tokens} tokens in the "
            f"loss, {self.seconds:.0f} s."
        )
        if self.held_out_loss_before is None or self.held_out_loss_after is None:
            yield "Nothing was held out, so it is unknown whether this generalises to other requests."
            return
        yield (
            f"Held-out loss {self.held_out_loss_before:.4f} before, {self.held_out_loss_after:.4f} after, "
            f"on {counted(self.held_out, 'conversation')}."
        )
        if self.best_step not in (None, self.step):
            yield f"It was lowest, {self.best_loss:.4f}, at step {self.best_step}."


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 conversation`, `2 conversations`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def best_of(losses: Mapping[int, float]) -> int | None:
    """Return the trained step with the lowest held-out loss, the earliest of equals; None before the first."""
    return min((step for step in losses if step), key=lambda step: (losses[step], step), default=None)


def next_command(config: SftConfig, report: SftReport) -> str:
    """Return the command that trains on with rewards, from the best step."""
    weights = Path(report.run_dir)
    if report.best_step is not None and report.best_step != report.step and config.train.keep_best:
        weights = weights / "checkpoints" / f"{report.best_step:04d}"
    lora = config.train.lora
    changed = [
        f"train.lora.{name}={json.dumps(getattr(lora, name))}"
        for name in ("rank", "alpha", "targets")
        if getattr(lora, name) != type(lora).model_fields[name].default
    ]
    changed += ["train.method=full"] if config.train.method == "full" else []
    changed += ["unsloth.trust_remote_code=true"] if config.unsloth.trust_remote_code else []
    base = "" if config.base_model == TINY else f" --base-model {shlex.quote(config.base_model)}"
    return f"mcp-rl train --server SERVER{base} --init {shlex.join([str(weights), *changed])}"
