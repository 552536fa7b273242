"""Output of the commands about servers: wrapped and coloured on a terminal, plain and unwrapped in a pipe."""

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_NEVER_WRAPPED = 100_000


@contextmanager
def page() -> Iterator["Console"]:
    """Yield a console on stdout. Print text from servers as `Text`, never as markup."""
    from rich.console import Console

    if sys.stdout.isatty():
        yield Console(highlight=False)
        return
    text = io.StringIO()
    yield Console(file=text, width=_NEVER_WRAPPED, highlight=False, color_system=None)
    for line in text.getvalue().splitlines():
        print(line.rstrip())


def table(*columns: str) -> "Table":
    """Return a table without lines whose last column takes the remaining width."""
    from rich.table import Table

    result = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns[:-1]:
        result.add_column(column, no_wrap=True, overflow="ellipsis", max_width=40)
    result.add_column(columns[-1], overflow="fold", ratio=1)
    return result


def add_row(to: "Table", *cells: str, styles: Iterable[str] = ()) -> None:
    """Add a row of untrusted text: every character is shown, none has an effect."""
    from rich.text import Text

    from mcp_rl.system.visible import visible

    wanted = list(styles) + [""] * len(cells)
    to.add_row(*(Text(visible(cell), style=style) for cell, style in zip(cells, wanted, strict=False)))
