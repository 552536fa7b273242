"""One tree of the file system under an overlay: what its layer holds is compared, put away and brought back.

Only a little of the standard library is imported: the watchdog's processes start in 20 ms.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.system.processes import mounts
    from mcp_rl.system.processes.layer_entries import below, content_of, copy_layer, is_opaque, remove_tree, walk
    from mcp_rl.system.processes.mounts import mount
else:
    import mounts
    from layer_entries import below, content_of, copy_layer, is_opaque, remove_tree, walk
    from mounts import mount

_COMPARED_BYTES = 2**20
"""Files up to this size are compared by their content too."""


class PutAway:
    """What the layers of all trees held, renamed to paths that begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0
        self.entries: dict[int, list[tuple[str, str]]] = {}
        """By the number of the tree: paths from its top, and where they are now."""
        self.directories: dict[int, dict[str, os.stat_result]] = {}
        """By the number of the tree: the directories that stayed in place, parents first."""
        self.shared_memory: list[tuple[str, str]] = []

    def take(self, path: str) -> str:
        """Rename a file or a directory, and return its new path."""
        stored = f"{self._prefix}.{self._count}"
        self._count += 1
        os.rename(path, stored)
        return stored

    def remove(self) -> None:
        """Remove what was not brought back."""
        for _, stored in (*self.shared_memory, *(entry for each in self.entries.values() for entry in each)):
            remove_tree(stored)


