"""What `mcp-rl history --plot` draws: the history of one run, or of several together, as one picture or one page."""

import time
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from mcp_rl.durable import write_atomically
from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.evaluation.tables import Grid
from mcp_rl.report import curves
from mcp_rl.report.drawing import FONT, Chart, PictureSheet, Sheet, page_style
from mcp_rl.report.page import fill_template, policy

_CHARTS = {
    "Learning curve": curves.learning_curve,
    "Training signals": curves.signals,
    "Sampler and learner": curves.agreement,
    "Where the time went": curves.time_shares,
    "Shared prefixes": curves.sharing,
    "Difficulty of the training scenarios": curves.pools,
}


def check_plot_file(path: Path) -> None:
    """Raises ConfigError for a file that is neither a picture nor a page."""
    if path.suffix.lower() not in (".png", ".html"):
        raise ConfigError(f"Cannot draw {path}: a plot is a .png or an .html file.")


def write_plot(runs: curves.Runs, path: Path, *, sentences: Sequence[str] = (), tables: Sequence[Grid] = ()) -> None:
    """Draw runs (name to lines of their histories) into a .png or an .html file.

    `sentences` and `tables` stand in the page too. Raises ConfigError where there is nothing to draw or the file is of
    no such kind, RunDirectoryError where it cannot be written.
    """
    check_plot_file(path)
    content = _picture(runs) if path.suffix.lower() == ".png" else _page(runs, sentences, tables)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise RunDirectoryError(f"Cannot write {path}: {error.strerror or error}.") from error


def _picture(runs: curves.Runs) -> bytes:
    sheet, found = PictureSheet(), False
    sheet.heading(_title(runs), FONT + 6)
    for title, chart in _CHARTS.items():
        part = PictureSheet()
        part.heading(title)
        if chart(part, runs):
            sheet.add(part)
            found = True
    if not found:
        raise ConfigError(_nothing(runs))
    return sheet.png


def _page(runs: curves.Runs, sentences: Sequence[str], tables: Sequence[Grid]) -> bytes:
    sheet = Sheet()
    blocks: dict[str, Chart] = {title: made for title, chart in _CHARTS.items() if (made := chart(sheet, runs))}
    if not blocks:
        raise ConfigError(_nothing(runs))
    style = page_style() + sheet.css
    html = fill_template(
        "plots.html.jinja",
        policy=policy(style),
        style=Markup(style),
        title=_title(runs),
        sentences=sentences,
        blocks=blocks,
        tables=tables,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        svg=Markup,
    )
    return html.encode("utf-8", "replace")


def _title(runs: curves.Runs) -> str:
    return f"{', '.join(runs)}: history of {'a run' if len(runs) == 1 else f'{len(runs)} runs'}"


def _nothing(runs: curves.Runs) -> str:
    return f"There is nothing to draw of {', '.join(runs)} yet: no training step is in the history."
