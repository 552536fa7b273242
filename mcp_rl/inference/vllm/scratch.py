"""A server's own folder for what vLLM puts where temporary files go: a socket for each of its processes, a meeting
point for its workers, a listener. It removes few of them when it ends, and none when it is killed.

The folder goes with the server, however that ends (`processes/watchdog.py`). Where even the watchdog was killed, the
next start finds it: a folder is locked for as long as its owner lives, and the kernel drops the lock however that dies.
systemd-tmpfiles, which removes what nobody has touched for days, leaves locked folders alone as well.
"""

import fcntl
import getpass
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "mcp_rl_vllm_"
LONGEST_SOCKET = 107
"""Bytes of a socket's path on Linux (unix(7)); elsewhere a few less."""
_LEAST_ROOM = 40
"""For the name of a socket in the folder: a UUID and a few to spare."""


class Scratch:
    """An empty folder, ours until `close`. Raises OSError where none can be made."""

    def __init__(self) -> None:
        places = _places()
        for place in places:
            _remove_abandoned(place)
        lock = None
        while lock is None:  # another start may take it for abandoned before it is locked
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=places[0]))
            lock = _locked(self.path)
        self._lock = lock

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

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


def _places() -> list[Path]:
    """Where temporary files go, and /tmp where a socket's path would get too long in there; the first is taken."""
    places = [Path(tempfile.gettempdir()), Path("/tmp")]
    longest = LONGEST_SOCKET - _LEAST_ROOM - len(PREFIX) - len("/12345678/")
    fitting = [place for place in places if len(os.fsencode(place)) <= longest and place.is_dir()]
    return list(dict.fromkeys(fitting or places[:1]))


def _remove_abandoned(place: Path) -> None:
    """Folders there that are ours and that nobody holds any more."""
    with suppress(OSError):
        for path in place.glob(f"{PREFIX}*"):
            if (lock := _locked(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor that holds this folder until it is closed; None where it is not ours, is held or is gone."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, there = os.fstat(opened), path.lstat()
        if held.st_uid == os.getuid() and stat.S_ISDIR(there.st_mode) and os.path.samestat(held, there):
            return opened
    except OSError:
        pass
    os.close(opened)
    return None
