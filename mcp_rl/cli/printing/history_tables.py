"""A history as tables and sentences for a terminal, a page or a spreadsheet."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcp_rl.evaluation.tables import Grid
from mcp_rl.runs.history import History, Line, held_out, metric_names, summary

_COLUMNS = {
    "success": "success",
    "reward": "reward",
    "loss": "loss",
    "entropy": "entropy",
    "grad_norm": "gradient",
    "groups_useful": "useful",
    "step_seconds": "seconds",
    "logprob_difference_mean": "differs",
    "clip_share": "clipped",
    "saved_share": "saved",
    "staleness_mean": "stale",
    "learning_rate": "rate",
    "trained_tokens": "tokens",
}
"""Default metrics of the table and their headings, the most telling first. The table shows those that the run has, as
many as fit into the terminal."""


def print_history(history: History, lines: Sequence[Line], metrics: Sequence[str], console: Console) -> None:
    """Print the table and the summary of one run."""
    whole = grid(history, lines, metrics)
    shown = whole if metrics else _narrowed(whole, console.width)
    table = Table(title=escape(shown.title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for number, name in enumerate(shown.header):
        table.add_column(escape(name), justify="left" if number == 1 else "right", no_wrap=True)
    for line, row in zip(lines, shown.rows, strict=True):
        table.add_row(*map(escape, row), style="bold" if line["split"] == "val" else "")
    if lines:
        console.print(table)
    for sentence in sentences(history):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def grid(history: History, lines: Sequence[Line], metrics: Sequence[str]) -> Grid:
    """Return a table with one row for each line and, without `metrics`, the default ones that the run has."""
    columns = {name: name for name in metrics} or _default_columns(lines)
    rows = [[str(line["step"]), line["split"], *(_cell(line, key, bool(metrics)) for key in columns)] for line in lines]
    return Grid(history.name, ["step", "split", *columns.values()], rows)


def _narrowed(whole: Grid, width: int) -> Grid:
    """Return the leftmost columns that fit into this width."""
    widths = [max(map(len, column)) + 3 for column in zip(whole.header, *whole.rows, strict=True)]
    fit = max(3, sum(total < width for total in accumulate(widths)))
    return Grid(whole.title, whole.header[:fit], [row[:fit] for row in whole.rows])


def to_csv(chosen: Mapping[str, Sequence[Line]], metrics: Sequence[str], histories: Sequence[History]) -> str:
    """Return CSV with one row for each line of each run, by name; all metrics unless some are chosen."""
    columns = list(metrics) or metric_names(histories)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "step", "split", *columns])
    for name, lines in chosen.items():
        for line in lines:
            writer.writerow([name, line["step"], line["split"], *(line.get(key, "") for key in columns)])
    return file.getvalue()


def sentences(history: History) -> Iterator[str]:
    """Yield the summary in sentences."""
    found = summary(history)
    yield _progress(history, found)
    yield from history.unchecked
    if history.origin:
        yield history.origin
    if moved := found.get("moved"):
        few = "first and last steps" if found["steps"] > 2 else "two steps"
        yield f"Changes, as means of the {few}: {', '.join(f'{k} {a:.3g} → {b:.3g}' for k, (a, b) in moved.items())}."
    if points := found.get("held_out"):
        yield _held_out(points)
    elif losses := found.get("held_out_loss"):
        best = found["best"]
        ends = f"{losses[0][1]:.4f} → {losses[-1][1]:.4f}"
        yield f"Held out, loss: {ends}; best {best['loss']:.4f} at step {best['step']}."
    elif best := found.get("best"):
        yield f"Best step by reward: {best['step']}, {best['reward']:.3f}."
    if shares := found.get("time_shares"):
        parts = sorted(shares.items(), key=lambda pair: -pair[1])
        seconds = found["seconds"] / max(1, len(history.train))
        yield f"Time of a step ({seconds:.2f} s): {', '.join(f'{kind} {share:.0%}' for kind, share in parts if share)}."
    if "saved_share" in found:
        yield f"Tokens that shared prefixes saved in the update: {found['saved_share']:.0%}."
    if counted := [f"{found[key]:,.0f} {words}" for key, words in _COUNTED.items() if found.get(key)]:
        yield f"In all: {', '.join(counted)}."
    if "logprob_difference_max" in found:
        yield (
            f"Sampler and learner: largest difference of a logprob {found['logprob_difference_max']:.2g} nats, mean "
            f"ratio {found.get('ratio_mean', 1):.5f}."
        )


_COUNTED = {
    "rollouts": "rollouts",
    "faults": "faults",
    "groups_dropped": "groups dropped for want of variance",
    "groups_refilled": "groups refilled",
    "trajectories_stale": "trajectories too old",
}


def _progress(history: History, found: Mapping[str, Any]) -> str:
    if not history.train:
        return f"{history.name}: no training step yet."
    took = f" in {_duration(found['seconds'])}" if "seconds" in found else ""
    steps, kept = found["steps"], found.get("kept")
    words = f"{history.name}: {steps} {'step' if steps == 1 else 'steps'}{took}"
    if kept is not None and kept < steps:
        return f"{words}; the newest checkpoint is of step {kept}, and a continued run plays later steps again."
    return f"{words}."


def _held_out(points: Sequence[Mapping[str, Any]]) -> str:
    first, last = points[0], points[-1]
    best = max(points, key=lambda point: (point["value"], point["step"]))
    said = f"Held out, {last['kind']} {last['measure']}"
    if first is last:
        return f"{said}: {_interval(first)} at step {first['step']}."
    return f"{said}: {_interval(first)} → {_interval(last)}; best {best['value']:.3f} at step {best['step']}."


def _interval(point: Mapping[str, Any]) -> str:
    ends = point.get("ci95")
    return f"{point['value']:.3f}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def _default_columns(lines: Sequence[Line]) -> dict[str, str]:
    present = {key for line in lines for key in line}
    if present & {"success", "reward"}:
        present.discard("loss")  # with centred advantages, its size says nothing
    if not any(line.get("staleness_mean") for line in lines):
        present.discard("staleness_mean")
    if all(line.get("success", line.get("reward")) == line.get("reward") for line in lines):
        present.discard("reward" if "success" in present else "")
    return {key: name for key, name in _COLUMNS.items() if key in present}


def _cell(line: Line, key: str, exact: bool) -> str:
    """Format one cell; an evaluation shows the success and reward of its headline, a small one its own,
    unless the metric is asked for."""
    if not exact and line["split"] == "val" and key in ("success", "reward") and (point := held_out(line)):
        return _interval(point) if key == point["measure"] else _number(point["reward"] if key == "reward" else None)
    if not exact and line["split"] == "val_subset" and key in ("success", "reward"):
        return _number(line.get(f"subset_{key}"))
    return _number(line.get(key))


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{value:.0f}"
    return f"{value:.3f}" if 1e-3 <= abs(value) < 1e3 else f"{value:.3g}" if abs(value) < 1 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
