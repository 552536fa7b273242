"""Threads for compiled functions, which release the interpreter's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_others = ThreadPoolExecutor(thread_name_prefix="mcp-rl-compute")


def together(function: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *first: Any, threads: int) -> None:
    """Call a function for each part, with the arguments `first` and those of the part, on so many threads.

    This thread is one of them. Thread n gets parts n, n + threads and so on, in order.
    """

    if len(parts) == 1:
        function(*first, *parts[0])
        return

    def compute(some: Sequence[tuple[Any, ...]]) -> None:
        for part in some:
            function(*first, *part)

    running = [_others.submit(compute, parts[which::threads]) for which in range(1, min(threads, len(parts)))]
    compute(parts[::threads])
    for future in running:
        future.result()
