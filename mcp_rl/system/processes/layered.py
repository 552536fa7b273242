"""The layer that takes a sandboxed server's writes, over the trees of the file system.

The upper directories are emptied and filled in place, by renames within one tmpfs, and a remount makes the kernel drop
its cached entries. So relative paths from a process's working directory see the present state too; a file that a
process holds open stays as it was for that process.

Runs in the sandbox's keeper (`sandboxed.py`), in namespaces of its own. Only a little of the standard library is
imported: the watchdog's processes start in 20 ms.
"""

from __future__ import annotations

import contextlib
import errno
import os

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from mcp_rl.system.processes import mounts
    from mcp_rl.system.processes.layer_entries import (
        below,
        copy_entry,
        copy_layer,
        copy_times,
        remove_tree,
        walk,
    )
    from mcp_rl.system.processes.layer_tree import PutAway, Tree
    from mcp_rl.system.processes.mounts import mount, reason
else:
    import mounts
    from layer_entries import below, copy_entry, copy_layer, copy_times, remove_tree, walk
    from layer_tree import PutAway, Tree
    from mounts import mount, reason

_PAGE = 4096


def _archives() -> ModuleType:
    import importlib  # with tarfile, which few sandboxes need

    return importlib.import_module("layer_archive")


MARK = "-"
"""In a request to take turns, the state at the mark."""


class Layers:
    """All trees of a sandbox, and what lies above them."""

    def __init__(self, cwd: str, most_bytes: int, words: Sequence[str] = ()) -> None:
        """Lay the sandbox out for a command with these words, in this folder. Raises OSError."""
        self.cwd = cwd
        mount(None, "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
        needed = [os.path.realpath(os.path.join(cwd, word.rpartition("=")[2])) for word in ("", *words)]
        self.trees = [Tree(path, number, cwd) for number, path in enumerate(mounts.overlaid_trees(needed))]
        devices = os.open("/dev", os.O_PATH)
        mounts.make_read_only("/")
        stage = self.trees[0].path if self.trees else "/dev"
        limits = f"size={most_bytes},nr_inodes={most_bytes // 8192},mode=700"
        mount("mcp-rl", stage, "tmpfs", mounts.MS_NOSUID, limits)  # soon hidden by an overlay
        self.store = f"/proc/self/fd/{os.open(stage, os.O_PATH)}"
        bare = os.stat(self.store).st_size
        for name in ("upper", "work", "mark", "away", "dev", "dev/shm", "dev/pts"):
            os.mkdir(f"{self.store}/{name}")
        sizes_tell = os.stat(self.store).st_size > bare
        self.put_away: dict[str, PutAway] = {}
        self.thrown_away: list[PutAway] = []
        self.shared_memory = f"{self.store}/dev/shm"
        self.shared_at_mark: set[str] = set()
        mounts.fresh_proc()
        for tree in self.trees:
            try:
                tree.mount(self.store, sizes_tell=sizes_tell)
            except OSError as error:
                if below(self.cwd, (tree.path,)):
                    raise
                tree.upper = ""
                os.write(2, f"{tree.path} is read-only in the sandbox: {reason(error)}\n".encode())
        self.trees = [tree for tree in self.trees if tree.upper]
        mounts.mount_devices(self.store, f"/proc/self/fd/{devices}")
        os.chmod(self.store, 0o711)
        with contextlib.suppress(OSError):
            os.chdir(self.cwd)

    def do(self, request: str, descriptor: int = -1) -> str:
        """Carry out a request, with the file that came with it, and return the answer; `tidy` is to follow."""
        self.tidy()
        match request.split():
            case ["mark"]:
                for tree in self.trees:
                    tree.mark(self.store)
                self.shared_at_mark = set(os.listdir(self.shared_memory))
                return ""
            case ["throw-away"]:
                self._forget(list(self.put_away))
                return self._turn(MARK, MARK)
            case ["turn", leaving, coming, *forgotten]:
                self._forget(forgotten)
                return self._turn(leaving, coming)
            case ["forget", *names]:
                self._forget(names)
                return ""
            case ["changed"]:
                changed = any(tree.changed() for tree in self.trees)
                return "yes" if changed or set(os.listdir(self.shared_memory)) != self.shared_at_mark else "no"
            case ["save", most_bytes]:
                saved = _archives().save(self.trees, descriptor, int(most_bytes))
                return "" if saved else "large"
            case ["load"]:
                _archives().load(self.trees, descriptor)
                return ""
        raise ValueError(f"unknown request {request}")

    def make_own(self, path: str) -> None:
        """Replace a directory from beneath the layer by a copy of its own, which can be renamed (`renames.py`).

        One that a process works in is left alone: the process would be in a removed directory ever after.
        """
        if any(below(place, (path,)) for place in _places_of_work()):
            return
        above = [tree for tree in self.trees if path != tree.path and below(path, (tree.path,))]
        if not above or not above[-1].shared(path[len(above[-1].path) :]):
            return
        room = os.statvfs(self.store)
        sizes = [os.lstat(entry.path).st_size for _, entry in walk(path)]
        if sum(sizes) + _PAGE * len(sizes) > room.f_bavail * room.f_frsize or 2 * len(sizes) > room.f_favail:
            return
        copy = f"{os.path.dirname(path)}/.mcp-rl-{os.urandom(8).hex()}"
        try:
            copy_entry(path, copy)
            copy_layer(path, copy)
            for inner, entry in [*walk(path)][::-1]:
                if entry.is_dir(follow_symlinks=False):
                    copy_times(entry.path, copy + inner)
            copy_times(path, copy)
        except OSError:
            remove_tree(copy)
            raise
        try:
            remove_tree(path)
            os.rename(copy, path)
        except OSError:
            copy_layer(copy, path, {inner for inner, _ in walk(path)})
            remove_tree(copy)
            raise

    def _turn(self, leaving: str, coming: str) -> str:
        """Put the layer away under the name `leaving`, or throw it away, and bring back what was put away as `coming`,
        or return to the mark."""
        if full := self._is_full():
            if coming != leaving == MARK:
                self._turn(MARK, MARK)
            self.tidy()
        back = None if coming == MARK else self._taken_out(coming)
        away = PutAway(f"{self.store}/away/{leaving}")
        for tree in self.trees:
            if tree.is_moved(back):
                tree.turn(away, back, keep_marked=leaving == coming == MARK)
        for name in set(os.listdir(self.shared_memory)) - self.shared_at_mark:
            away.shared_memory.append((name, away.take(f"{self.shared_memory}/{name}")))
        for name, stored in back.shared_memory if back is not None else ():
            os.rename(stored, f"{self.shared_memory}/{name}")
        if leaving == MARK:
            self.thrown_away.append(away)
        else:
            self.put_away[leaving] = away
        if full:
            self.tidy()
        return full

    def tidy(self) -> None:
        """Remove what was thrown away."""
        while self.thrown_away:
            self.thrown_away[-1].remove()
            self.thrown_away.pop()

    def _forget(self, names: Iterable[str]) -> None:
        """Throw away what was put away under these names."""
        self.thrown_away += map(self._taken_out, names)

    def _taken_out(self, name: str) -> PutAway:
        try:
            return self.put_away.pop(name)
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"layer {name}") from None

    def _is_full(self) -> str:
        room = os.statvfs(self.store)
        return "full" if not room.f_bavail or not room.f_favail else ""


def _places_of_work() -> Iterator[str]:
    """Yield the working directories of all processes in the sandbox."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{name}/cwd")
