"""Saves the files that a sandbox's layers hold as a tar archive, and unpacks it into the layers of another sandbox.

Runs in the sandbox's keeper (`sandboxed.py`), which imports it, and with it tarfile, when it is first asked.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.system.processes.layer_entries import below, is_opaque, mark_deleted, mark_opaque, remove_tree, walk
    from mcp_rl.system.processes.layer_tree import Tree
else:
    from layer_entries import below, is_opaque, mark_deleted, mark_opaque, remove_tree, walk

_OPAQUE = "MCP_RL.opaque"
_TYPES = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFREG: tarfile.REGTYPE}


def save(trees: Iterable[Tree], descriptor: int, most_bytes: int) -> bool:
    """Write what the layers of these trees hold into a file; nothing, and return False, if that is more than this."""
    trees = list(trees)
    sizes = (entry.stat(follow_symlinks=False).st_size for tree in trees for _, entry in walk(tree.upper))
    if sum(sizes) > most_bytes:
        return False
    with open(descriptor, "wb", closefd=False) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for tree in trees:
            for inner, entry in walk(tree.upper):
                _add(archive, f"{tree.path.rstrip('/')}{inner}", entry.path)
    return True


def _add(archive: tarfile.TarFile, name: str, path: str) -> None:
    seen = os.lstat(path)
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(seen.st_mode), seen.st_mtime
    info.uid, info.gid = seen.st_uid, seen.st_gid
    if stat.S_ISCHR(seen.st_mode) and seen.st_rdev == 0:
        info.type = tarfile.CHRTYPE  # says that the file is deleted
    elif (kind := _TYPES.get(stat.S_IFMT(seen.st_mode))) is None:
        return
    else:
        info.type = kind
    if info.issym():
        info.linkname = os.readlink(path)
    if info.isdir() and is_opaque(path):
        info.pax_headers = {_OPAQUE: "y"}
    if info.isreg():
        info.size = seen.st_size
        with open(path, "rb") as content:
            archive.addfile(info, content)
    else:
        archive.addfile(info)


def load(trees: Iterable[Tree], descriptor: int) -> None:
    """Put what was saved into the layers of these trees, over what they hold. Raises OSError, tarfile.TarError."""
    trees = sorted(trees, key=lambda tree: len(tree.path))
    times: list[tuple[str, float]] = []
    with open(descriptor, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for info in archive:
            above = [tree for tree in trees if info.name != tree.path and below(info.name, (tree.path.rstrip("/"),))]
            if above:
                inner = info.name[len(above[-1].path.rstrip("/")) :]
                _refuse_outside(above[-1].upper, inner)
                if info.isdir() and _OPAQUE not in info.pax_headers:
                    _take_into_layer(above[-1], inner)
                _put(archive, info, above[-1].upper + inner)
                if not info.issym() and not info.ischr():
                    times.append((above[-1].upper + inner, info.mtime))
    for path, time in reversed(times):
        os.utime(path, (time, time))
    for tree in trees:
        tree.drop_cached()


def _refuse_outside(top: str, inner: str) -> None:
    parts = inner.split("/")[1:]
    ancestors = ("/".join(parts[:count]) for count in range(1, len(parts)))
    if ".." in parts or any(os.path.islink(f"{top}/{ancestor}") for ancestor in ancestors):
        raise OSError(f"{inner} would lie outside of its tree")


def _take_into_layer(tree: Tree, inner: str) -> None:
    """Let the kernel copy a directory from beneath into the layer: a process that works in it would not see another."""
    if tree.beneath(inner) is not None and not os.path.lexists(tree.upper + inner):
        os.utime(tree.path + inner, follow_symlinks=False)


def _put(archive: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> None:
    if os.path.lexists(path) and not (info.isdir() and stat.S_ISDIR(os.lstat(path).st_mode)):
        remove_tree(path)
    if info.ischr():
        mark_deleted(path)
        return
    if info.isdir():
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if _OPAQUE in info.pax_headers:
            mark_opaque(path)
    elif info.issym():
        os.symlink(info.linkname, path)
    elif (content := archive.extractfile(info)) is not None:
        with open(path, "xb") as file:
            while chunk := content.read(2**20):
                file.write(chunk)
    with contextlib.suppress(OSError):
        os.chown(path, info.uid, info.gid, follow_symlinks=False)
    if not info.issym():
        os.chmod(path, info.mode)
