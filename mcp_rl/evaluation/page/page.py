"""The page: one file that needs nothing else and sends nothing anywhere.

Names, requests, results and answers come from servers and models, and may be written to attack the reader. They enter
the page as escaped text or as JSON in a block that no browser executes; the script only ever sets text; and the
Content-Security-Policy lets nothing run or load but the one script and the one style sheet whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mcp_rl.errors import RunDirectoryError
from mcp_rl.evaluation.page import charts, curves
from mcp_rl.evaluation.page.drawing import Chart, Sheet, page_style, plain
from mcp_rl.evaluation.page.episodes import newest_source, select
from mcp_rl.evaluation.page.failures import find_failures
from mcp_rl.evaluation.page.of_evaluation import evaluation_findings
from mcp_rl.evaluation.page.of_run import training_findings
from mcp_rl.evaluation.tables import Grid, grids
from mcp_rl.system.chain import digest_of
from mcp_rl.system.collector import collector_paused
from mcp_rl.system.durable import write_atomically
from mcp_rl.system.seals import HISTORY, file_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mcp_rl.evaluation.page.findings import Findings
    from mcp_rl.evaluation.result import Comparison, ModelReport

PAGE = "report.html"
MEGABYTES = 3.0
"""Size of the episodes in a page."""
_MOST_SENTENCES = 3
_MARK = re.compile(rb"\n<!-- mcp-rl history:([0-9a-f]*) page:([0-9a-f]{64}) -->\n\Z")
_FIRST_WHILE_LIVE = ("Learning curve", "Where the time went")
_TIME_WORDS = "Shares of each step's time. Kinds of work overlap, so they may add up to more than 1."
_BREAKDOWNS = {
    "by tool": ("sampled_by_tool", "by_tool"),
    "by number of steps": ("by_steps",),
    "by level": ("by_level",),
    "by difficulty": ("by_difficulty",),
}
"""For each table's title the fields of a result that may hold it, the better one first."""


@dataclass(frozen=True)
class Block:
    """A section: a heading, charts, and the same numbers as tables."""

    title: str
    charts: Sequence[Chart]
    tables: Sequence[Grid]
    words: str = ""


def write_report(folder: Path, out: Path | None = None, *, megabytes: float = MEGABYTES) -> Path:
    """Write the page of a training run or an evaluation; return the file, by default `report.html` in the folder.

    `megabytes` is the approximate room for episodes. A run that goes on is not disturbed. Raises ConfigError if there
    is nothing to show, RunDirectoryError for files that cannot be read or written.
    """
    with collector_paused():  # episodes are very many objects without cycles
        findings = training_findings(folder) if (folder / "model.json").is_file() else evaluation_findings(folder)
        html = render(findings, megabytes=megabytes)
    content = html.encode("utf-8", "replace")
    return write_file(out or folder / PAGE, content + _mark(content, file_digest(folder / HISTORY) or ""))


def _mark(content: bytes, head: str) -> bytes:
    """Return the comment at the end of a page: the digests of the history that it shows and of the page up to there."""
    begun = f"\n<!-- mcp-rl history:{head} page:".encode()
    return begun + digest_of(content + begun).encode() + b" -->\n"


def read_mark(page: Path) -> str | None:
    """Return the digest of the history that a page shows; None for a page that has changed since it was written."""
    content = page.read_bytes()
    found = _MARK.search(content)
    if found is None or digest_of(content[: found.start(2)]) != found[2].decode():
        return None
    return found[1].decode()


def write_file(path: Path, content: bytes) -> Path:
    """Write a page or a picture, and the folder that it goes to. Raises RunDirectoryError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise RunDirectoryError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def render(findings: Findings, *, megabytes: float = MEGABYTES, live: str = "") -> str:
    """Return the page's HTML. `live`: its version, if it is served and asks its server for what is new."""
    sheet = Sheet()
    blocks = _blocks(findings, sheet)
    selection = select(findings, int(megabytes * 1e6))
    newest = newest_source(findings)
    failures = find_failures(newest.label, selection.attempts, greedy=newest.greedy) if newest else None
    return fill_template(
        "page.html.jinja",
        sheet,
        _asset("page.js"),
        live=live,
        title=findings.title,
        data=Markup(_safe_json(selection.json)),
        findings=findings,
        models=findings.measured.models,
        sentences=list(_sentences(findings)),
        first=[block for block in blocks if live and block.title in _FIRST_WHILE_LIVE],
        blocks=[block for block in blocks if not (live and block.title in _FIRST_WHILE_LIVE)],
        failures=failures,
        selection=selection,
    )


