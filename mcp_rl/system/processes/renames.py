"""Lets a sandbox's processes rename directories that were there before, which an overlay refuses.

An overlay without privileges renames no directory of its lower layer ("Invalid cross-device link"). A seccomp filter on
the sandbox's command therefore reports each rename to the keeper, which is asked to make the directory the layer's own
and then lets the call go on: the kernel carries it out, with the caller's rights and its own errors. Where the kernel
has no such filters, renames go on as they are.

Like `sandboxed.py`, it imports only a little of the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
import struct

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.system.processes.layer_entries import below
else:
    from layer_entries import below

_ARCHITECTURES = {
    "x86_64": (0xC000003E, 317, {82: 0, 264: 1, 316: 1}),
    "aarch64": (0xC00000B7, 277, {38: 1, 276: 1}),
    "riscv64": (0xC00000F3, 277, {276: 1}),
}
"""The number of the architecture in a filter, that of the system call seccomp, and those of rename (0), and of renameat
and renameat2 (1), whose arguments hold directories too."""
_SET_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 8, 32
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_NOTICE, _RESPONSE = "=QIIiIQ6Q", "=QqiI"
_PAGE, _LONGEST_PATH = 4096, 4096
_HERE, _NO_REPLACE, _EXCHANGE = -100, 1, 2


def report_renames() -> int | None:
    """Have the renames of this process, and of all that it starts, reported at the descriptor that is returned; None
    where the kernel does not do that. It needs "no new privileges", and cannot be undone."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return None
    architecture, seccomp, calls = _ARCHITECTURES[machine]
    steps = [(_LOAD, 0, 0, 4), (_EQUALS, 0, len(calls) + 1, architecture), (_LOAD, 0, 0, 0)]
    steps += [(_EQUALS, len(calls) - at, 0, number) for at, number in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    wanted = struct.pack("@HP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener: int = libc.syscall(seccomp, _SET_FILTER, flags, wanted)
        if listener >= 0:
            return listener
    return None


class ReportedRenames:
    """Answers the renames that are reported at a descriptor, each after `prepare(old)` for a directory `old`."""

    def __init__(self, listener: int, prepare: Callable[[str], None]) -> None:
        self.listener = listener
        self._prepare = prepare

    def answer(self) -> None:
        """Answer one rename, which waits. Its process may have ended meanwhile."""
        notice = bytearray(struct.calcsize(_NOTICE))
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notice)
        except OSError:
            return
        number, process, _, call, _, _, *arguments = struct.unpack(_NOTICE, notice)
        with contextlib.suppress(OSError, ValueError):
            for old in _directories(process, call, arguments):
                self._prepare(old)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.listener, _SEND, struct.pack(_RESPONSE, number, 0, 0, _CONTINUE))


def _directories(process: int, call: int, arguments: list[int]) -> list[str]:
    """Return the directories that a call renames, as absolute paths without links; none if it cannot succeed."""
    takes_places = _ARCHITECTURES[os.uname().machine][2][call]
    if os.readlink(f"/proc/{process}/root") != "/":
        return []
    flags = 0
    if takes_places:
        old_place, old, new_place, new = arguments[:4]
        flags = arguments[4] if call in (316, 276) else 0
    else:
        old_place, old, new_place, new = _HERE & 0xFFFFFFFF, arguments[0], _HERE & 0xFFFFFFFF, arguments[1]
    source, target = _path(process, old_place, old), _path(process, new_place, new)
    if below(target, (source,)) or (flags & _EXCHANGE and below(source, (target,))):
        return []
    if flags & _EXCHANGE:
        return [path for path in (source, target) if _is_directory(path)]
    if not _is_directory(source) or not os.path.isdir(os.path.dirname(target)):
        return []
    if os.path.lexists(target) and (flags & _NO_REPLACE or not _is_directory(target) or os.listdir(target)):
        return []
    return [source]


def _path(process: int, place: int, address: int) -> str:
    """Return the absolute path at an address of a process, with links in all but its last part resolved."""
    path = os.fsdecode(_text(process, address))
    if not path.startswith("/"):
        number = ctypes.c_int32(place & 0xFFFFFFFF).value
        inside = f"/proc/{process}/cwd" if number == _HERE else f"/proc/{process}/fd/{number}"
        path = f"{os.readlink(inside)}/{path}"
    above, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise ValueError(path)
    return f"{os.path.realpath(above or '/').rstrip('/')}/{name}"


def _text(process: int, address: int) -> bytes:
    """Return the bytes at an address of a process up to the first NUL, page by page."""
    found = b""
    memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
    try:
        while len(found) < _LONGEST_PATH:
            at = address + len(found)
            read, end, _ = os.pread(memory, _PAGE - at % _PAGE, at).partition(b"\0")
            found += read
            if end or not read:
                return found
    finally:
        os.close(memory)
    raise ValueError("the path is too long")


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
