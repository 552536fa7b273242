"""Concurrent jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable


async def run_all(jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run jobs concurrently, each in a task of its own, started in order.

    The first error cancels the rest and is raised by itself, not in a group.
    """
    errors: list[Exception] = []

    async def guarded(job: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        try:
            await job()
        except Exception as error:
            errors.append(error)
            scope.cancel()

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(guarded, job, tasks.cancel_scope)
    if errors:
        raise errors[0]
