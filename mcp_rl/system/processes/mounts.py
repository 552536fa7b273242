"""Mounts that a sandbox's keeper makes in its own namespaces: the trees to put overlays over, /proc and /dev.

Only a little of the standard library is imported: the watchdog's processes start in 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.system.processes.layer_entries import below, content_of
else:
    from layer_entries import below, content_of

_MOUNT_SETATTR = 442
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_AT_RECURSIVE = 0x8000
_SPECIAL = ("/proc", "/sys", "/dev", "/run")
_NO_TREES = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
}  # fmt: skip
_MOST_TREES = 64
_DEVICES = ("full", "fuse", "kfd", "null", "random", "tty", "urandom", "zero")
_DEVICE_FAMILIES = ("dri", "nvidia")

libc = ctypes.PyDLL(None, use_errno=True)  # holds the interpreter's lock, so that clone is as safe as fork


def overlaid_trees(needed: Sequence[str]) -> list[str]:
    """Return the directories to put overlays over, parents first; of too many, rather those that hold a path `needed`.

    An overlay does not show the mounts inside of its tree, and the kernel refuses one over a tree with mounts that
    another user made. A directory with mounts in it is therefore divided into its directories; itself it is read-only.
    """
    kinds = {}
    for line in content_of("/proc/self/mountinfo").splitlines():
        words = line.split()
        path = os.fsdecode(words[4].replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\134", b"\\"))
        kinds[path] = "ro" if b"ro" in words[5].split(b",") else os.fsdecode(words[words.index(b"-") + 1])
    mounts = [path for path in kinds if not below(path, _SPECIAL)]
    found: list[str] = []
    queue = ["/", *(path for path in mounts if path != "/" and os.path.isdir(path))]
    seen = set()
    for path in queue:
        kind = kinds.get(path)
        if path in seen or below(path, _SPECIAL) or not os.access(path, os.R_OK | os.X_OK):
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
    found.sort(key=lambda top: not any(below(path, (top,)) for path in needed))
    return sorted(found[:_MOST_TREES])


def fresh_proc() -> None:
    """Mount a /proc that shows only the sandbox's processes; where that is forbidden, as in many containers, the old
    one stays, which hides the environment of outside processes."""
    with contextlib.suppress(OSError):
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
        if os.getuid() == 0:
            for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
                with contextlib.suppress(OSError):
                    mount(path, path, None, MS_BIND | MS_REC, None)
                    make_read_only(path)


def mount_devices(store: str, real: str) -> None:
    """Replace the machine's /dev by one with harmless devices."""
    mount(f"{store}/dev", "/dev", None, MS_BIND, None)
    for name in os.listdir(real):
        if name in _DEVICES or name.startswith(_DEVICE_FAMILIES):
            with contextlib.suppress(OSError):
                if os.path.isdir(f"{real}/{name}"):
                    os.mkdir(f"/dev/{name}")
                else:
                    os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
                mount(f"{real}/{name}", f"/dev/{name}", None, MS_BIND | MS_REC, None)
    with contextlib.suppress(OSError):
        mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", "/dev/ptmx")
    os.chmod("/dev/shm", 0o1777)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    os.chmod("/dev", 0o755)


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def make_read_only(path: str) -> None:
    attributes = _Attributes(1, 0, 0, 0)
    if libc.syscall(_MOUNT_SETATTR, -100, os.fsencode(path), _AT_RECURSIVE, ctypes.byref(attributes), 32) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def reason(error: BaseException) -> str:
    """Describe an error, with the file that it names."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error) or type(error).__name__
    where = f" ({error.filename})" if error.filename else ""
    return f"{os.strerror(error.errno)}{where}"
