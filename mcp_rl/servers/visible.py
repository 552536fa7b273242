"""Text of servers in a line or a cell."""

from mcp_rl.visible import visible

__all__ = ["count", "quoted", "shortened", "visible"]


def shortened(text: str, limit: int = 160) -> str:
    """The text in one visible line of at most `limit` characters."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def quoted(text: str, limit: int = 160) -> str:
    """The same between quotation marks."""
    return f"'{shortened(text, limit)}'"


def count(number: int, what: str) -> str:
    """ "1 tool", "2 tools"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
