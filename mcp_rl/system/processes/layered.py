"""The layer that takes a sandboxed server's writes, over the trees of the file system.

The upper directories are emptied and filled in place, by renames within one tmpfs, and a remount makes the kernel drop
its cached entries. So relative paths from a process's working directory see the present state too; a file that a
process holds open stays as it was for that process.

Runs in the sandbox's keeper (`sandboxed.py`), in namespaces of its own. Only a little of the standard library is
imported: the watchdog's processes start in 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import stat

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.system.processes import mounts
    from mcp_rl.system.processes.layer_entries import (
        below,
        content_of,
        copy_entry,
        copy_layer,
        copy_times,
        is_opaque,
        remove_tree,
        walk,
    )
    from mcp_rl.system.processes.mounts import mount, reason
else:
    import mounts
    from layer_entries import below, content_of, copy_entry, copy_layer, copy_times, is_opaque, remove_tree, walk
    from mounts import mount, reason

_COMPARED_BYTES = 2**20
"""Files up to this size are compared by their content too."""
_PAGE = 4096
MARK = "-"
"""In a request to take turns, the state at the mark."""


class Layers:
    """All trees of a sandbox, and what lies above them."""

    def __init__(self, cwd: str, most_bytes: int) -> None:
        self.cwd = cwd
        mount(None, "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
        self.trees = [_Tree(path, number) for number, path in enumerate(mounts.overlaid_trees())]
        devices = os.open("/dev", os.O_PATH)
        mounts.make_read_only("/")
        stage = self.trees[0].path if self.trees else "/dev"
        limits = f"size={most_bytes},nr_inodes={most_bytes // 8192},mode=700"
        mount("mcp-rl", stage, "tmpfs", mounts.MS_NOSUID, limits)  # soon hidden by an overlay
        self.store = f"/proc/self/fd/{os.open(stage, os.O_PATH)}"
        for name in ("upper", "work", "mark", "away", "dev", "dev/shm", "dev/pts"):
            os.mkdir(f"{self.store}/{name}")
        self.shared_memory = f"{self.store}/dev/shm"
        self.shared_at_mark: set[str] = set()
        mounts.fresh_proc()
        for tree in self.trees:
            try:
                tree.mount(self.store)
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

    def do(self, request: str) -> str:
        """Carry out a request and return the answer."""
        match request.split():
            case ["mark"]:
                for tree in self.trees:
                    tree.mark(self.store)
                self.shared_at_mark = set(os.listdir(self.shared_memory))
                return ""
            case ["throw-away"]:
                full = self._turn(MARK, MARK)
                for name in os.listdir(f"{self.store}/away"):
                    remove_tree(f"{self.store}/away/{name}")
                return full
            case ["turn", leaving, coming]:
                return self._turn(leaving, coming)
            case ["drop", name]:
                remove_tree(self._away(name))
                return ""
            case ["changed"]:
                changed = any(tree.changed() for tree in self.trees)
                return "yes" if changed or set(os.listdir(self.shared_memory)) != self.shared_at_mark else "no"
        raise ValueError(f"unknown request {request}")

    def make_own(self, path: str) -> None:
        """Replace a directory from beneath the layer by a copy of its own, which can be renamed (`renames.py`)."""
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
        full = self._is_full()
        away = self._away(leaving) if leaving != MARK else ""
        back = self._away(coming) if coming != MARK else ""
        if away:
            os.makedirs(f"{away}/shm")
        places = self._places_in_use()
        for tree in self.trees:
            tree.turn(away, back, _ways_to(places, tree.path))
        stays = set() if away or back else self.shared_at_mark
        for name in set(os.listdir(self.shared_memory)) - stays:
            if away:
                os.rename(f"{self.shared_memory}/{name}", f"{away}/shm/{name}")
            else:
                remove_tree(f"{self.shared_memory}/{name}")
        if back:
            for name in os.listdir(f"{back}/shm"):
                os.rename(f"{back}/shm/{name}", f"{self.shared_memory}/{name}")
            remove_tree(back)
        return full

    def _away(self, name: str) -> str:
        if not name.isdigit():
            raise ValueError(f"no name for what is put away: {name}")
        return f"{self.store}/away/{name}"

    def _is_full(self) -> str:
        room = os.statvfs(self.store)
        return "full" if not room.f_bavail or not room.f_favail else ""

    def _places_in_use(self) -> set[str]:
        """Return the working directories of all processes, and the directories of what they have open or loaded."""
        places = {self.cwd}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    places.update(_in_use(f"/proc/{name}"))
        return places


class _Tree:
    """A part of the file system under one overlay."""

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.real = os.open(path, os.O_PATH | os.O_DIRECTORY)
        """The directory beneath the overlay."""
        self.lower = f"/proc/self/fd/{self.real}"
        """The directory beneath the layer."""
        self.writable = os.access(path, os.W_OK)
        """True if the command may create entries in the directory itself."""
        self.upper = ""
        self.marked = ""
        """A copy of the layer as it was at the mark; empty if it held nothing."""

    def mount(self, store: str) -> None:
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
        if os.listdir(self.upper):
            self.marked = f"{store}/mark/{self.number}"
            os.mkdir(self.marked)
            copy_layer(self.upper, self.marked)

    def restore(self, kept: set[str], *, empty: bool = False) -> None:
        """Return to the mark, or make the layer `empty`. What is as it was at the mark stays in place. So do the
        directories `kept`, which processes hold: only what is in these goes. The kernel would go on to look for a new
        file's place in the removed one."""
        stays, queue, touched = {""}, [""], []
        while queue:
            inside = queue.pop()
            touched.append(inside)
            for entry in os.scandir(self.upper + inside):
                inner = f"{inside}/{entry.name}"
                if not empty and self._as_marked(inner, entry):
                    stays.add(inner)
                elif not (inner in kept and entry.is_dir(follow_symlinks=False) and not is_opaque(entry.path)):
                    remove_tree(entry.path)
                    continue
                if entry.is_dir(follow_symlinks=False):
                    queue.append(inner)
        if self.marked and not empty:
            copy_layer(self.marked, self.upper, stays)
        for inside in reversed(touched):
            at_mark = inside and self.marked and not empty and os.path.lexists(self.marked + inside)
            seen = os.lstat(self.marked + inside) if at_mark else self.beneath(inside)
            if seen is not None:
                if inside and inside not in stays:
                    os.chmod(self.upper + inside, stat.S_IMODE(seen.st_mode))
                os.utime(self.upper + inside, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        self._forget()

    def turn(self, away: str, back: str, kept: set[str]) -> None:
        """Put what the layer holds into the directory `away`, or throw it away if that is empty, and take what was put
        into `back`, or return to the mark. See `restore` for `kept`."""
        held = bool(os.listdir(self.upper))
        comes = bool(back) and os.path.isdir(f"{back}/{self.number}")
        if held and away:
            self._put_away(f"{away}/{self.number}", kept)
        elif held and comes:
            self.restore(kept, empty=True)
        if comes:
            self._bring_back(f"{back}/{self.number}")
        elif held or (self.marked and not back):
            self.restore(kept, empty=bool(back))

    def _put_away(self, place: str, kept: set[str]) -> None:
        """Move all that the layer holds to `place`, a new directory; of the directories `kept` only what is in them."""
        os.makedirs(place)
        for inside in self._moved(self.upper, place, kept):
            copy_times(self.upper + inside, place + inside)

    def _bring_back(self, place: str) -> None:
        """Move all that was put away to `place` into the layer, which holds nothing but kept directories."""
        there = {inner for inner, _ in self._entries()}
        for inside in self._moved(place, self.upper, there):
            there.discard(inside)
            copy_times(place + inside, self.upper + inside)
        for inner in there:
            seen = self.beneath(inner)
            if seen is not None and os.path.isdir(self.upper + inner):
                os.chmod(self.upper + inner, stat.S_IMODE(seen.st_mode))
                os.utime(self.upper + inner, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        remove_tree(place)
        self._forget()

    def _moved(self, source: str, target: str, stay: set[str]) -> list[str]:
        """Move what is in a directory into another. Directories of the paths `stay` are copied, and what is in them is
        moved. Returns these directories, innermost first, the top ("") last."""
        queue, entered = [""], []
        while queue:
            inside = queue.pop()
            entered.append(inside)
            for entry in os.scandir(source + inside):
                inner = f"{inside}/{entry.name}"
                if inner in stay and entry.is_dir(follow_symlinks=False) and not is_opaque(entry.path):
                    copy_entry(entry.path, target + inner)
                    queue.append(inner)
                    continue
                if inner in stay and os.path.lexists(target + inner):
                    remove_tree(target + inner)
                os.rename(entry.path, target + inner)
        return entered[::-1]

    def _forget(self) -> None:
        """Make the kernel forget what it remembers of the tree."""
        mount(None, self.path, None, mounts.MS_REMOUNT | mounts.MS_NOSUID | mounts.MS_NODEV, None)


def _in_use(process: str) -> Iterator[str]:
    yield os.readlink(f"{process}/cwd")
    for name in os.listdir(f"{process}/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"{process}/fd/{name}")
    for line in content_of(f"{process}/maps").splitlines():
        at = line.find(b"/")
        if at >= 0:
            yield os.fsdecode(line[at : line.rindex(b"/")])


def _ways_to(places: set[str], top: str) -> set[str]:
    """Return the directories on the way from `top` to each of the places below it, as paths from `top`."""
    kept = set()
    for place in places:
        if place.startswith(f"{top}/"):
            inner = place[len(top) :]
            while inner:
                kept.add(inner)
                inner = inner.rpartition("/")[0]
    return kept
