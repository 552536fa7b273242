"""A folder for the temporary files of one vLLM server: sockets of its processes, a meeting point of its workers.

vLLM removes few of them when it ends, and none when it is killed. The folder is removed with the server, however it
ends (`system/processes/watchdog.py`); if even the watchdog was killed, the next start removes it.
"""

import getpass
import os
import re
import tempfile
from pathlib import Path

from mcp_rl.system.processes.held_folder import HeldFolder

PREFIX = "mcp_rl_vllm_"


class Scratch(HeldFolder):
    """An empty folder, held until `close`. Raises OSError if it cannot be made."""

    def __init__(self) -> None:
        super().__init__(PREFIX)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that send temporary files there, except torch's compiled kernels: the next server uses them too."""
        kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(Path(tempfile.gettempdir(), f"torchinductor_{_user()}"))
        return {"TMPDIR": str(self.path), "TORCHINDUCTOR_CACHE_DIR": kept}


def _user() -> str:
    try:
        return re.sub(r"\W", "_", getpass.getuser())
    except (KeyError, ModuleNotFoundError, OSError):  # users without a name, as in containers
        return f"uid_{os.getuid()}"
