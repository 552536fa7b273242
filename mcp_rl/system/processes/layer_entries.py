"""Entries of an overlay's layer, with the marks for deleted and opaque entries: walking, comparing, copying, removing.

Only a little of the standard library is imported: the watchdog's processes start in 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import stat

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator

_OPAQUE = "user.overlay.opaque"


def walk(top: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all that is below `top`, parents first: its path from `top`, and its entry."""
    queue = [""]
    while queue:
        inside = queue.pop()
        for entry in os.scandir(top + inside):
            inner = f"{inside}/{entry.name}"
            yield inner, entry
            if entry.is_dir(follow_symlinks=False):
                queue.append(inner)


def copy_layer(source: str, target: str, there: set[str] | None = None) -> None:
    """Copy the content of a layer, with its deletion marks, except for entries already in `there`."""
    for inner, entry in walk(source):
        if there is None or inner not in there:
            copy_entry(entry.path, target + inner)


def copy_entry(source: str, target: str) -> None:
    seen = os.lstat(source)
    mode = stat.S_IMODE(seen.st_mode)
    if stat.S_ISDIR(seen.st_mode):
        with contextlib.suppress(FileExistsError):
            os.mkdir(target)
        if is_opaque(source):
            mark_opaque(target)
    elif stat.S_ISLNK(seen.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(seen.st_mode):
        with open(source, "rb") as reading, open(target, "wb") as writing:
            while os.sendfile(writing.fileno(), reading.fileno(), None, 2**24):
                pass
    elif stat.S_ISCHR(seen.st_mode) and seen.st_rdev == 0:
        mark_deleted(target)
        return
    elif stat.S_ISFIFO(seen.st_mode):
        os.mkfifo(target)
    else:
        return
    with contextlib.suppress(OSError):
        os.chown(target, seen.st_uid, seen.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(seen.st_mode):
        os.chmod(target, mode)
        os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def copy_times(source: str, target: str) -> None:
    seen = os.lstat(source)
    os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def content_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def remove_tree(path: str) -> None:
    """Remove a file or a directory with all that is in it."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    directories = [path]
    for directory in directories:
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
            else:
                os.unlink(entry.path)
    for directory in reversed(directories):
        os.rmdir(directory)


def mark_deleted(path: str) -> None:
    """Say that the file of this name beneath the layer is deleted."""
    os.mknod(path, stat.S_IFCHR, 0)


def mark_opaque(path: str) -> None:
    """Say that a directory shows nothing from beneath the layer."""
    os.setxattr(path, _OPAQUE, b"y")


def is_opaque(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    return False


def below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)
