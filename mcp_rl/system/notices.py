"""Sentences for the user from deep inside a command, such as that a package is being downloaded.

A context variable holds the place where they are printed, so that code need not be passed one. Without a place they
are logged.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

_say: ContextVar[Callable[[str], None] | None] = ContextVar("notices", default=None)


@contextmanager
def noticed_by(say: Callable[[str], None]) -> Iterator[None]:
    """Pass every notice inside this context to `say`, those of tasks that are started there included."""
    token = _say.set(say)
    try:
        yield
    finally:
        _say.reset(token)


def notice(sentence: str) -> None:
    """Tell the user."""
    if (say := _say.get()) is not None:
        say(sentence)
    else:
        log.info("%s", sentence)
