"""The file that a process writes to, through its watchdog, and its last words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

LOG_BYTES = 8 * 2**20
"""A log that is longer is put aside when a process begins, in place of the one before it. The watchdog lets no process
add more than about a megabyte."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class ProcessLog:
    """Where a process's stderr goes, and where this process's part of it begins."""

    path: Path
    file: TextIO
    start: int

    def tail(self, lines: int = 5, characters: int = 600) -> str:
        """The last lines that this process wrote, " | " between them; empty where it wrote nothing."""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(max(self.start, self.path.stat().st_size - 8192))
            text = _COLOUR.sub("", file.read().decode(errors="replace"))
            last = [line.strip() for line in map(_printable, text.splitlines()) if line.strip()][-lines:]
            return " | ".join(last)[-characters:]
        return ""


def _printable(line: str) -> str:
    """What a process writes is shown on a terminal, and must not steer it."""
    return "".join(character if character.isprintable() else " " for character in line)


@contextmanager
def opened_log(path: Path) -> Iterator[ProcessLog]:
    """The log for a process that begins now; an older one that is long is put aside as `<name>.old`."""
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(path.name + ".old"))
    with path.open("a", encoding="utf-8", errors="replace") as file:
        yield ProcessLog(path, file, path.stat().st_size)
