"""The page: one file that needs nothing else and sends nothing anywhere.

Names, requests, results and answers come from servers and models, and may be written to be run by whoever reads them.
They enter the page as escaped text or as JSON in a block that no browser executes; the script only ever sets text; and
the Content-Security-Policy lets nothing run or load but the one script and the one style sheet whose hashes it names.
"""

import base64
import gc
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mcp_rl.durable import write_atomically
from mcp_rl.errors import RunDirectoryError
from mcp_rl.evaluation.result import Comparison, ModelReport
from mcp_rl.evaluation.tables import Grid, grids
from mcp_rl.report import charts, curves
from mcp_rl.report.drawing import Chart, Sheet, page_style, plain
from mcp_rl.report.episodes import select
from mcp_rl.report.evaluation import evaluation_findings
from mcp_rl.report.findings import Findings
from mcp_rl.report.training import training_findings

PAGE = "report.html"
MEGABYTES = 3.0
"""Of episodes in a page."""
_MOST_SENTENCES = 3
_BREAKDOWNS = {
    "by tool": ("sampled_by_tool", "by_tool"),
    "by number of steps": ("by_steps",),
    "by difficulty": ("by_difficulty",),
}
"""Title of a table to the fields of a result that hold it, the better one first."""


@dataclass(frozen=True)
class Block:
    """A heading, what it shows as a chart, and the same numbers as tables."""

    title: str
    charts: Sequence[Chart]
    tables: Sequence[Grid]
    words: str = ""


def write_report(folder: Path, out: Path | None = None, *, megabytes: float = MEGABYTES) -> Path:
    """Write the page of a training run or an evaluation; returns the file, `report.html` in the folder where not told.

    `megabytes` is about the room for episodes. A run that goes on meanwhile is not disturbed. Raises ConfigError where
    there is nothing to show, RunDirectoryError for files that cannot be read or written.
    """
    with _collector_paused():
        findings = training_findings(folder) if (folder / "model.json").is_file() else evaluation_findings(folder)
        html = render(findings, megabytes=megabytes)
    path = out or folder / PAGE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, html.encode("utf-8", "replace"))
    except OSError as error:
        raise RunDirectoryError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Episodes are a great many objects and no cycles: going through them again and again would take up to a third
    of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def render(findings: Findings, *, megabytes: float = MEGABYTES) -> str:
    """The page's HTML."""
    sheet = Sheet()
    blocks = _blocks(findings, sheet)
    selection = select(findings, int(megabytes * 1e6))
    script, style = _asset("page.js"), page_style() + sheet.css
    return fill_template(
        "page.html.jinja",
        policy=policy(style, script),
        script=Markup(script),
        style=Markup(style),
        data=Markup(_safe_json(selection.json)),
        findings=findings,
        models=findings.measured.models,
        sentences=list(_sentences(findings)),
        blocks=blocks,
        selection=selection,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        svg=Markup,
    )


