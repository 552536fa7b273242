"""Runs a watchdog's command in a sandbox of Linux namespaces: it sees the files as they are, and what it writes goes
into a layer of its own, in memory, that can be thrown away while it runs.

`fork_into(control)` is called by `watchdog.py` in place of `os.fork`. Between the watchdog and the command it puts a
*keeper*, the first process of new user, mount, PID and IPC namespaces (and a network namespace with nothing but
loopback, if asked for). The keeper mounts an overlay over each tree of the file system, with the upper directory in a
tmpfs of limited size, makes everything else read-only, starts the command without the capabilities to change any of
this, reaps orphans, and ends with the command; the kernel then kills what is left and frees the layer. Nothing of it
exists outside these namespaces, so nothing can be left behind.

The socket `control` (SOCK_SEQPACKET) carries a message with what is wanted, the fields of `_Wanted` with NULs between
them, then requests of one word, each with one answer: `ok`, `ok` and a word, or `error` and a sentence.

    mark         makes the layer as it is what it is thrown away to
    throw-away   returns the layer to its mark, at first empty; answers `full` if nothing more fitted into it
    changed      answers `yes` if the layer is not as it was at its mark
    freeze       copies the layer into the folder whose descriptor comes with the message

The upper directories are emptied in place, and a remount makes the kernel forget what it remembers of them. So relative
paths from a process's working directory see the fresh state too; a file that a process holds open stays as it was for
that process. `python -I -S sandboxed.py` prints why this machine has no sandbox, or nothing if it has one.

Only a little of the standard library is imported: the watchdog's processes start in 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import stat
import sys
import time

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""Number of the system call clone. `os.fork` cannot make namespaces, and unshare would need a third process."""
_MOUNT_SETATTR = 442
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_AT_RECURSIVE = 0x8000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_LAST_CAPABILITY = 40
_ROOTS_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7}
"""Capabilities of root's command in its user namespace: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID."""
_SPECIAL = ("/proc", "/sys", "/dev", "/run")
_NO_TREES = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
}  # fmt: skip
_MOST_TREES = 64
_DEVICES = ("full", "fuse", "kfd", "null", "random", "tty", "urandom", "zero")
_DEVICE_FAMILIES = ("dri", "nvidia")
_POLITE_SECONDS = 0.4
_COMPARED_BYTES = 2**20
"""Files up to this size are compared by their content too."""
_OPAQUE = "user.overlay.opaque"
_FAILED = 125
"""Exit status if the sandbox could not be made; the reason goes to the control socket and to stderr."""

_libc = ctypes.PyDLL(None, use_errno=True)  # holds the interpreter's lock, so that clone is as safe as fork


class _Wanted:
    """The starter's request, as sent in the first message."""

    def __init__(self, message: bytes) -> None:
        fields = [os.fsdecode(field) for field in message.split(b"\0")]
        self.network = fields[0] == "network"
        self.cwd = fields[1]
        self.bytes = int(fields[2])
        self.bases = fields[3:]
        """Folders of frozen layers, the uppermost first."""


