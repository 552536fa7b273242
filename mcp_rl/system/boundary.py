"""Turns the errors of every command into one sentence on stderr and an exit code.

Exit codes: 0 done, 1 an outside failure or a bug, 2 an error that the user can mend, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.errors import McpRlError
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission",
    errno.EPERM: "there is no permission",
    errno.EMFILE: "too many files are open",
}
_DISK_FULL = re.compile(r"no space left on device|os error 28\b", re.IGNORECASE)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a sentence that says what was kept."""


def run_guarded(command: Callable[[], int | None], *, log_dir: Callable[[], Path | None] = lambda: None) -> int:
    """Run a command and return its exit code; if it fails, print one sentence.

    The traceback of an unexpected error goes to a file under `log_dir()`, or in the temporary folder if that is None.
    """
    try:
        return command() or 0
    except BaseException as raised:
        error = first_error(raised)
        if isinstance(error, SystemExit):
            raise
        if isinstance(error, BrokenPipeError):
            return _reader_left()
        sentence, code = verdict(error)
        if sentence is None:
            sentence = f"Unexpected {type(error).__name__}: {first_line(error)}. {_write_traceback(raised, log_dir())}"
        say(sentence)
        return code


def verdict(error: BaseException) -> tuple[str | None, int]:
    """Return the sentence and the exit code of an error; the sentence is None for an unexpected error."""
    if isinstance(error, McpRlError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "Interrupted; nothing was left running.", 130
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        reason = _REASONS.get(error.errno or 0) or (error.strerror if error.filename else None)
        if reason:
            return f"Cannot use {error.filename or 'a file'}: {reason[0].lower()}{reason[1:]}.", 2
    if _DISK_FULL.search(str(error)):
        return "Cannot write: the disk is full.", 2
    return None, 1


def first_error(error: BaseException) -> BaseException:
    """Return the error that a tree of exception groups stands for: an interrupt, else the first McpRlError, else the
    first leaf."""
    leaves = list(_leaves(error))
    for kind in (KeyboardInterrupt, McpRlError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def say(sentence: str) -> None:
    """Print to stderr, without secrets and without control characters."""
    print(visible(without_secrets(sentence), lines=True), file=sys.stderr)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else "no message"


def _write_traceback(error: BaseException, log_dir: Path | None) -> str:
    text = without_secrets("".join(traceback.format_exception(error)))
    for folder in filter(None, (log_dir, Path(tempfile.gettempdir()))):
        path = folder / f"error-{os.getpid()}.log"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return f"This is a bug; the traceback is in {path}."
    return "This is a bug, and no folder could be written to keep its traceback."


def _reader_left() -> int:
    """Handle a reader that closed our output, as `head` does: nothing more can be printed there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
