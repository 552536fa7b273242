"""The part of one process in a command that torchrun or accelerate started as several processes."""

import os
from collections.abc import Callable


def own_part(job: Callable[[], int | None]) -> Callable[[], int | None]:
    """Return this process's part of a command. Only the first process prints and writes.

    The other processes become learners of a job with `learns` set, and end at once for any other job.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return job

    def part() -> int | None:
        from mcp_rl.backends.processes.launched import launched

        place = launched()
        learns = getattr(job, "learns", False)
        if place is None or (place.rank == 0 and not learns):
            return job()
        if not learns:
            return 0
        if place.rank > 0:
            from mcp_rl.backends.processes.follower import follow

            return follow(place)
        from mcp_rl.backends.processes.meeting import dismissing

        with dismissing():
            return job()

    return part
