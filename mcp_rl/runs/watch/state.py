"""How a run is doing: going on, ended, killed or stalled; what it is doing, and what it waits for."""

from __future__ import annotations

import socket
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mcp_rl.runs.live import LiveStatus, WorkUnderWay, read_status
from mcp_rl.runs.steps.metrics import time_sentence
from mcp_rl.system.activity import Activity
from mcp_rl.system.processes.inherited import OWNER
from mcp_rl.system.processes.marker import marker_in
from mcp_rl.system.seals import HISTORY, last_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SILENT = 10.0
"""Seconds without a word, in place of one, after which a run is not taken for granted any more."""
_STALLED = 120.0
"""Seconds in which nothing begins or ends, from which a run stalls; three of its steps, if those are longer."""
_WORK = {
    Activity.SAMPLING: ("turn at the engine", "turns at the engine"),
    Activity.TOOLS: ("tool call", "tool calls"),
    Activity.JUDGING: ("verdict", "verdicts"),
    Activity.UPDATING: ("update", "updates"),
    Activity.SAVING: ("write to disk", "writes to disk"),
}


def describe(folder: Path, name: str, longest_step: float = 0.0) -> dict[str, Any]:
    """Describe a run for the page. `longest_step`: seconds of its longest step so far."""
    status, newest = read_status(folder), last_line(folder / HISTORY)
    step = newest.get("step", 0)
    state, sentence = state_of(status, step, longest_step)
    going = state not in ("finished", "interrupted", "failed", "killed", "unknown")
    return {
        "name": name,
        "state": state,
        "sentence": sentence,
        "ended": not going,
        "step": step,
        "steps": status.steps if status else None,
        "doing": [asdict(each) for each in status.doing] if status and going else [],
        "waiting": _waiting(status) if status and going else None,
        "newest": _newest(newest),
    }


def state_of(status: LiveStatus | None, step: int, longest_step: float) -> tuple[str, str]:
    """Return the state of a run in a word, and in a sentence."""
    if status is None:
        return "unknown", "This run does not say what it is doing: it was made by an earlier version, or has not begun."
    if status.ended == "finished":
        return "finished", f"All {status.steps} steps are done."
    if status.ended == "interrupted":
        return "interrupted", f"Stopped after step {step}; the same command continues it."
    if status.ended is not None:
        return "failed", f"Ended by an error: {status.said or 'see the terminal'}"
    silent, still = time.time() - status.at, time.time() - status.moved
    if silent > _SILENT:
        return _silence(status, step, silent)
    if still > max(_STALLED, 3 * longest_step):
        return "stalled", f"Nothing has begun or ended for {duration(still)}."
    return "running", f"Step {step} of {status.steps} is done." if step else "No step is done yet."


def _silence(status: LiveStatus, step: int, seconds: float) -> tuple[str, str]:
    owner = marker_in({OWNER: status.owner})
    if status.host != socket.gethostname() or owner is None:
        return "silent", f"No word for {duration(seconds)} from {status.host}, where it runs."
    if not owner.owner_lives:
        return (
            "killed",
            f"Its process was killed {duration(seconds)} ago, after step {step}; the same command continues it.",
        )
    return "silent", f"No word for {duration(seconds)}: its process is suspended, or the machine is overloaded."


def _waiting(status: LiveStatus) -> str | None:
    """Return a sentence about what is under way."""
    parts = [_part(work) for work in status.work]
    return f"Waiting for {', '.join(parts)}." if parts else None


def _part(work: WorkUnderWay) -> str:
    one, several = _WORK[work.kind]
    number = f"{'an' if one[0] in 'aeiou' else 'a'} {one}" if work.count == 1 else f"{work.count} {several}"
    since = duration(work.seconds) if work.seconds >= 1 else ""
    about = ", ".join(filter(None, [work.what, since]))
    about = f"the longest: {about}" if work.count > 1 and since else about
    return f"{number} ({about})" if about else number


def _newest(line: Mapping[str, Any]) -> str | None:
    """Return a sentence about the newest training step."""
    if line.get("split") != "train":
        return None
    parts = [f"{name} {line[name]:.3f}" for name in ("success", "reward", "loss") if line.get(name) is not None][:2]
    if seconds := line.get("step_seconds"):
        spent = time_sentence(line)
        parts.append(f"{seconds:.1f} s" + (f" ({spent})" if spent else ""))
    return f"Step {line['step']}: {', '.join(parts)}." if parts else None


def duration(seconds: float) -> str:
    """Return `45 s`, `3 min` or `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
