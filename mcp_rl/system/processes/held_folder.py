"""A temporary folder with a short path that is locked by its owner, for sockets and for a child's temporary files.

The lock lasts as long as the owner lives, and the kernel drops it however the owner dies. So the next owner of such a
folder finds and removes the folders of killed ones. systemd-tmpfiles, which removes old files, spares locked folders.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

LONGEST_SOCKET = 107
"""Most bytes of a socket's path on Linux (unix(7)); elsewhere a few less."""
_LEAST_ROOM = 40
"""Bytes for the name of a socket in the folder: a UUID and a few to spare."""


class HeldFolder:
    """An empty folder that no other user may enter, kept until `close`. Raises OSError if none can be made."""

    def __init__(self, prefix: str, place: Path | None = None) -> None:
        """`prefix` begins the names of all folders of one kind; `place` is where they are, for files and not sockets;
        None: among the temporary files."""
        places = _places(prefix) if place is None else [place]
        for place in places:
            _remove_abandoned(place, prefix)
        lock = None
        while lock is None:  # another start may take it for abandoned before it is locked
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=places[0]))
            lock = _locked(self.path)
        self._lock = lock

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _places(prefix: str) -> list[Path]:
    """Return the folders to look in, the first to be used: the one for temporary files, unless a socket's path would
    get too long there, and /tmp."""
    places = [Path(tempfile.gettempdir()), Path("/tmp")]
    longest = LONGEST_SOCKET - _LEAST_ROOM - len(prefix) - len("/12345678/")
    fitting = [place for place in places if len(os.fsencode(place)) <= longest and place.is_dir()]
    return list(dict.fromkeys(fitting or places[:1]))


def _remove_abandoned(place: Path, prefix: str) -> None:
    """Remove our folders in there whose owner is gone."""
    with suppress(OSError):
        for path in place.glob(f"{prefix}*"):
            if (lock := _locked(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path) -> int | None:
    """Lock a folder and return the descriptor that holds it until it is closed; None if the folder belongs to another
    user, is locked, or is gone."""
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