class _Tree:
    """A part of the file system under one overlay."""

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.real = os.open(path, os.O_PATH | os.O_DIRECTORY)
        """The directory beneath the overlay."""
        self.lower = [f"/proc/self/fd/{self.real}"]
        """The directories beneath the layer, the uppermost first."""
        self.writable = os.access(path, os.W_OK)
        """True if the command may create entries in the directory itself."""
        self.upper = ""
        self.marked = ""
        """A copy of the layer as it was at the mark; empty if it held nothing."""

    def mount(self, store: str, bases: list[str]) -> None:
        self.upper, work = f"{store}/upper/{self.number}", f"{store}/work/{self.number}"
        seen = os.stat(self.lower[0])
        mode = stat.S_IMODE(seen.st_mode)
        os.mkdir(self.upper)
        os.mkdir(work)
        with contextlib.suppress(OSError):
            os.chown(self.upper, seen.st_uid, seen.st_gid)
        # Where the owner has no id in the namespace the command owns the layer, and must not gain a right by that.
        os.chmod(self.upper, mode if self.writable else mode & ~0o222)
        os.utime(self.upper, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        for number, base in enumerate(bases):
            if os.path.isdir(base + self.path):  # copied, as an overlay takes no directory that is within another
                lower = f"{store}/base/{number}.{self.number}"
                _copy_entry(base + self.path, lower)
                _copy_layer(base + self.path, lower)
                self.lower.insert(-1, lower)
        below = ":".join(self.lower)
        _mount("overlay", self.path, "overlay", _MS_NOSUID | _MS_NODEV,
               f"lowerdir={below},upperdir={self.upper},workdir={work},userxattr")  # fmt: skip

    def changed(self) -> bool:
        """Return whether the layer holds anything else than at the mark."""
        for inner, entry in self._entries():
            if entry.is_dir(follow_symlinks=False):
                if not self._as_marked(inner, entry) and not self._as_beneath(inner, entry):
                    return True
            elif not self._as_marked(inner, entry):
                return True
        return bool(self.marked) and any(not os.path.lexists(self.upper + inner) for inner, _ in _walk(self.marked))

    def _entries(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        return _walk(self.upper)

    def _as_marked(self, inner: str, entry: os.DirEntry[str]) -> bool:
        """Return whether an entry of the layer is as it was at the mark."""
        if not self.marked:
            return False
        try:
            now, then = os.lstat(entry.path), os.lstat(self.marked + inner)
        except FileNotFoundError:
            return False
        if now.st_mode != then.st_mode or _opaque(entry.path) != _opaque(self.marked + inner):
            return False
        if stat.S_ISLNK(now.st_mode):
            return os.readlink(entry.path) == os.readlink(self.marked + inner)
        if not stat.S_ISREG(now.st_mode):
            return True
        if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            return False
        # The clock of files has ticks of some milliseconds.
        return now.st_size > _COMPARED_BYTES or _content(entry.path) == _content(self.marked + inner)

    def _as_beneath(self, inner: str, entry: os.DirEntry[str]) -> bool:
        """Return whether a directory of the layer is there only for what is in it."""
        beneath = self.beneath(inner)
        return beneath is not None and beneath.st_mode == os.lstat(entry.path).st_mode and not _opaque(entry.path)

    def beneath(self, inner: str) -> os.stat_result | None:
        """Return what is known of the directory at `inner` beneath the layer."""
        for lower in self.lower:
            with contextlib.suppress(OSError):
                found = os.lstat(lower + inner)
                return found if stat.S_ISDIR(found.st_mode) else None
        return None

    def mark(self, store: str) -> None:
        """Make the layer as it is now what `restore` returns to."""
        if self.marked:
            _remove_tree(self.marked)
        self.marked = ""
        if os.listdir(self.upper):
            self.marked = f"{store}/mark/{self.number}"
            os.mkdir(self.marked)
            _copy_layer(self.upper, self.marked)

    def restore(self, kept: set[str]) -> None:
        """Return to the mark. What is as it was stays in place, and so do the directories `kept`, in which processes
        work: only what is in these goes."""
        stays, queue, touched = {""}, [""], []
        while queue:
            inside = queue.pop()
            touched.append(inside)
            for entry in os.scandir(self.upper + inside):
                inner = f"{inside}/{entry.name}"
                if self._as_marked(inner, entry):
                    stays.add(inner)
                elif not (inner in kept and entry.is_dir(follow_symlinks=False) and not _opaque(entry.path)):
                    _remove_tree(entry.path)
                    continue
                if entry.is_dir(follow_symlinks=False):
                    queue.append(inner)
        if self.marked:
            _copy_layer(self.marked, self.upper, stays)
        for inside in reversed(touched):
            seen = self.beneath(inside)
            if seen is not None:
                if inside and inside not in stays:
                    os.chmod(self.upper + inside, stat.S_IMODE(seen.st_mode))
                os.utime(self.upper + inside, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        _mount(None, self.path, None, _MS_REMOUNT | _MS_NOSUID | _MS_NODEV, None)


def fork_into(control: int) -> int:
    """Fork like `os.fork`, into a sandbox: return 0 in the process that becomes the command, in the caller the keeper's
    process id. The keeper's exit status is the command's. Raises OSError."""
    os.set_inheritable(control, False)
    channel = socket.socket(fileno=control)
    wanted = _Wanted(channel.recv(65536))
    mapped, go = os.pipe()
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | (_NEWNET if wanted.network else 0)
    keeper: int = _libc.syscall(_CLONE[os.uname().machine], flags | signal.SIGCHLD, 0, 0, 0, 0)
    if keeper < 0:
        problem = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        channel.send(f"error {_reason(problem)}".encode())
        raise problem
    if keeper:
        os.close(mapped)
        try:
            _map_ids(keeper)
            os.write(go, b"!")
        except OSError as error:  # the keeper ends
            channel.send(f"error {_reason(error)}".encode())
        os.close(go)
        channel.close()
        return keeper
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(go)
    if not os.read(mapped, 1):
        os._exit(_FAILED)  # the watchdog is gone already
    os.close(mapped)
    return _keep(channel, wanted)


def _keep(channel: socket.socket, wanted: _Wanted) -> int:
    """Be the first process of the new namespaces; return only in its child, which becomes the command."""
    inherited = [int(name) for name in os.listdir("/proc/self/fd")]
    try:
        layer = _Layer(wanted)
        wakeup = _wake_on_children()
        command = os.fork()
        if command == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            _give_up_rights()
            return 0
    except OSError as error:
        channel.send(f"error {_reason(error)}".encode())
        os.write(2, f"no sandbox: {_reason(error)}\n".encode())
        os._exit(_FAILED)
    status = _FAILED
    try:
        _prctl(_PR_SET_DUMPABLE, 0)
        _let_go_of(inherited, channel.fileno())
        channel.send(b"ok")
        status = os.waitstatus_to_exitcode(_attend(channel, layer, command, wakeup)) % 256
        _end_the_rest()
    finally:
        os._exit(status)


def _attend(channel: socket.socket, layer: _Layer, command: int, wakeup: int) -> int:
    """Answer requests until the command has ended; return its status."""
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    poll.register(channel, select.POLLIN)
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == command:
                    return ended[1]
        for ready, _ in poll.poll():
            if ready == wakeup:
                os.read(wakeup, 4096)
            elif not _answer(channel, layer):
                poll.unregister(channel)


def _answer(channel: socket.socket, layer: _Layer) -> bool:
    """Read a request and answer it; return False if no more will come."""
    message: bytes = b""
    descriptors: list[int] = []
    try:
        message, descriptors, _, _ = socket.recv_fds(channel, 64, 1)
        if not message:
            return False
        answer = layer.do(message.decode(), descriptors)
        channel.send(f"ok {answer}".strip().encode())
    except ConnectionError:
        return False
    except Exception as error:  # an error of ours must not end the command
        with contextlib.suppress(OSError):
            channel.send(f"error {_reason(error)}".encode())
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


class _Layer:
    """All trees of a sandbox, and what lies above them."""

    def __init__(self, wanted: _Wanted) -> None:
        self.cwd = wanted.cwd
        bases = [f"/proc/self/fd/{os.open(base, os.O_PATH | os.O_DIRECTORY)}" for base in wanted.bases]
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE, None)
        if wanted.network:
            _raise_loopback()
        self.trees = [_Tree(path, number) for number, path in enumerate(_trees())]
        devices = os.open("/dev", os.O_PATH)
        _make_read_only("/")
        stage = self.trees[0].path if self.trees else "/dev"
        limits = f"size={wanted.bytes},nr_inodes={wanted.bytes // 8192},mode=700"
        _mount("mcp-rl", stage, "tmpfs", _MS_NOSUID, limits)  # soon hidden by an overlay
        self.store = f"/proc/self/fd/{os.open(stage, os.O_PATH)}"
        for name in ("upper", "work", "mark", "base", "dev", "dev/shm", "dev/pts"):
            os.mkdir(f"{self.store}/{name}")
        self.shared_memory = f"{self.store}/dev/shm"
        self.shared_at_mark: set[str] = set()
        _fresh_proc()
        for tree in self.trees:
            try:
                tree.mount(self.store, bases)
            except OSError as error:
                if bases or _below(self.cwd, (tree.path,)):
                    raise
                tree.upper = ""
                os.write(2, f"{tree.path} is read-only in the sandbox: {_reason(error)}\n".encode())
        self.trees = [tree for tree in self.trees if tree.upper]
        _mount_devices(self.store, f"/proc/self/fd/{devices}")
        os.chmod(self.store, 0o711)
        with contextlib.suppress(OSError):
            os.chdir(self.cwd)

    def do(self, request: str, descriptors: list[int]) -> str:
        """Carry out a request and return the answer."""
        if request == "mark":
            for tree in self.trees:
                tree.mark(self.store)
            self.shared_at_mark = set(os.listdir(self.shared_memory))
            return ""
        if request == "throw-away":
            return self.throw_away()
        if request == "changed":
            changed = any(tree.changed() for tree in self.trees)
            return "yes" if changed or set(os.listdir(self.shared_memory)) != self.shared_at_mark else "no"
        if request == "freeze":
            for tree in self.trees:
                _freeze(tree, f"/proc/self/fd/{descriptors[0]}")
            return ""
        raise ValueError(f"unknown request {request}")

    def throw_away(self) -> str:
        room = os.statvfs(self.store)
        full = "full" if not room.f_bavail or not room.f_favail else ""
        places = self._working_directories()
        for tree in self.trees:
            if os.listdir(tree.upper) or tree.marked:
                tree.restore(_ways_to(places, tree.path))
        for name in set(os.listdir(self.shared_memory)) - self.shared_at_mark:
            _remove_tree(f"{self.shared_memory}/{name}")
        return full

    def _working_directories(self) -> set[str]:
        places = {self.cwd}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    places.add(os.readlink(f"/proc/{name}/cwd"))
        return places


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


def _opaque(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    return False


def _remove_tree(path: str) -> None:
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


def _freeze(tree: _Tree, folder: str) -> None:
    """Copy a tree's layer to the tree's own path below `folder`."""
    if os.listdir(tree.upper):
        at = folder
        for part in tree.path.strip("/").split("/"):
            at = f"{at}/{part}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(at)
        _copy_layer(tree.upper, at)


def _copy_layer(source: str, target: str, there: set[str] | None = None) -> None:
    """Copy what a layer holds, with the marks of what it deletes, except for the entries that are `there` already."""
    for inner, entry in _walk(source):
        if there is None or inner not in there:
            _copy_entry(entry.path, target + inner)


def _walk(top: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all that is below `top`, parents first: its path from `top`, and its entry."""
    queue = [""]
    while queue:
        inside = queue.pop()
        for entry in os.scandir(top + inside):
            inner = f"{inside}/{entry.name}"
            yield inner, entry
            if entry.is_dir(follow_symlinks=False):
                queue.append(inner)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _copy_entry(source: str, target: str) -> None:
    seen = os.lstat(source)
    mode = stat.S_IMODE(seen.st_mode)
    if stat.S_ISDIR(seen.st_mode):
        with contextlib.suppress(FileExistsError):
            os.mkdir(target)
        if _opaque(source):
            os.setxattr(target, _OPAQUE, b"y")
    elif stat.S_ISLNK(seen.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(seen.st_mode):
        with open(source, "rb") as reading, open(target, "wb") as writing:
            while os.sendfile(writing.fileno(), reading.fileno(), None, 2**24):
                pass
    elif stat.S_ISCHR(seen.st_mode) and seen.st_rdev == 0:
        os.mknod(target, stat.S_IFCHR, 0)  # says that the file is deleted
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


def _trees() -> list[str]:
    """Return the directories to put overlays over, parents first.

    An overlay does not show the mounts inside of its tree, and the kernel refuses one over a tree with mounts that
    another user made. A directory with mounts in it is therefore divided into its directories; itself it is read-only.
    """
    kinds = {}
    for line in _content("/proc/self/mountinfo").splitlines():
        words = line.split()
        path = os.fsdecode(words[4].replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\134", b"\\"))
        kinds[path] = "ro" if b"ro" in words[5].split(b",") else os.fsdecode(words[words.index(b"-") + 1])
    mounts = [path for path in kinds if not _below(path, _SPECIAL)]
    found: list[str] = []
    queue = ["/", *(path for path in mounts if path != "/" and os.path.isdir(path))]
    seen = set()
    for path in queue:
        kind = kinds.get(path)
        if path in seen or _below(path, _SPECIAL) or not os.access(path, os.R_OK | os.X_OK):
            continue
        if kind == "ro" or kind in _NO_TREES:
            continue
        seen.add(path)
        inside = "/" if path == "/" else f"{path}/"
        if not any(other.startswith(inside) and other != "/" for other in kinds):
            found.append(path)
            continue
        with contextlib.suppress(OSError):
            queue += sorted(
                entry.path
                for entry in os.scandir(path)
                if entry.path not in kinds and entry.is_dir(follow_symlinks=False)
            )
    return sorted(found[:_MOST_TREES])


def _below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def _fresh_proc() -> None:
    """Show only the processes of the sandbox in /proc; where that is forbidden, as in many containers, the old one
    stays, which shows nothing of the environment of processes outside."""
    with contextlib.suppress(OSError):
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
        if os.getuid() == 0:
            for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
                with contextlib.suppress(OSError):
                    _mount(path, path, None, _MS_BIND | _MS_REC, None)
                    _make_read_only(path)


def _mount_devices(store: str, real: str) -> None:
    """Put a /dev with the harmless devices in place of the machine's."""
    _mount(f"{store}/dev", "/dev", None, _MS_BIND, None)
    for name in os.listdir(real):
        if name in _DEVICES or name.startswith(_DEVICE_FAMILIES):
            with contextlib.suppress(OSError):
                if os.path.isdir(f"{real}/{name}"):
                    os.mkdir(f"/dev/{name}")
                else:
                    os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
                _mount(f"{real}/{name}", f"/dev/{name}", None, _MS_BIND | _MS_REC, None)
    with contextlib.suppress(OSError):
        _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", "/dev/ptmx")
    os.chmod("/dev/shm", 0o1777)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    os.chmod("/dev", 0o755)


def _raise_loopback() -> None:
    import fcntl
    import struct

    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING


def _map_ids(keeper: int) -> None:
    """Give the users of this namespace the same ids in the keeper's: all of them if we may, else ours."""
    for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
        lines = []
        for line in _content(f"/proc/self/{kind}_map").decode().splitlines():
            first, _, count = line.split()
            lines.append(f"{first} {first} {count}\n")
        try:
            _write(f"/proc/{keeper}/{kind}_map", "".join(lines))
        except OSError:
            if kind == "gid":
                _write(f"/proc/{keeper}/setgroups", "deny")
            _write(f"/proc/{keeper}/{kind}_map", f"{own} {own} 1\n")


def _give_up_rights() -> None:
    """Lose, for good, all capabilities; root keeps those with which it is the owner of its users' files."""
    kept = _ROOTS_CAPABILITIES if os.geteuid() == 0 else set()
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in kept:
            _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # capset(2): version 3, this process
    sets = (ctypes.c_uint32 * 6)()
    bits = sum(1 << capability for capability in kept)
    sets[0] = sets[1] = bits
    if _libc.capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "capset")


def _let_go_of(inherited: list[int], spared: int) -> None:
    """Keep no end of the command's pipes: its reader must see their end when the command closes them."""
    for descriptor in inherited:
        if descriptor not in (0, 1, 2, spared):
            with contextlib.suppress(OSError):
                os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def _end_the_rest() -> None:
    """Give what the command started a moment to end; the kernel kills it when this process ends."""
    try:
        os.kill(-1, signal.SIGTERM)
    except ProcessLookupError:
        return
    until = time.monotonic() + _POLITE_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)


def _wake_on_children() -> int:
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return readable


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def _make_read_only(path: str) -> None:
    attributes = _Attributes(1, 0, 0, 0)
    if _libc.syscall(_MOUNT_SETATTR, -100, os.fsencode(path), _AT_RECURSIVE, ctypes.byref(attributes), 32) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _prctl(option: int, value: int) -> None:
    _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _reason(error: BaseException) -> str:
    if not isinstance(error, OSError) or error.errno is None:
        return str(error) or type(error).__name__
    where = f" ({error.filename})" if error.filename else ""
    return f"{os.strerror(error.errno)}{where}"


def _obstacle() -> str:
    """Return why a sandbox cannot be made here; empty if it can: a trial deletes a directory and makes it anew."""
    import tempfile

    if sys.platform != "linux" or os.uname().machine not in _CLONE:
        return "the sandbox needs Linux on x86-64, ARM64 or RISC-V"
    folder = os.path.realpath(tempfile.mkdtemp(prefix="mcp-rl-"))
    ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        os.mkdir(f"{folder}/inner")
        ours.send(b"\0".join((b"files", os.fsencode(folder), b"%d" % 2**24)))
        keeper = fork_into(control.detach())
        if keeper == 0:
            with contextlib.suppress(OSError):
                os.rmdir("inner")
                os.mkdir("inner")
                os.chdir(f"{folder}/inner")
                os._exit(0)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
        said = ours.recv(1000).decode()
        if said.startswith("error "):
            return said.partition(" ")[2]
        return "" if status == 0 else "overlays of this kernel cannot replace a directory"
    except OSError as error:
        return _reason(error)
    finally:
        _remove_tree(folder)


if __name__ == "__main__":
    print(_obstacle())
