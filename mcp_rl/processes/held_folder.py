"""A short temporary folder that somebody owns: for sockets, and for what a child leaves where temporary files go.

It is locked for as long as its owner lives, and the kernel drops the lock however that dies, so whoever makes the next
one of the same kind finds what a killed owner has left. systemd-tmpfiles, which removes what nobody has touched for
days, leaves locked folders alone as well.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

LONGEST_SOCKET = 107
"""Bytes of a socket's path on Linux (unix(7)); elsewhere a few less."""
_LEAST_ROOM = 40
"""For the name of a socket in the folder: a UUID and a few to spare."""


class HeldFolder:
    """An empty folder that nobody else may enter, ours until `close`. Raises OSError where none can be made."""

    def __init__(self, prefix: str) -> None:
        """`prefix` begins the names of folders of one kind."""
        places = _places(prefix)
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
    """Where temporary files go, and /tmp where a socket's path would get too long in there; the first is taken."""
    places = [Path(tempfile.gettempdir()), Path("/tmp")]
    longest = LONGEST_SOCKET - _LEAST_ROOM - len(prefix) - len("/12345678/")
    fitting = [place for place in places if len(os.fsencode(place)) <= longest and place.is_dir()]
    return list(dict.fromkeys(fitting or places[:1]))


def _remove_abandoned(place: Path, prefix: str) -> None:
    """Folders there that are ours and that nobody holds any more."""
    with suppress(OSError):
        for path in place.glob(f"{prefix}*"):
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
