"""Jobs side by side."""

from collections.abc import Awaitable, Callable, Iterable

import anyio


async def run_all(jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run jobs at once, each in a task of its own, started in order. The first error cancels the rest and is raised as
    itself, not in a group."""
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
