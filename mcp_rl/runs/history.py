"""The history of a run (history.jsonl): its lines, and a summary in a few numbers.

Everything here only reads and takes no lock, since the run may be in progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mcp_rl.config.load import nearest
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.step_time import times
from mcp_rl.run_directory import RunDirectory, read_history

if TYPE_CHECKING:
    from pathlib import Path

Line = Mapping[str, Any]
_ENDS = 5
"""Steps at either end whose means are compared."""
MOVED = ("success", "reward", "loss", "entropy", "turns")
_SUMS = ("rollouts", "faults", "groups_dropped", "groups_refilled", "trajectories_masked", "trajectories_stale")
"""Metrics whose sum over the training steps the summary holds."""


@dataclass(frozen=True)
class History:
    """The history of one run."""

    folder: Path
    name: str
    lines: Sequence[Line]
    """The newest line of each step and split, by step."""
    kept: int | None
    """Step of the newest whole checkpoint; None if the run does not say."""
    origin: str | None = None
    """A sentence about the run that this one was made from; None if there is none."""
    unchecked: Sequence[str] = ()
    """Sentences about what cannot be compared with its digest."""

    @staticmethod
    def read(folder: Path, name: str | None = None) -> History:
        """Read the history in a folder. Raises RunDirectoryError if it cannot be read, or if a file has changed since
        the run wrote it."""
        unchecked = RunDirectory(folder).check_whole(episodes=False)
        kept = _json(folder / "state.json").get("step")
        return History(
            folder,
            name or folder.resolve().name,
            read_history(folder),
            kept if isinstance(kept, int) else None,
            _origin(_json(folder / "model.json")),
            unchecked,
        )

    @cached_property
    def train(self) -> list[Line]:
        return [line for line in self.lines if line["split"] == "train"]

    @cached_property
    def val(self) -> list[Line]:
        return [line for line in self.lines if line["split"] == "val"]

    def shown(self, split: str | None, last: int | None) -> list[Line]:
        """Return the lines of one split or of both, only the `last` ones if given."""
        chosen = [line for line in self.lines if split in (None, line["split"])]
        return chosen if last is None else chosen[-last:]


def check_metrics(names: Iterable[str], histories: Iterable[History]) -> None:
    """Raise ConfigError, with the nearest known name, for a metric that no line has."""
    known = metric_names(histories)
    for name in names:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(known)}."
            raise ConfigError(f"No line of the history has a metric {name!r}; {hint}")


def metric_names(histories: Iterable[History]) -> list[str]:
    """Return every metric that a line has, in order of appearance."""
    lines = [line for history in histories for line in history.lines]
    return [key for key in dict.fromkeys(key for line in lines for key in line) if key not in ("step", "split")]


def summary(history: History) -> dict[str, Any]:
    """Summarise a run in a few numbers; those that its lines do not give are left out."""
    train, val = history.train, history.val
    _, shares = times(train)
    found: dict[str, Any] = {
        "steps": train[-1]["step"] if train else 0,
        "kept": history.kept,
        "seconds": _sum(train, "step_seconds"),
        "moved": _moved(train),
        "held_out": [point for line in val if (point := held_out(line))],
        "held_out_loss": [[line["step"], line["loss"]] for line in val if line.get("loss") is not None],
        "time_shares": {kind: _weighted(train, values) for kind, values in shares.items()},
        "saved_share": _saved(train),
        **{name: total for name in _SUMS if (total := _sum(train, name)) is not None},
        "logprob_difference_max": _most(train, "logprob_difference_max"),
        "ratio_mean": _mean(train, "ratio_mean"),
    }
    best = max(found["held_out"], key=lambda point: (point["value"], point["step"]), default=None)
    if best:
        found["best"] = {"step": best["step"], best["measure"]: best["value"]}
    elif losses := found["held_out_loss"]:
        step, loss = min(losses, key=lambda pair: pair[1])
        found["best"] = {"step": step, "loss": loss}
    elif rewards := [(line["reward"], line["step"]) for line in train if line.get("reward") is not None]:
        reward, step = max(rewards, key=lambda pair: (pair[0], -pair[1]))
        found["best"] = {"step": step, "reward": reward}
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def held_out(line: Line) -> dict[str, Any] | None:
    """Return the headline of an evaluation: `step`, `kind`, `measure`, `value`, `ci95` and `reward`.

    The measure is the success, or the reward if success is not defined; the kind is greedy if that was measured. None
    if there is neither.
    """
    for measure in ("success", "reward"):
        for kind in ("greedy", "sampled"):
            if (value := line.get(f"{kind}_{measure}")) is not None:
                ends = line.get(f"{kind}_ci95") if measure == "success" else None
                point = {"step": line["step"], "kind": kind, "measure": measure, "value": value, "ci95": ends}
                return point | {"reward": line.get(f"{kind}_reward")}
    return None


def _json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none, so that unreadable files do not hide the history."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _origin(about: Mapping[str, Any]) -> str | None:
    identity = about.get("identity")
    settings = identity.get("settings") if isinstance(identity, dict) else None
    if isinstance(settings, dict) and (of := settings.get("replay.of")):
        return f"A replay of {of}: its episodes, rewards and successes are that run's."
    match about.get("forked_from"):
        case [*_, {"run": run, "step": step}]:
            return f"A fork of {run} from step {step}; what was before is that run's."
    return None


def _moved(train: Sequence[Line]) -> dict[str, list[float]]:
    """Return the means over the first and the last steps."""
    moved = {key: ends for key in MOVED if (ends := _ends(train, key))}
    if "reward" in moved:
        moved.pop("loss", None)  # with centred advantages, its size says nothing
    if moved.get("reward") == moved.get("success"):
        moved.pop("reward", None)
    return moved


def _ends(lines: Sequence[Line], key: str) -> list[float] | None:
    values = [float(line[key]) for line in lines if line.get(key) is not None]
    few = min(_ENDS, max(1, len(values) // 2))
    return [fmean(values[:few]), fmean(values[-few:])] if len(values) > 1 else None


def _weighted(lines: Sequence[Line], shares: Sequence[float]) -> float:
    """Return the mean share, weighted by the length of steps."""
    seconds = [float(line["step_seconds"]) for line in lines if line.get("step_seconds")]
    return sum(s * share for s, share in zip(seconds, shares, strict=True)) / (sum(seconds) or 1.0)


def _saved(lines: Sequence[Line]) -> float | None:
    unshared, forward = _sum(lines, "unshared_tokens"), _sum(lines, "forward_tokens")
    return 1 - forward / unshared if unshared and forward is not None else None


def _values(lines: Sequence[Line], key: str) -> list[float]:
    return [float(line[key]) for line in lines if line.get(key) is not None]


def _sum(lines: Sequence[Line], key: str) -> float | None:
    return sum(values) if (values := _values(lines, key)) else None


def _most(lines: Sequence[Line], key: str) -> float | None:
    return max(_values(lines, key), default=None)


def _mean(lines: Sequence[Line], key: str) -> float | None:
    return fmean(values) if (values := _values(lines, key)) else None
