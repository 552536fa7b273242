"""A cassette's file: JSON Lines after a header line.

Each line is written in one piece, so that a killed process loses at most its last one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, Self

from mcp_rl.errors import CassetteError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

VERSION = 1
_HEADER = {
    "cassette": VERSION,
    "about": "Calls of tool servers and their results, for --replay; docs/cassettes.md says what is in it.",
}
_REASONS = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


class Tape:
    """A cassette's file, open for appending and locked against other processes."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it. Raises UserError if that fails."""
        self._path = path
        self._broken: str | None = None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"Cannot record into {path}: {_reason(error)}.") from error
        try:
            self._lock()
            content = path.read_bytes()
            self.lines = [] if _line(_HEADER).startswith(content) else list(read_tape(path))
            self._end(content)
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another process is recording into {self._path}; choose another file.") from None

    def _end(self, content: bytes) -> None:
        """Remove a torn last line, and write the header if the file is empty."""
        if not self.lines:
            os.ftruncate(self._file, 0)
            self.write(_HEADER)
        elif not content.endswith(b"\n"):
            begin = content.rfind(b"\n") + 1
            if _json(content[begin:]) is None:
                os.ftruncate(self._file, begin)
            else:
                os.write(self._file, b"\n")

    def write(self, line: dict[str, Any]) -> None:
        """Append a line. Raises CassetteError if the file cannot be written."""
        if self._broken is None:
            content = _line(line)
            size = os.fstat(self._file).st_size
            try:
                if os.write(self._file, content) < len(content):
                    raise OSError(errno.ENOSPC, "no space left")
                return
            except OSError as error:
                self._broken = f"Cannot continue recording into {self._path}: {_reason(error)}."
                os.ftruncate(self._file, size)
        raise CassetteError(self._broken)

    def close(self) -> None:
        """Flush everything to disk and close the file."""
        if self._file >= 0:
            file, self._file = self._file, -1
            self._broken = self._broken or f"The recording {self._path} is closed."
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_tape(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines after the header with their numbers, without a torn last line. Raises UserError if the file
    cannot be read or is not a cassette."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the cassette {path}: {_reason(error)}.") from error
    first, *rest = content.split(b"\n")
    _check(path, _json(first))
    for number, text in enumerate(rest, 2):
        if not text.strip():
            continue
        if (line := _json(text)) is not None:
            yield number, line
        elif number <= len(rest):
            raise UserError(f"{path}, line {number}: not a line of a cassette; record the job again.")


def recorded_servers(path: Path) -> set[str]:
    """Return the names of the servers whose calls a file holds, without reading the calls. Raises UserError like
    `read_tape`."""
    try:
        with path.open("rb") as file:
            _check(path, _json(next(file, b"")))
            listings = [_json(line) for line in file if b'"tools"' in line]
    except OSError as error:
        raise UserError(f"Cannot read the cassette {path}: {_reason(error)}.") from error
    return {str(line["server"]) for line in listings if line is not None and "tools" in line and "server" in line}


def _check(path: Path, header: dict[str, Any] | None) -> None:
    version = (header or {}).get("cassette")
    if not isinstance(version, int) or isinstance(version, bool):
        raise UserError(f"{path} is not a cassette; --record FILE creates one, and never writes into any other file.")
    if version != VERSION:
        raise UserError(
            f"The cassette {path} has version {version}, but this program reads version {VERSION}; record the job "
            "again, or use the version of the program that recorded it."
        )


def _json(text: bytes) -> dict[str, Any] | None:
    """Return None if the text is not a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _line(value: dict[str, Any]) -> bytes:
    """Return a line of readable JSON; with ASCII escapes only if the text holds half a surrogate pair."""
    try:
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode() + b"\n"


def _reason(error: OSError) -> str:
    reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
    return f"{reason[0].lower()}{reason[1:]}"
