"""The log file of a process, which its watchdog writes, and the last lines in it."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG_BYTES = 8 * 2**20
"""A longer log is renamed to `<name>.old` when a process starts, and replaces the one before it. The watchdog lets no
process add more than about a megabyte."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_FRAME = re.compile(r"at .{1,400}(?::\d+:\d+|<anonymous>)\)?|\^+|Node\.js v[\d.]+")
"""A line of a stack trace of JavaScript, which ends in up to ten of them; its error stands before them."""


@dataclass(eq=False)
class ProcessLog:
    """The log file of one process, and the position at which its part of the file begins."""

    path: Path
    file: TextIO
    start: int

    def begin_again(self) -> None:
        """Leave out of `tail` what was written so far: another process writes from now on."""
        with suppress(OSError):
            self.start = self.path.stat().st_size

    def tail(self, lines: int = 5, characters: int = 600) -> str:
        """Return the last lines that this process wrote, with " | " between them; empty if it wrote nothing.

        Lines of a stack trace of JavaScript are left out.
        """
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(max(self.start, self.path.stat().st_size - 8192))
            text = _COLOUR.sub("", file.read().decode(errors="replace"))
            written = [line.strip() for line in map(_printable, text.splitlines()) if line.strip()]
            last = [line for line in written if not _FRAME.fullmatch(line)] or written
            return " | ".join(last[-lines:])[-characters:]
        return ""


def _printable(line: str) -> str:
    """Replace unprintable characters, since the line is shown on a terminal and must not steer it."""
    return "".join(character if character.isprintable() else " " for character in line)


@contextmanager
def opened_log(path: Path) -> Iterator[ProcessLog]:
    """Open the log for a process that starts now; a log longer than LOG_BYTES is renamed to `<name>.old` first."""
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(path.name + ".old"))
    with path.open("a", encoding="utf-8", errors="replace") as file:
        yield ProcessLog(path, file, path.stat().st_size)
