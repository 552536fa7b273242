"""The page that a command leaves behind."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def write_page(folder: Path, console: "Console") -> None:
    """The page about what has just ended, where it is not there already. Everything else is kept by now."""
    from mcp_rl.report import PAGE, write_report

    page, newest = folder / PAGE, folder / "report.json"
    try:
        if not page.is_file() or page.stat().st_mtime < newest.stat().st_mtime:
            write_report(folder)
        said = f"Page: {page}"
    except Exception as error:
        said = f"The page could not be written: {error} `mcp-rl report {folder}` tries again."
    console.print(said, highlight=False, markup=False, soft_wrap=True)
