"""World models on disk, beside the scenarios that were made of them.

A context variable collects the models that are built, so that scenario sources need not pass them on.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mcp_rl.errors import ScenarioError
from mcp_rl.explore.entities.world_model import WorldModel
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_collected: ContextVar[dict[str, WorldModel] | None] = ContextVar("world models", default=None)


@contextmanager
def collected_worlds() -> Iterator[dict[str, WorldModel]]:
    """Yield a collection, by the servers' names, of the models that are built inside this context."""
    worlds: dict[str, WorldModel] = {}
    token = _collected.set(worlds)
    try:
        yield worlds
    finally:
        _collected.reset(token)


def collect(world: WorldModel) -> None:
    """Add a model to the collection of this context, if there is one."""
    if (worlds := _collected.get()) is not None:
        worlds[world.server] = world


def world_file(scenarios: Path) -> Path:
    """Return the place of the world model that belongs to a file of scenarios: `tasks.world.json` for `tasks.jsonl`."""
    return scenarios.with_name(f"{scenarios.stem}.world.json")


def save_world(world: WorldModel, file: Path) -> None:
    """Write a model whole. Raises ScenarioError where the file cannot be written."""
    try:
        write_atomically(file, world.model_dump_json().encode())
    except OSError as error:
        raise ScenarioError(f"Cannot write {file}: {error.strerror}.") from error


def read_world(file: Path) -> WorldModel:
    """Read a model. Raises ScenarioError for a file that holds none."""
    try:
        return WorldModel.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ScenarioError(f"Cannot read {file}: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its text"
        raise ScenarioError(f"{file} holds no world model ({where}: {first['msg']}); make it anew.") from error
