"""The tables of an evaluation, once for the terminal and for Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcp_rl.evaluation.result import Comparison, EvaluationReport, JudgeAgreement, JudgedPair, ModelReport
from mcp_rl.tracking.measure import Measure

_SMALLEST_P = 1e-4
_NONE = "-"
_NAME_WIDTH, _CELL_WIDTH = 18, 25
_BREAKDOWNS = {"by tool": "sampled_by_tool", "by number of steps": "by_steps", "by difficulty": "by_difficulty"}
"""Title of a table to the field of a result that it shows."""
_MOST_WITH_INTERVALS = 2
"""Models side by side in a terminal; more have their intervals in report.md."""


@dataclass(frozen=True)
class Grid:
    """One table as text. The first column is words, the others are numbers."""

    title: str
    header: list[str]
    rows: list[list[str]]


def grids(report: EvaluationReport, *, intervals: bool = True) -> Iterator[Grid]:
    """The tables, those left out that have nothing to say. `intervals`: in the tables by kind of scenario too."""
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
    """What a reader must know beside the tables, one sentence each."""
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
                f"these {report.scenarios}: its success on those says little."
            )
        faults = sum(measure.faults for measure in (model.result.greedy, model.result.sampled) if measure)
        if faults:
            yield f"{faults} episodes of {model.model} ended by a fault of the world and are in no mean."


def print_tables(report: EvaluationReport, console: Console) -> None:
    """All tables and notes in the terminal."""
    for grid in grids(report, intervals=len(report.models) <= _MOST_WITH_INTERVALS):
        table = Table(
            title=escape(grid.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for index, name in enumerate(grid.header):
            widest = max((len(row[index]) for row in grid.rows), default=0)
            justify: Literal["left", "right"] = "right" if index else "left"
            table.add_column(
                escape(name),
                justify=justify,
                overflow="fold",
                min_width=min(widest, _CELL_WIDTH if index else _NAME_WIDTH),
            )
        for row in grid.rows:
            table.add_row(*map(escape, row))
        console.print(table)
    for note in notes(report):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Everything is in {report.path}: report.json, report.md and every episode under episodes/.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def markdown(report: EvaluationReport) -> str:
    """report.md."""
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
    return Grid("success", ["", *(model.model for model in models)], _said(rows))


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
        "turns": lambda m: _number(m.turns, 2),
        "calls": lambda m: _number(m.calls, 2),
        "tool errors": lambda m: _percent(m.tool_error_rate),
        "invalid calls": lambda m: _percent(m.invalid_call_rate),
        "tokens said": lambda m: _number(m.sampled_tokens or None, 1),
        "prompt tokens": lambda m: _number(m.prompt_tokens, 0),
        "seconds": lambda m: _number(m.seconds, 2),
        "seconds, 95 % within": lambda m: _number(m.seconds_p95, 2),
        "$ per 1,000 episodes": lambda m: _number(m.cost_per_1000, 2),
    }
    measures = [model.result.sampled or model.result.greedy for model in models]
    rows = [[name, *(show(m) if m else _NONE for m in measures)] for name, show in columns.items()]
    return Grid("an episode on average", ["", *(model.model for model in models)], _said(rows))


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
            _number(pair.score, 3),
            _number(pair.score_against, 3),
            _percent(pair.better),
            _percent(pair.worse),
        ]
        for pair in pairs
    ]
    return Grid("the judge's word on pairs", header, rows)


def _agreement(judge: JudgeAgreement) -> Grid:
    interval = f" [{judge.ci95[0]:.3f}, {judge.ci95[1]:.3f}]" if judge.ci95 else ""
    rows = [
        ["pairs that the verifier tells apart", f"{judge.pairs} in {judge.groups} groups"],
        ["ordered the same way by the judge", f"{_number(judge.agreement, 3)}{interval}"],
        ["scored the same by the judge", str(judge.ties)],
        ["rank correlation within a group (tau-b)", _number(judge.rank_correlation, 3)],
        ["judge's mean score, passed", _number(judge.mean_passed, 3)],
        ["judge's mean score, failed", _number(judge.mean_failed, 3)],
    ]
    for part in judge.bins:
        if part.episodes:
            passed = f"{_number(part.verified, 3)} of {part.episodes}"
            rows.append([f"passed, where the judge gives {part.low:.1f} to {part.high:.1f}", passed])
    return Grid("the judge against the verifier", ["", judge.judge or "judge"], rows)


def _said(rows: list[list[str]]) -> list[list[str]]:
    """The rows that say something."""
    return [row for row in rows if any(cell != _NONE for cell in row[1:])]


def _measured(measure: Measure | None) -> str:
    if measure is None or measure.success is None or measure.ci95 is None:
        return _NONE
    return f"{measure.success:.3f} [{measure.ci95[0]:.3f}, {measure.ci95[1]:.3f}]"


def _pass(values: Mapping[int, float], intervals: Mapping[int, tuple[float, float]], k: int) -> str:
    if k not in values or k not in intervals:
        return _NONE
    return f"{values[k]:.3f} [{intervals[k][0]:.3f}, {intervals[k][1]:.3f}]"


def _share(found: dict[str, float] | None, intervals: bool) -> str:
    if found is None:
        return _NONE
    if not intervals:
        return _number(found["success"], 3)
    return f"{found['success']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f} %"


def _p_value(value: float) -> str:
    """The permutation test draws some 10,000 times, so it cannot tell smaller ones apart."""
    return f"<{2 * _SMALLEST_P:.4f}" if value <= 2 * _SMALLEST_P else f"{value:.4f}"


def _cell(text: str) -> str:
    """Names come from servers and users: nothing in them may end a cell or begin markup."""
    for mark in ("\\", "|", "<", "`", "*", "_", "["):
        text = text.replace(mark, f"\\{mark}" if mark != "<" else "&lt;")
    return " ".join(text.split())
