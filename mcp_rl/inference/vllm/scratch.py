"""A server's own folder for what vLLM puts where temporary files go: a socket for each of its processes, a meeting
point for its workers, a listener. It removes few of them when it ends, and none when it is killed.

The folder goes with the server, however that ends (`processes/watchdog.py`); where even the watchdog was killed, the
next start removes it.
"""

import getpass
import os
import re
import tempfile
from pathlib import Path

from mcp_rl.processes.held_folder import HeldFolder

PREFIX = "mcp_rl_vllm_"


class Scratch(HeldFolder):
    """An empty folder, ours until `close`. Raises OSError where none can be made."""

    def __init__(self) -> None:
        super().__init__(PREFIX)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that send temporary files there, but for kernels that were compiled (torch's own place for them):
        those are kept for the next server."""
        kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(Path(tempfile.gettempdir(), f"torchinductor_{_user()}"))
        return {"TMPDIR": str(self.path), "TORCHINDUCTOR_CACHE_DIR": kept}


def _user() -> str:
    try:
        return re.sub(r"\W", "_", getpass.getuser())
    except (KeyError, ModuleNotFoundError, OSError):  # a user without a name, as in containers
        return f"uid_{os.getuid()}"
