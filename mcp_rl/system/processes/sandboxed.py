"""Runs a watchdog's command in a sandbox of Linux namespaces: it sees the files as they are, and what it writes goes
into a layer of its own, in memory, that can be thrown away while it runs.

`fork_into(control)` is called by `watchdog.py` in place of `os.fork`. Between the watchdog and the command it puts a
*keeper*, the first process of new user, mount, PID and IPC namespaces (and a network namespace with nothing but
loopback, if asked for). The keeper mounts an overlay over each tree of the file system, with the upper directory in a
tmpfs of limited size, makes everything else read-only, starts the command without the capabilities to change any of
this, reaps orphans, and ends with the command; the kernel then kills what is left and frees the layer. Nothing of it
exists outside these namespaces, so nothing can be left behind.

The socket `control` (SOCK_SEQPACKET) carries a message with what is wanted, the fields of `_Wanted` with NULs between
them, then requests, some with a file, each with one answer: `ok`, `ok` and a word, or `error` and a sentence.

    mark         makes the layer as it is what it is thrown away to
    throw-away   returns the layer to its mark, at first empty; answers `full` if nothing more fitted into it
    changed      answers `yes` if the layer is not as it was at its mark
    turn A B …   puts the layer away under the number A (`-`: throws it away), and brings back what was put away under B
                 (`-`: returns to the mark); forgets the further numbers before that; answers `full` as `throw-away`
                 does, which forgets all that was put away
    forget A …   forgets what was put away under these numbers
    save N       writes what the layer holds into the file (`layer_archive.py`), unless that is over N bytes: `large`
    load         puts what was saved into the layer

`layered.py` does that work. `python -I -S sandboxed.py` prints why this machine has no sandbox, or nothing if it has
one.

Only a little of the standard library is imported: the watchdog's processes start in 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from mcp_rl.system.processes.layered import Layers
    from mcp_rl.system.processes.mounts import libc, reason
    from mcp_rl.system.processes.renames import ReportedRenames, report_renames
else:
    if not __package__:  # loaded by its path, as by the watchdog
        sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from layered import Layers
    from mounts import libc, reason
    from renames import ReportedRenames, report_renames

_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""Number of the system call clone. `os.fork` cannot make namespaces, and unshare would need a third process."""
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_LAST_CAPABILITY = 40
_ROOTS_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7}
"""Capabilities of root's command in its user namespace: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID."""
_POLITE_SECONDS = 0.4
_FAILED = 125
"""Exit status if the sandbox could not be made; the reason goes to the control socket and to stderr."""


class _Wanted:
    """The starter's request, as sent in the first message."""

    def __init__(self, message: bytes) -> None:
        fields = [os.fsdecode(field) for field in message.split(b"\0")]
        self.network = fields[0] == "network"
        self.cwd = fields[1]
        self.bytes = int(fields[2])


def fork_into(control: int) -> int:
    """Fork like `os.fork`, into a sandbox: return 0 in the process that becomes the command, in the caller the keeper's
    process id. The keeper's exit status is the command's. Raises OSError."""
    os.set_inheritable(control, False)
    channel = socket.socket(fileno=control)
    wanted = _Wanted(channel.recv(65536))
    mapped, go = os.pipe()
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | (_NEWNET if wanted.network else 0)
    keeper: int = libc.syscall(_CLONE[os.uname().machine], flags | signal.SIGCHLD, 0, 0, 0, 0)
    if keeper < 0:
        problem = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        channel.send(f"error {reason(problem)}".encode())
        raise problem
    if keeper:
        os.close(mapped)
        try:
            _map_ids(keeper)
            os.write(go, b"!")
        except OSError as error:  # the keeper ends
            channel.send(f"error {reason(error)}".encode())
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
        if wanted.network:
            _raise_loopback()
        layer = Layers(wanted.cwd, wanted.bytes, sys.argv)
        wakeup = _wake_on_children()
        ours, theirs = socket.socketpair()
        command = os.fork()
        if command == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            _give_up_rights()
            if (listener := report_renames()) is not None:
                socket.send_fds(theirs, [b"!"], [listener])
            ours.close()
            theirs.close()
            return 0
        theirs.close()
        listeners = socket.recv_fds(ours, 1, 1)[1]
        ours.close()
        renames = [ReportedRenames(listener, layer.make_own) for listener in listeners]
    except OSError as error:
        channel.send(f"error {reason(error)}".encode())
        os.write(2, f"no sandbox: {reason(error)}\n".encode())
        os._exit(_FAILED)
    status = _FAILED
    try:
        _prctl(_PR_SET_DUMPABLE, 0)
        _let_go_of(inherited, channel.fileno())
        channel.send(b"ok")
        status = os.waitstatus_to_exitcode(_attend(channel, layer, command, wakeup, renames)) % 256
        _end_the_rest()
    finally:
        os._exit(status)


def _attend(channel: socket.socket, layer: Layers, command: int, wakeup: int, renames: list[ReportedRenames]) -> int:
    """Answer requests until the command has ended; return its status."""
    poll = select.poll()
    reported = {one.listener: one for one in renames}
    for listener in reported:
        poll.register(listener, select.POLLIN)
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
            elif ready in reported:
                reported[ready].answer()
            elif not _answer(channel, layer):
                poll.unregister(channel)


def _answer(channel: socket.socket, layer: Layers) -> bool:
    """Read a request and answer it; return False if no more will come."""
    try:
        message, files, *_ = socket.recv_fds(channel, 4096, 1)
        if not message:
            return False
        try:
            channel.send(f"ok {layer.do(message.decode(), *files)}".strip().encode())
        finally:
            for descriptor in files:
                os.close(descriptor)
    except ConnectionError:
        return False
    except Exception as error:  # an error of ours must not end the command
        with contextlib.suppress(OSError):
            channel.send(f"error {reason(error)}".encode())
    with contextlib.suppress(OSError):  # the next request will say it
        layer.tidy()
    return True


def _raise_loopback() -> None:
    import fcntl
    import struct

    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING


def _map_ids(keeper: int) -> None:
    """Give the users of this namespace the same ids in the keeper's: all of them if we may, else ours."""
    for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
        lines = []
        for line in _read(f"/proc/self/{kind}_map").splitlines():
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
    if libc.capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
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


def _prctl(option: int, value: int) -> None:
    libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _obstacle() -> str:
    """Return why a sandbox cannot be made here; empty if it can: a trial deletes a directory and makes it anew."""
    import shutil
    import tempfile

    if sys.platform != "linux" or os.uname().machine not in _CLONE:
        return "the sandbox needs Linux on x86-64, ARM64 or RISC-V"
    try:
        folder = os.path.realpath(tempfile.mkdtemp(prefix="mcp-rl-"))
    except OSError as error:
        return f"no temporary folder can be made to try one in ({error.strerror})"
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
        return reason(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    print(_obstacle())
