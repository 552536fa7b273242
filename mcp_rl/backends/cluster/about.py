"""What an actor tells of itself: where it is, and which versions it runs. Imports no Ray and nothing heavy."""

from __future__ import annotations

import functools
import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from mcp_rl.system.version import own_version


class About(BaseModel):
    """An actor's place and versions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: str
    """Ray's id of the node."""
    address: str
    """The node's address."""
    incarnation: str
    """Changes whenever the actor starts anew, and has forgotten everything."""
    versions: dict[str, str]


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that all processes of a run must have in common; of a checkout, a digest of its files."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "ray": version("ray"),
        "mcp_rl": f"{own_version() or 'checkout'} ({_digest()})",
    }


def _digest() -> str:
    digest, package = hashlib.sha256(), Path(__file__).parents[2]
    for file in sorted(package.rglob("*.py")):
        if "bundled" not in file.relative_to(package).parts:
            digest.update(file.relative_to(package).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:8]
