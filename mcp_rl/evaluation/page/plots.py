"""`mcp-rl history --plot`: the history of one run, or of several together, as a picture or a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.page import curves
from mcp_rl.evaluation.page.drawing import FONT, PictureSheet, Sheet
from mcp_rl.evaluation.page.page import fill_template, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_rl.evaluation.tables import Grid

_CHARTS = {
    "Learning curve": curves.learning_curve,
    "Training signals": curves.signals,
    "Sampler and learner": curves.agreement,
    "Where the time went": curves.time_shares,
    "Shared prefixes": curves.sharing,
    "Difficulty of the training scenarios": curves.pools,
}


def check_plot_file(path: Path) -> None:
    """Raise ConfigError for a file that is neither a picture nor a page."""
    if path.suffix.lower() not in (".png", ".html"):
        raise ConfigError(f"Cannot draw {path}: a plot is a .png or an .html file.")


def write_plot(runs: curves.Runs, path: Path, *, sentences: Sequence[str] = (), tables: Sequence[Grid] = ()) -> None:
    """Draw runs (name to lines of their histories) into a .png or an .html file.

    A page also holds `sentences` and `tables`. Raises ConfigError if there is nothing to draw or the file is of another
    kind, RunDirectoryError if it cannot be written.
    """
    check_plot_file(path)
    write_file(path, _picture(runs) if path.suffix.lower() == ".png" else plots_page(runs, sentences, tables))


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


def plots_page(runs: curves.Runs, sentences: Sequence[str], tables: Sequence[Grid], *, live: str = "") -> bytes:
    """Return the page about these runs. `live`: its version, if it is served while they go on."""
    sheet = Sheet()
    charts = {title: made for title, chart in _CHARTS.items() if (made := chart(sheet, runs))}
    if not charts and not live:
        raise ConfigError(_nothing(runs))
    html = fill_template(
        "plots.html.jinja", sheet, live=live, title=_title(runs), sentences=sentences, charts=charts, tables=tables
    )
    return html.encode("utf-8", "replace")


def _title(runs: curves.Runs) -> str:
    return f"{', '.join(runs)}: history of {'a run' if len(runs) == 1 else f'{len(runs)} runs'}"


def _nothing(runs: curves.Runs) -> str:
    return f"There is nothing to draw of {', '.join(runs)} yet: no training step is in the history."
