"""A self-contained HTML page about a training run or an evaluation: numbers, charts, and episodes to read."""

from mcp_rl.evaluation.folder import find_folder
from mcp_rl.evaluation.page.page import PAGE, write_report

__all__ = ["PAGE", "find_folder", "write_report"]
