"""Where errors leave the program: one sentence on stderr and an exit code, for every command.

0 done, 1 the world broke or we have a bug, 2 something that the user can mend, 130 interrupted.
"""

import errno
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from mcp_rl.errors import McpRlError
from mcp_rl.visible import visible

_SECRET_NAME = re.compile(r"token|key|secret|passw|auth|cookie|credential", re.IGNORECASE)
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
    """Ctrl-C, with a sentence about what was kept."""


def run_guarded(command: Callable[[], int | None], *, log_dir: Callable[[], Path | None] = lambda: None) -> int:
    """Run a command and return its exit code; print the one sentence where it failed.

    An unexpected error leaves its traceback in a file under `log_dir()`, or in the temporary folder where that is None.
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
    """The sentence and the exit code for an error; no sentence where the error is none that we foresaw."""
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
    """What a tree of exception groups is about: an interrupt, else the first of our own errors, else the first leaf."""
    leaves = list(_leaves(error))
    for kind in (KeyboardInterrupt, McpRlError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def say(sentence: str) -> None:
    """Print to stderr, with the values of secret-looking environment variables blanked out and nothing in it that would
    steer a terminal."""
    print(visible(without_secrets(sentence), lines=True), file=sys.stderr)


def without_secrets(text: str) -> str:
    """The text without the value of any environment variable whose name looks like a secret's."""
    for name, value in secrets_of_environment().items():
        text = text.replace(value, f"${{{name}}}")
    return text


def secrets_of_environment() -> dict[str, str]:
    """The environment variables whose names look like a secret's, short values left out."""
    return {name: value for name, value in os.environ.items() if len(value) >= 8 and is_secret_name(name)}


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is to be written nowhere."""
    return _SECRET_NAME.search(name) is not None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def first_line(error: BaseException) -> str:
    """What an error says, in a line without its full stop."""
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
    """Whoever read our output closed it, as `head` does. Nothing more can be said there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
