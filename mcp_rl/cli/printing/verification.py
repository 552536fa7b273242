"""The screen of `mcp-rl verify`: each part of a run's claim, proven or not."""

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mcp_rl.evaluation.progress import say
from mcp_rl.runs.verify.run import LIMITS, Verification
from mcp_rl.system.visible import visible

_STYLES = {"proven": "green", "not proven": "yellow", "contradicted": "bold red"}


def print_verification(found: Verification, console: Console) -> None:
    """Print each claim with its standing and its evidence, then what none of it shows."""
    say(f"{found.folder}: {found.subject}" if found.subject else found.folder, console)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for claim in found.claims:
        table.add_row(Text(claim.standing, _STYLES[claim.standing]), claim.name, Text(visible(claim.said)))
    console.print(Padding(table, (1, 0, 1, 2)))
    say(LIMITS, console)
    if found.seal:
        say(f"Seal: {found.seal}", console)