def fill_template(name: str, sheet: Sheet, script: str = "", *, live: str = "", **values: Any) -> str:
    """Fill a template of this folder with values, which enter it escaped, and with the styles of a sheet's charts.

    The Content-Security-Policy lets nothing run or load but this style sheet and this script; a page that is `live` may
    ask its own server.
    """
    if live:
        script += _asset("live.js")
    environment = Environment(
        loader=PackageLoader("mcp_rl.evaluation.page", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_cleaned,
    )  # fmt: skip
    environment.filters["split_interval"] = _split_interval
    style = page_style() + sheet.css
    runs = _hash(script) if script else "'none'"
    connects = "connect-src 'self'; " if live else ""
    policy = (
        f"default-src 'none'; script-src {runs}; style-src {_hash(style)}; "
        f"img-src data:; {connects}base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    return environment.get_template(name).render(
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        live=live,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **values,
    )


def _cleaned(value: Any) -> Any:
    """Clean a text, since a name with direction characters would reorder the numbers beside it."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _blocks(findings: Findings, sheet: Sheet) -> list[Block]:
    measured = findings.measured
    models, runs = measured.models, {findings.folder.name: findings.history}
    tables = {grid.title: grid for grid in grids(measured)} if models else {}
    differences = [grid for title, grid in tables.items() if title.startswith("paired differences")]
    found = [
        Block(
            "Success",
            _present(charts.headline(sheet, models)),
            [*_present(tables.get("success")), *differences],
            "pass@k: at least one of k sampled episodes succeeds; pass^k: all of them do. Intervals are over "
            "scenarios, as if others of the same kind had been drawn. If two intervals overlap, the paired difference "
            "decides.",
        ),
        Block("Learning curve", _present(curves.learning_curve(sheet, runs)), []),
        Block("Where the time went", _present(curves.time_shares(sheet, runs)), [], _TIME_WORDS),
    ]
    for title, names in _BREAKDOWNS.items():
        name = next((name for name in names if any(getattr(model.result, name, None) for model in models)), None)
        chart = charts.breakdown(sheet, title, name, models) if name else None
        words = _breakdown_words(name, models)
        found.append(Block(f"Success {title}", _present(chart), _present(tables.get(title)), words))
    ended, effort = tables.get("how episodes ended"), tables.get("an episode on average")
    found.append(Block("How episodes ended", _present(charts.endings(sheet, models)), _present(ended)))
    found.append(Block("An average episode", [], _present(effort)))
    judged = [
        tables[title] for title in ("the judge against the verifier", "pairs compared by the judge") if title in tables
    ]
    found.append(
        Block(
            "The judge against the verifier",
            _present(charts.calibration(sheet, measured.judge)),
            judged,
            "On the dashed line, the judge's score equals the share that the verifier passes. The judge ranks the "
            "episodes of one scenario, so their order matters more than the position of the points.",
        )
    )
    found.append(
        Block(
            "Difficulty of the training scenarios",
            _present(charts.pass_rates(sheet, findings.pass_rates)),
            [],
            f"{len(findings.pass_rates)} scenarios by the share of their newest group that succeeded, each measured on "
            "the policy of that step. If the verifier alone gives the reward, groups of the two outer bars teach "
            "nothing.",
        )
    )
    found.append(Block("Training signals", _present(curves.signals(sheet, runs)), []))
    return [block for block in found if block.charts or block.tables]


def _breakdown_words(name: str | None, models: Sequence[ModelReport]) -> str:
    greedy = name == "by_tool" or not any(model.result.sampled for model in models)
    kind = f"{'Greedy' if greedy else 'Sampled'} episodes; in brackets, how many scenarios."
    return f"{kind} A scenario counts for every tool of its reference solution." if "tool" in (name or "") else kind


def _present(value: Any) -> list[Any]:
    return [] if value is None else [value]


def _sentences(findings: Findings) -> Iterator[str]:
    """Yield the findings in words; the interval decides whether a difference is claimed."""
    measured = findings.measured
    kinds = {comparison.kind for comparison in measured.comparisons}
    kind = "greedy" if "greedy" in kinds else "sampled"
    chosen = [comparison for comparison in measured.comparisons if comparison.kind == kind]
    for found in chosen[:_MOST_SENTENCES]:
        yield _training_sentence(found) if findings.history else _comparison_sentence(found)
    if len(chosen) > _MOST_SENTENCES:
        yield f"{len(chosen) - _MOST_SENTENCES} more pairs are compared in the numbers below."
    if not chosen and measured.models:
        yield f"{measured.models[-1].model}: {measured.models[-1].result.sentence()}"
    if not measured.models:
        yield "No evaluation is finished yet."


def _training_sentence(found: Comparison) -> str:
    low, high = found.ci95
    verdict = "Training raised" if low > 0 else "Training lowered" if high < 0 else "There is no clear change in"
    return f"{verdict} {found.kind} success on scenarios that were never trained on: {_figures(found)}"


def _comparison_sentence(found: Comparison) -> str:
    low, high = found.ci95
    if low <= 0 <= high:
        return (
            f"There is no clear difference in {found.kind} success between {found.model} and {found.against}: "
            f"{_figures(found)}"
        )
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
    """Split a cell into a number and its interval, which the page shows paler."""
    value, bracket, rest = cell.partition(" [")
    return (value, bracket + rest) if bracket and rest.endswith("]") else (cell, "")


def _asset(name: str) -> str:
    return files("mcp_rl.evaluation.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _safe_json(written: str) -> str:
    """Escape JSON so that it cannot end the script block around it."""
    return written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
