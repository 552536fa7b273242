"""The HTML page that a command writes when it ends."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def write_page(folder: Path, console: "Console") -> None:
    """Write the page about a finished run or evaluation, unless it is up to date. A failure is only reported."""
    from mcp_rl.evaluation.page import PAGE, write_report

    page, newest = folder / PAGE, folder / "report.json"
    try:
        if not page.is_file() or page.stat().st_mtime < newest.stat().st_mtime:
            write_report(folder)
        said = f"Page: {page}"
    except Exception as error:
        said = f"Cannot write the page: {error} `mcp-rl report {folder}` tries again."
    console.print(said, highlight=False, markup=False, soft_wrap=True)
