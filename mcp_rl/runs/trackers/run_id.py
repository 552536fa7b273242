"""The id under which trackers know a run. It is the same in all sessions of the run; --fresh removes it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = "trackers"
"""Subfolder of a run's folder with the id and the progress of each tracker."""


def run_id(folder: Path) -> str:
    """Return the id of the run in this folder, 16 hexadecimal digits. The first call makes it."""
    file = folder / RECORDS / "run_id"
    if not file.is_file():
        write_atomically(file, secrets.token_hex(8).encode())
    return file.read_text(encoding="utf-8")
