"""A command that torchrun or accelerate started as several processes: the first does it, the others follow or end."""

import os
from collections.abc import Callable


def own_part(job: Callable[[], int | None]) -> Callable[[], int | None]:
    """What this process does of a command. Only the first prints and writes.

    A job with `learns` set has work for the others: they are its learners. Any other is the first one's alone.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return job

    def part() -> int | None:
        from mcp_rl.backends.launched import launched

        place = launched()
        learns = getattr(job, "learns", False)
        if place is None or (place.rank == 0 and not learns):
            return job()
        if not learns:
            return 0
        if place.rank > 0:
            from mcp_rl.backends.follower import follow

            return follow(place)
        from mcp_rl.backends.meeting import dismissing

        with dismissing():
            return job()

    return part
