"""On whose behalf a call is made: a rollout says who it is, a recording remembers what that one was told."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Caller:
    """One rollout. Another one of the same name is another caller."""

    def __init__(self, name: str) -> None:
        self.name = name


_calling: ContextVar[Caller | None] = ContextVar("caller of tools", default=None)


@contextmanager
def calling_as(name: str) -> Iterator[None]:
    """Every call inside, also in tasks that are started there, is this caller's.

    `name` is the same whenever the same job is run, and no two callers at a time share it.
    """
    token = _calling.set(Caller(name))
    try:
        yield
    finally:
        _calling.reset(token)


def caller() -> Caller | None:
    """Who makes the calls here; None outside of any rollout."""
    return _calling.get()
