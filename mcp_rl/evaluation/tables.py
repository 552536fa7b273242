"""The tables of an evaluation, for the terminal, Markdown and the page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from mcp_rl.evaluation.measure import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

    from mcp_rl.evaluation.measure import Measure
    from mcp_rl.evaluation.result import Comparison, EvaluationReport, JudgeAgreement, JudgedPair, ModelReport

_SMALLEST_P = 1e-4
_NONE = shown(None)
_NAME_WIDTH, _CELL_WIDTH = 18, 25
_BREAKDOWNS = {
    "by tool": "sampled_by_tool",
    "by number of steps": "by_steps",
    "by level": "by_level",
    "by difficulty": "by_difficulty",
}
"""For each table's title the field of a result that it shows."""
_BETWEEN = 3
"""Width between two columns."""
_MOST_WITH_INTERVALS = 2
"""Models side by side in a terminal with intervals; with more, only report.md shows intervals."""


@dataclass(frozen=True)
class Grid:
    """A table as text: words in the first column, numbers in the others."""

    title: str
    header: list[str]
    rows: list[list[str]]


def grids(report: EvaluationReport, *, intervals: bool = True) -> Iterator[Grid]:
    """Yield the tables that have something to show. `intervals`: in the tables by kind of scenario too."""
    yield _success(report.models)
    for kind in ("sampled", "greedy"):
        if chosen := [comparison for comparison in report.comparisons if comparison.kind == kind]:
            yield _differences(kind, chosen)
    for title, name in _BREAKDOWNS.items():
        grid = _breakdown(title, name, report.models, intervals)
        if len(grid.rows) > 1 or (name == "sampled_by_tool" and grid.rows):
            yield grid
    yield _effort(report.models)
    yield _endings(report.models)
    if report.judged:
        yield _judged(report.judged)
    if report.judge is not None:
        yield _agreement(report.judge)


def notes(report: EvaluationReport) -> Iterator[str]:
    """Yield what a reader of the tables must know, one sentence each."""
    limits = ", ".join(f"{name} {value}" for name, value in report.limits.items())
    yield (
        f"{report.scenarios} scenarios on {report.server}, {report.scenarios_from}; {report.samples} sampled episodes "
        f"of each at temperature {report.temperature:g}, seed {report.seed}. Limits: {limits}."
    )
    yield "In brackets: the 95 % interval over scenarios. pass^k: all of k episodes succeed."
    for model in report.models:
        if model.trained_on:
            yield (
                f"{model.model} was trained on scenarios that share a call or a request with {model.trained_on} of "
                f"these {report.scenarios}: its success on those means little."
            )
        faults = sum(measure.faults for measure in (model.result.greedy, model.result.sampled) if measure)
        if faults:
            yield f"{faults} episodes of {model.model} ended with a fault that was not the model's and are in no mean."


