"""The rollout on whose behalf a call is made, so that a recording can give each rollout its own results again."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Caller:
    """Identity of one rollout. Callers compare by identity, not by name."""

    def __init__(self, name: str) -> None:
        self.name = name


_calling: ContextVar[Caller | None] = ContextVar("caller of tools", default=None)


@contextmanager
def calling_as(name: str) -> Iterator[None]:
    """Attribute every call inside to this caller, including calls from tasks that are started inside.

    `name` must be the same whenever the same job is run, and unique among callers at any time.
    """
    token = _calling.set(Caller(name))
    try:
        yield
    finally:
        _calling.reset(token)


def caller() -> Caller | None:
    """Return the current caller; None outside of any rollout."""
    return _calling.get()
