"""Measurements of this machine, kept in the user's cache (`$XDG_CACHE_HOME/mcp_rl/measured`), a small file for each.

A measurement that cannot be read or written is made again; nothing depends on it being there.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder() -> Path:
    """Return the folder of this program in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp_rl"


def measured_file(what: str, key: Mapping[str, Any]) -> Path:
    """Return the file of a measurement; `key` is everything that it depends on, as JSON."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "measured" / f"{what}-{digest}.json"


def recall(what: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `remember` stored for the same key; None if nothing is there that can be read."""
    try:
        found = json.loads(measured_file(what, key).read_bytes())
    except (OSError, ValueError):
        return None
    return found["measured"] if isinstance(found, dict) and isinstance(found.get("measured"), dict) else None


def remember(what: str, key: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Keep a measurement, with its key, for other runs on this machine."""
    path = measured_file(what, key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, json.dumps({"key": dict(key), "measured": dict(measured)}, indent=2).encode())
