"""Makes text from servers safe for a terminal: nothing in it may hide, turn or colour its surroundings."""

import unicodedata


def visible(text: str, *, lines: bool = False) -> str:
    """Return the text with control, format and unassigned characters escaped as `\\x1b`; line ends too, unless
    `lines`."""
    return "".join(
        c if unicodedata.category(c)[0] not in "CZ" or c == " " or (lines and c == "\n") else _escaped(c) for c in text
    )


def shortened(text: str, limit: int = 160) -> str:
    """Return the text in one visible line of at most `limit` characters."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def quoted(text: str, limit: int = 160) -> str:
    """Return `shortened` text between quotation marks."""
    return f"'{shortened(text, limit)}'"


def count(number: int, what: str) -> str:
    """Return a number with its noun: "1 tool", "2 tools"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _escaped(character: str) -> str:
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")