def fill_template(name: str, **values: Any) -> str:
    """The HTML of a template in this folder; every text enters it escaped."""
    environment = Environment(
        loader=PackageLoader("mcp_rl.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    environment.filters["split_interval"] = _split_interval
    return environment.get_template(name).render(**values)


def policy(style: str, script: str | None = None) -> str:
    """A Content-Security-Policy that lets nothing run or load but this style sheet and this script."""
    runs = _hash(script) if script is not None else "'none'"
    return (
        f"default-src 'none'; script-src {runs}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def _shown(value: Any) -> Any:
    """A name that turns text around would turn the numbers beside it too."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _blocks(findings: Findings, sheet: Sheet) -> list[Block]:
    measured = findings.measured
    models, runs = measured.models, {findings.folder.name: findings.history}
    tables = {grid.title: grid for grid in grids(measured)} if models else {}
    differences = [grid for title, grid in tables.items() if title.startswith("paired differences")]
    found = [
        Block(
            "Success",
            _some(charts.headline(sheet, models)),
            [*_some(tables.get("success")), *differences],
            "pass@k: at least one of k sampled episodes succeeds; pass^k: all of them do. Intervals are over "
            "scenarios: had others of the same kind been drawn. Where two intervals overlap, the paired difference "
            "decides.",
        ),
        Block("Learning curve", _some(curves.learning_curve(sheet, runs)), []),
    ]
    for title, names in _BREAKDOWNS.items():
        name = next((name for name in names if any(getattr(model.result, name, None) for model in models)), None)
        chart = charts.breakdown(sheet, title, name, models) if name else None
        words = _breakdown_words(name, models)
        found.append(Block(f"Success {title}", _some(chart), _some(tables.get(title)), words))
    ended, effort = tables.get("how episodes ended"), tables.get("an episode on average")
    found.append(Block("How episodes ended", _some(charts.endings(sheet, models)), _some(ended)))
    found.append(Block("What an episode takes", [], _some(effort)))
    judged = [
        tables[title] for title in ("the judge against the verifier", "the judge's word on pairs") if title in tables
    ]
    found.append(
        Block(
            "The judge against the verifier",
            _some(charts.calibration(sheet, measured.judge)),
            judged,
            "On the dashed line, the judge's score is the share that the verifier passes. The judge ranks the episodes "
            "of one scenario, so how it orders them counts for more than where its points lie.",
        )
    )
    found.append(
        Block(
            "Difficulty of the training scenarios",
            _some(charts.pass_rates(sheet, findings.pass_rates)),
            [],
            f"{len(findings.pass_rates)} scenarios by the share of their newest group that succeeded, each measured on "
            "the policy of its time. Where the verifier alone gives the reward, groups of the outer two teach nothing.",
        )
    )
    found.append(Block("Training signals", _some(curves.signals(sheet, runs)), []))
    return [block for block in found if block.charts or block.tables]


def _breakdown_words(name: str | None, models: Sequence[ModelReport]) -> str:
    greedy = name == "by_tool" or not any(model.result.sampled for model in models)
    kind = f"{'Greedy' if greedy else 'Sampled'} episodes; in brackets, how many scenarios."
    return f"{kind} A scenario counts for every tool of its reference solution." if "tool" in (name or "") else kind


def _some(value: Any) -> list[Any]:
    return [] if value is None else [value]


def _sentences(findings: Findings) -> Iterator[str]:
    """What was found, in words; the interval decides whether anything was."""
    measured = findings.measured
    kinds = {comparison.kind for comparison in measured.comparisons}
    kind = "greedy" if "greedy" in kinds else "sampled"
    chosen = [comparison for comparison in measured.comparisons if comparison.kind == kind]
    for found in chosen[:_MOST_SENTENCES]:
        yield _trained(found) if findings.history else _compared(found)
    if len(chosen) > _MOST_SENTENCES:
        yield f"{len(chosen) - _MOST_SENTENCES} more pairs are compared in the numbers below."
    if not chosen and measured.models:
        yield f"{measured.models[-1].model}: {measured.models[-1].result.sentence()}"
    if not measured.models:
        yield "No evaluation is done yet."


def _trained(found: Comparison) -> str:
    low, high = found.ci95
    verdict = "Training raised" if low > 0 else "Training lowered" if high < 0 else "No change is shown in"
    return f"{verdict} {found.kind} success on scenarios that were never trained on: {_figures(found)}"


def _compared(found: Comparison) -> str:
    low, high = found.ci95
    if low <= 0 <= high:
        shown = f"No difference in {found.kind} success between {found.model} and {found.against} is shown"
        return f"{shown}: {_figures(found)}"
    verdict = "better" if low > 0 else "worse"
    return f"{found.model} is {verdict} than {found.against} in {found.kind} success: {_figures(found)}"


def _figures(found: Comparison) -> str:
    low, high = found.ci95
    same = found.scenarios - found.wins - found.losses
    return (
        f"{found.difference:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}]; better on {found.wins} of "
        f"{found.scenarios} scenarios, worse on {found.losses}, the same on {same}."
    )


def _split_interval(cell: str) -> tuple[str, str]:
    """A number and its interval, which the page shows paler."""
    value, bracket, rest = cell.partition(" [")
    return (value, bracket + rest) if bracket and rest.endswith("]") else (cell, "")


def _asset(name: str) -> str:
    return files("mcp_rl.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _safe_json(written: str) -> str:
    """JSON that cannot end the block it stands in."""
    return written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
