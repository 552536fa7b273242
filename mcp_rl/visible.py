"""Text of servers on a terminal: nothing in it may hide, turn or colour what stands around it."""

import unicodedata


def visible(text: str, *, lines: bool = False) -> str:
    """The text with control, format and unassigned characters, and with line ends too unless `lines`, as `\\x1b`."""
    return "".join(
        c if unicodedata.category(c)[0] not in "CZ" or c == " " or (lines and c == "\n") else _escaped(c) for c in text
    )


def _escaped(character: str) -> str:
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")
