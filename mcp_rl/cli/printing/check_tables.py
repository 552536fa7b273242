"""The output of `mcp-rl servers check` on a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_rl.cli.printing.terminal import add_row, table
from mcp_rl.explore.check.findings import CheckReport, Level, ToolTrial
from mcp_rl.system.visible import count, shortened, visible

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}
_ORDER = list(_STYLES)


def print_report(report: CheckReport, console: Console) -> None:
    """Print times, tools and findings, from passed checks to problems."""
    says = " ".join(filter(None, (report.server_info.get("name"), report.server_info.get("version"))))
    head = Text(visible(report.name), style="bold")
    head.append(f" over {report.transport}", style="default")
    head.append(f" (it calls itself {shortened(says)})" if says else "", style="dim")
    console.print(head)
    took = ", ".join(f"{step} {_time(seconds)}" for step, seconds in report.seconds.items())
    console.print(Text(f"{count(len(report.tools), 'tool')}, schema hash {report.schema_hash}; {took}"))
    console.print(Text(f"Isolation {report.isolation}: {visible(report.isolation_reason)}."))
    console.print()
    shown = table("tool", "worked", "median", "p95", "")
    for tool in report.tools:
        times = [_time(seconds) if seconds is not None else "" for seconds in (tool.median_seconds, tool.p95_seconds)]
        add_row(shown, tool.name, f"{tool.worked} of {tool.calls}" if tool.calls else "", *times, _remark(tool))
    console.print(shown)
    console.print()
    found = Table.grid(padding=(0, 1))
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold", ratio=1)
    for finding in sorted(report.findings, key=lambda finding: _ORDER.index(finding.level)):
        words = Text(visible(f"{finding.check}: {finding.what}"))
        for more in filter(None, (finding.means, finding.do and f"-> {finding.do}")):
            words.append(f"\n{visible(more)}", style="dim")
        found.add_row(Text(finding.level.value, style=_STYLES[finding.level]), words)
    console.print(found)
    console.print()
    console.print(Text(verdict(report), style="bold"))


def verdict(report: CheckReport) -> str:
    """Return the final sentence."""
    problems = len(report.problems)
    if not problems:
        unseen = sum(tool.calls == 0 and not tool.resets for tool in report.tools)
        seen = f", as far as was seen; {count(unseen, 'tool')} not called" if unseen else ""
        return f"{visible(report.name)} is fit to train on{seen}."
    return f"Training on {visible(report.name)} would trip over {count(problems, 'problem')}."


def _remark(tool: ToolTrial) -> str:
    if tool.not_called:
        return f"not called: {tool.not_called}"
    parts = [f"{tool.refused} refused" if tool.refused else "", f"{tool.faults} unanswered" if tool.faults else ""]
    return ", ".join(filter(None, parts))


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
