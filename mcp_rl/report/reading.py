"""Files of episodes, read line by line."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from mcp_rl.errors import RunDirectoryError
from mcp_rl.trajectory import TrajectoryGroup


def groups_in(path: Path, most: int | None = None) -> Iterator[TrajectoryGroup]:
    """The groups of a file in order, until `most` bytes of it are read; at least one of them.

    Raises RunDirectoryError where the file or a line of it cannot be read.
    """
    taken = 0
    try:
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield TrajectoryGroup.model_validate_json(line)
                taken += len(line)
                if most is not None and taken > most:
                    return
    except OSError as error:
        raise RunDirectoryError(f"The episodes in {path} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RunDirectoryError(f"The episodes in {path} cannot be read: {place}: {first['msg']}.") from error
