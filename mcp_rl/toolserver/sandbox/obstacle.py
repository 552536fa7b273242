"""Why this machine has no sandbox, found out by making one."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from mcp_rl.system.processes.spawn import SANDBOXED

_SECONDS = 20.0
_MEANINGS = {
    "Operation not permitted": "this kernel or container forbids user namespaces",
    "No space left on device": "this kernel or container allows no more namespaces",
    "No such device": "this kernel has no overlay file system",
    "Invalid argument": "this kernel mounts no overlay there",
}
"""The beginning of what the trial says, and what it means."""


@cache
def obstacle() -> str | None:
    """Return why no sandbox can be made here, for the middle of a sentence; None if one can. The first call takes
    50 ms: it makes a sandbox in another process."""
    if sys.platform != "linux":
        return "sandboxes need Linux"
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", str(SANDBOXED)], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial of a sandbox failed: {error}"
    if tried.returncode != 0:
        return f"the trial of a sandbox failed: {(tried.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    said = tried.stdout.strip()
    meaning = next((words for beginning, words in _MEANINGS.items() if said.startswith(beginning)), None)
    return f"{meaning} ({said})" if meaning else said or None
