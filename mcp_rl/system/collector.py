"""Pauses of Python's garbage collector, where very many objects are made and none is to be freed."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would scan the same objects again and again: a fifth of the time of importing
    torch and transformers, up to a third of drawing a page."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