class Tree:
    """A part of the file system under one overlay."""

    def __init__(self, path: str, number: int, cwd: str) -> None:
        self.path = path
        self.number = number
        self._worked_in = _ways_to(cwd, path)
        self.real = os.open(path, os.O_PATH | os.O_DIRECTORY)
        """The directory beneath the overlay."""
        self.lower = f"/proc/self/fd/{self.real}"
        """The directory beneath the layer."""
        self.writable = os.access(path, os.W_OK)
        """True if the command may create entries in the directory itself."""
        self.upper = ""
        self.top = -1
        """A descriptor of the layer's directory."""
        self.empty_size: int | None = None
        """The size of that directory while it holds nothing; None where sizes do not tell."""
        self.marked = ""
        """A copy of the layer as it was at the mark; empty if it held nothing."""

    def mount(self, store: str, *, sizes_tell: bool) -> None:
        """Put the overlay over the tree. `sizes_tell` if the size of a directory of `store` grows with its entries."""
        self.upper, work = f"{store}/upper/{self.number}", f"{store}/work/{self.number}"
        seen = os.stat(self.lower)
        mode = stat.S_IMODE(seen.st_mode)
        os.mkdir(self.upper)
        os.mkdir(work)
        with contextlib.suppress(OSError):
            os.chown(self.upper, seen.st_uid, seen.st_gid)
        # Where the owner has no id in the namespace the command owns the layer, and must not gain a right by that.
        os.chmod(self.upper, mode if self.writable else mode & ~0o222)
        os.utime(self.upper, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        self.top = os.open(self.upper, os.O_PATH | os.O_DIRECTORY)
        self.empty_size = os.fstat(self.top).st_size if sizes_tell else None
        options = f"lowerdir={self.lower},upperdir={self.upper},workdir={work},userxattr"
        mount("overlay", self.path, "overlay", mounts.MS_NOSUID | mounts.MS_NODEV, options)

    def changed(self) -> bool:
        """Return whether the layer holds anything else than at the mark."""
        for inner, entry in self._entries():
            if entry.is_dir(follow_symlinks=False):
                if not self._as_marked(inner, entry) and not self._as_beneath(inner, entry):
                    return True
            elif not self._as_marked(inner, entry):
                return True
        return bool(self.marked) and any(not os.path.lexists(self.upper + inner) for inner, _ in walk(self.marked))

    def _entries(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        return walk(self.upper)

    def _as_marked(self, inner: str, entry: os.DirEntry[str]) -> bool:
        """Return whether an entry of the layer is as it was at the mark."""
        if not self.marked:
            return False
        try:
            now, then = os.lstat(entry.path), os.lstat(self.marked + inner)
        except FileNotFoundError:
            return False
        if now.st_mode != then.st_mode or is_opaque(entry.path) != is_opaque(self.marked + inner):
            return False
        if stat.S_ISLNK(now.st_mode):
            return os.readlink(entry.path) == os.readlink(self.marked + inner)
        if not stat.S_ISREG(now.st_mode):
            return True
        if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            return False
        # The clock of files has ticks of some milliseconds.
        return now.st_size > _COMPARED_BYTES or content_of(entry.path) == content_of(self.marked + inner)

    def _as_beneath(self, inner: str, entry: os.DirEntry[str]) -> bool:
        """Return whether a directory of the layer is there only for what is in it."""
        beneath = self.beneath(inner)
        return beneath is not None and beneath.st_mode == os.lstat(entry.path).st_mode and not is_opaque(entry.path)

    def beneath(self, inner: str) -> os.stat_result | None:
        """Return what is known of the directory at `inner` beneath the layer."""
        with contextlib.suppress(OSError):
            found = os.lstat(self.lower + inner)
            return found if stat.S_ISDIR(found.st_mode) else None
        return None

    def shared(self, inner: str) -> bool:
        """Return whether a directory shows anything from beneath the layer."""
        return self.beneath(inner) is not None and not is_opaque(self.upper + inner)

    def mark(self, store: str) -> None:
        """Make the layer as it is now what `restore` returns to."""
        if self.marked:
            remove_tree(self.marked)
        self.marked = ""
        if self._holds():
            self.marked = f"{store}/mark/{self.number}"
            os.mkdir(self.marked)
            copy_layer(self.upper, self.marked)

    def is_moved(self, back: PutAway | None) -> bool:
        """Return whether `turn` to what was put away, or to the mark, has anything to do."""
        comes = bool(self.marked) if back is None else self.number in back.directories
        return comes or self._holds()

    def turn(self, away: PutAway, back: PutAway | None, *, keep_marked: bool) -> None:
        """Put what the layer holds away, and bring back what was put away, or return to the mark.

        With `keep_marked`, what is as it was at the mark stays in place. So do the directories that processes hold:
        only what is in these goes. The kernel would go on to look for a new file's place in the removed one. Raises
        OSError (ESTALE) where it does so in spite of that, since a process holds a directory that was replaced: no
        path through it leads anywhere until that process has ended.
        """
        left, stays = [""], {""}
        if self._holds() or not keep_marked:
            left, stays = self._taken_out(away, keep_marked=keep_marked)
        seen: dict[str, os.stat_result] = {}
        if back is not None:
            seen = back.directories.get(self.number, seen)
            left = self._bring_back(back, left)
        elif self.marked:
            copy_layer(self.marked, self.upper, stays)
        for inside in reversed(left):
            self._settle(inside, seen.get(inside) or (self._at_mark(inside) if back is None else None), stays)
        self.drop_cached()
        self._look_up(inner for inner, _ in away.entries.get(self.number, ()))

    def _holds(self) -> bool:
        if self.empty_size is not None:
            return os.fstat(self.top).st_size != self.empty_size
        return bool(os.listdir(self.upper))

    def _taken_out(self, away: PutAway, *, keep_marked: bool) -> tuple[list[str], set[str]]:
        """Rename what the layer holds. Returns the directories that stay, parents first, and what is as it was."""
        entries = away.entries[self.number] = []
        seen = away.directories[self.number] = {}
        left, stays, emptied = [""], {""}, [""]
        while emptied:
            staying: list[str] = []
            tried: list[tuple[str, str]] = []
            for inside in emptied:
                seen[inside] = os.lstat(self.upper + inside)
                for entry in list(os.scandir(self.upper + inside)):
                    inner, is_directory = f"{inside}/{entry.name}", entry.is_dir(follow_symlinks=False)
                    merged = is_directory and not is_opaque(entry.path)
                    if keep_marked and self._as_marked(inner, entry):
                        stays.add(inner)
                        staying += [inner] if is_directory else []
                    elif merged and inner in self._worked_in:
                        staying.append(inner)
                    else:
                        (tried if merged else entries).append((inner, away.take(entry.path)))
            if tried:
                self.drop_cached()
            for inner, stored in tried:
                if self._is_held(inner, stored):
                    os.rename(stored, self.upper + inner)
                    staying.append(inner)
                else:
                    entries.append((inner, stored))
            left += staying
            emptied = staying
        return left, stays

    def _is_held(self, inner: str, stored: str) -> bool:
        """Return whether processes still see a directory that was renamed: they work in it, have something in it open
        or loaded, or watch it."""
        try:
            return os.lstat(self.path + inner).st_ctime_ns == os.lstat(stored).st_ctime_ns
        except OSError as error:
            return error.errno == errno.ESTALE

    def _look_up(self, removed: Iterator[str]) -> None:
        """Look up the directories from beneath the layer that entries of these paths had replaced."""
        for inner in removed:
            if self.beneath(inner) is not None:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.lstat(self.path + inner)

    def _bring_back(self, back: PutAway, left: list[str]) -> list[str]:
        """Rename what was put away to where it was. Returns the directories that were not renamed, parents first."""
        there = dict.fromkeys(left)
        seen = back.directories.get(self.number, {})
        for inside, status in seen.items():
            if inside not in there:
                os.mkdir(self.upper + inside, stat.S_IMODE(status.st_mode))
                there[inside] = None
        waiting, emptied = back.entries.get(self.number, [])[::-1], []
        while waiting:
            inner, stored = waiting.pop()
            if inner in there:
                if stat.S_ISDIR(os.lstat(stored).st_mode) and not is_opaque(stored):
                    seen[inner] = os.lstat(stored)
                    waiting += [(f"{inner}/{entry.name}", entry.path) for entry in os.scandir(stored)]
                    emptied.append(stored)
                    continue
                remove_tree(self.upper + inner)
                there = {inside: None for inside in there if not below(inside, (inner,))}
            os.rename(stored, self.upper + inner)
        for stored in reversed(emptied):
            os.rmdir(stored)
        return list(there)

    def _at_mark(self, inside: str) -> os.stat_result | None:
        if inside and self.marked:
            with contextlib.suppress(FileNotFoundError):
                return os.lstat(self.marked + inside)
        return None

    def _settle(self, inside: str, seen: os.stat_result | None, stays: set[str]) -> None:
        """Give a directory the times that it had, or those of the one beneath it; its mode too, unless it `stays`."""
        path = self.upper + inside
        status = seen or self.beneath(inside)
        if status is None:
            return
        if inside and inside not in stays:
            if seen is not None:
                with contextlib.suppress(OSError):
                    os.chown(path, seen.st_uid, seen.st_gid)
            os.chmod(path, stat.S_IMODE(status.st_mode))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def drop_cached(self) -> None:
        """Make the kernel forget what it remembers of the tree."""
        mount(None, self.path, None, mounts.MS_REMOUNT | mounts.MS_NOSUID | mounts.MS_NODEV, None)


def _ways_to(place: str, top: str) -> set[str]:
    """Return the directories on the way from `top` to a place below it, as paths from `top`."""
    ways = set()
    inner = place[len(top) :] if place.startswith(f"{top}/") else ""
    while inner:
        ways.add(inner)
        inner = inner.rpartition("/")[0]
    return ways