def print_grid(grid: Grid, console: Console) -> None:
    """Print one table; if it is too wide, with each interval below its number."""
    if sum(map(_widest, _columns(grid))) + _BETWEEN * len(grid.header) > console.width:
        grid = replace(grid, rows=[[cell.replace(" [", "\n[") for cell in row] for row in grid.rows])
    table = Table(
        title=escape(grid.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, (name, *cells) in enumerate(_columns(grid)):
        widest = _widest(cells)
        justify: Literal["left", "right"] = "right" if index else "left"
        table.add_column(
            escape(name), justify=justify, overflow="fold", min_width=min(widest, _CELL_WIDTH if index else _NAME_WIDTH)
        )
    for row in grid.rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _columns(grid: Grid) -> list[tuple[str, ...]]:
    return list(zip(grid.header, *grid.rows, strict=True))


def _widest(cells: Iterable[str]) -> int:
    """Return the length of the longest line."""
    return max((len(line) for cell in cells for line in cell.split("\n")), default=0)


def print_tables(report: EvaluationReport, console: Console) -> None:
    """Print all tables and notes."""
    for grid in grids(report, intervals=len(report.models) <= _MOST_WITH_INTERVALS):
        print_grid(grid, console)
    for note in notes(report):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Everything is in {report.path}: report.json, report.md and every episode under episodes/.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def markdown(report: EvaluationReport) -> str:
    """Return the text of report.md."""
    parts = [f"# {_cell(report.server)}: {', '.join(_cell(model.model) for model in report.models)}"]
    parts += [_cell(note) for note in notes(report)]
    for grid in grids(report):
        rows = [grid.header, ["---", *["---:"] * (len(grid.header) - 1)], *grid.rows]
        lines = "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)
        parts += [f"## {grid.title}", lines]
    return "\n\n".join(parts) + "\n"


def _success(models: Sequence[ModelReport]) -> Grid:
    sampled, greedy = [model.result.sampled for model in models], [model.result.greedy for model in models]
    ks = sorted({k for measure in sampled if measure for k in measure.pass_at if k > 1})[-1:]
    rows = [["pass@1", *map(_measured, sampled)]]
    for k in ks:
        rows.append([f"pass@{k}", *(_pass(m.pass_at, m.pass_at_ci95, k) if m else _NONE for m in sampled)])
        rows.append([f"pass^{k}", *(_pass(m.pass_hat, m.pass_hat_ci95, k) if m else _NONE for m in sampled)])
    rows.append(["greedy", *map(_measured, greedy)])
    return Grid("success", ["", *(model.model for model in models)], _with_numbers(rows))


def _differences(kind: str, comparisons: Sequence[Comparison]) -> Grid:
    several = len(comparisons) > 1
    header = ["", "difference", "p, Holm" if several else "p", "better/worse/same"]
    rows = [
        [
            f"{c.model} - {c.against}",
            f"{c.difference:+.3f} [{c.ci95[0]:+.3f}, {c.ci95[1]:+.3f}]",
            _p_value(c.p_adjusted),
            f"{c.wins}/{c.losses}/{c.scenarios - c.wins - c.losses}",
        ]
        for c in comparisons
    ]
    return Grid(f"paired differences in success, {kind} episodes", header, rows)


def _breakdown(title: str, name: str, models: Sequence[ModelReport], intervals: bool) -> Grid:
    found = [getattr(model.result, name) for model in models]
    rows = []
    for kind in sorted({kind for each in found for kind in each}):
        counts = [int(each[kind]["scenarios"]) for each in found if kind in each]
        rows.append([kind, str(max(counts)), *(_share(each.get(kind), intervals) for each in found)])
    return Grid(title, ["", "scenarios", *(model.model for model in models)], rows)


def _effort(models: Sequence[ModelReport]) -> Grid:
    columns: dict[str, Callable[[Measure], str]] = {
        "turns": lambda m: shown(m.turns, digits=2),
        "calls": lambda m: shown(m.calls, digits=2),
        "tool errors": lambda m: _percent(m.tool_error_rate),
        "invalid calls": lambda m: _percent(m.invalid_call_rate),
        "sampled tokens": lambda m: shown(m.sampled_tokens or None, digits=1),
        "prompt tokens": lambda m: shown(m.prompt_tokens, digits=0),
        "seconds": lambda m: shown(m.seconds, digits=2),
        "seconds, 95th percentile": lambda m: shown(m.seconds_p95, digits=2),
        "$ per 1,000 episodes": lambda m: shown(m.cost_per_1000, digits=2),
    }
    measures = [model.result.sampled or model.result.greedy for model in models]
    rows = [[name, *(show(m) if m else _NONE for m in measures)] for name, show in columns.items()]
    return Grid("an episode on average", ["", *(model.model for model in models)], _with_numbers(rows))


def _endings(models: Sequence[ModelReport]) -> Grid:
    measures = [model.result.sampled or model.result.greedy for model in models]
    reasons = sorted({reason for m in measures if m for reason in m.stop_reasons})
    rows = [[r.replace("_", " "), *(str(m.stop_reasons.get(r, 0)) if m else _NONE for m in measures)] for r in reasons]
    return Grid("how episodes ended", ["", *(model.model for model in models)], rows)


def _judged(pairs: Sequence[JudgedPair]) -> Grid:
    header = ["side by side, by the judge", "scenarios", "score", "the other's", "better", "worse"]
    rows = [
        [
            f"{pair.model} - {pair.against}",
            str(pair.scenarios),
            shown(pair.score),
            shown(pair.score_against),
            _percent(pair.better),
            _percent(pair.worse),
        ]
        for pair in pairs
    ]
    return Grid("pairs compared by the judge", header, rows)


def _agreement(judge: JudgeAgreement) -> Grid:
    rows = [
        ["pairs that the verifier tells apart", f"{judge.pairs} in {judge.groups} groups"],
        ["ordered the same way by the judge", shown(judge.agreement, judge.ci95)],
        ["scored the same by the judge", str(judge.ties)],
        ["rank correlation within a group (tau-b)", shown(judge.rank_correlation)],
        ["judge's mean score, passed", shown(judge.mean_passed)],
        ["judge's mean score, failed", shown(judge.mean_failed)],
    ]
    for part in judge.bins:
        if part.episodes:
            passed = f"{shown(part.verified)} of {part.episodes}"
            rows.append([f"passed, where the judge gives {part.low:.1f} to {part.high:.1f}", passed])
    return Grid("the judge against the verifier", ["", judge.judge or "judge"], rows)


def _with_numbers(rows: list[list[str]]) -> list[list[str]]:
    """Return the rows that hold a number."""
    return [row for row in rows if any(cell != _NONE for cell in row[1:])]


def _measured(measure: Measure | None) -> str:
    found = measure is not None and measure.success is not None and measure.ci95 is not None
    return shown(measure.success, measure.ci95) if measure and found else _NONE


def _pass(values: Mapping[int, float], intervals: Mapping[int, tuple[float, float]], k: int) -> str:
    return shown(values[k], intervals[k]) if k in values and k in intervals else _NONE


def _share(found: dict[str, float] | None, intervals: bool) -> str:
    if found is None:
        return _NONE
    return shown(found["success"], (found["low"], found["high"]) if intervals else None)


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f} %"


def _p_value(value: float) -> str:
    """Format a p-value. The permutation test draws about 10,000 times, so it cannot resolve smaller ones."""
    return f"<{2 * _SMALLEST_P:.4f}" if value <= 2 * _SMALLEST_P else f"{value:.4f}"


def _cell(text: str) -> str:
    """Escape a cell: names come from servers and users, and must not end the cell or begin markup."""
    for mark in ("\\", "|", "<", "`", "*", "_", "["):
        text = text.replace(mark, f"\\{mark}" if mark != "<" else "&lt;")
    return " ".join(text.split())
