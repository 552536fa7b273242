"""One self-contained page about a training run or an evaluation: numbers, charts, and every kind of episode to read."""

from mcp_rl.report.locate import find_folder
from mcp_rl.report.page import PAGE, write_report

__all__ = ["PAGE", "find_folder", "write_report"]
