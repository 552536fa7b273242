"""A run's id at the services of trackers, the same in all of its sessions; --fresh removes it with the run."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = "trackers"
"""Folder in a run's folder for what is known of its trackers."""


def run_id(folder: Path) -> str:
    """Return the id of the run in this folder: 16 hexadecimal digits, made at the first call."""
    file = folder / RECORDS / "run_id"
    if not file.is_file():
        write_atomically(file, secrets.token_hex(8).encode())
    return file.read_text(encoding="utf-8")
