"""Runs one command and leaves nothing of it behind when its starter is gone.

`python -I -S watchdog.py pass|out|null FOLDER RULES SANDBOX COMMAND ARG…` is started in a session of its own. Its
standard input is the lifeline: only the starter holds the other end, so it hangs up when the starter closes it or dies,
however it dies. "pass" hands the same input on to the command (a server on stdio), "out" and "null" give it an empty
one. When the lifeline hangs up, on SIGTERM, and after the command's exit, all descendants of the command are ended:
with "pass" they have a moment to exit by themselves, then comes SIGTERM, then SIGKILL. The resource tracker of
`multiprocessing`, which removes the shared memory of killed processes once they have ended, gets the time for it. On
Linux descendants are found wherever they went, since orphans become children of this process
(PR_SET_CHILD_SUBREAPER), and the command dies with this process (PR_SET_PDEATHSIG); elsewhere the process group is
ended, whose leader the command is. FOLDER, unless it is empty, is removed at the end. SANDBOX, unless it is empty, is
the descriptor of a socket to a sandbox that the command runs in (`sandboxed.py`).

The command's stderr ("null": and stdout) is copied to our own stderr, a file: all of it up to a limit, and of the rest
only the last part, so a server that floods it for days fills no disk. RULES is the descriptor of a pipe with the rules
of `redaction.py` as JSON, or empty: no secret reaches the file. Only a little of the standard library is imported, so
it starts in 20 ms.
"""

import contextlib
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

_POLITE_SECONDS = 0.4
"""Time to exit by itself after its input closed, and again after SIGTERM."""
_CHECK_SECONDS = 2.0
"""Interval at which the starter is looked for, in case another process holds the lifeline too."""
_TRACKER = b"multiprocessing.resource_tracker"
"""The process that removes what others left in shared memory; it exits by itself when they have ended."""
_KILLS_WITHOUT_TRACKERS = 40
"""Rounds of SIGKILL that spare the tracker, one every 0.05 seconds."""
_HEAD_BYTES = 2**19
_TAIL_BYTES = 2**17
"""Bytes of a log that are kept: so many of its beginning, and at least so many of its end."""
_LONGEST_LINE, _LONGEST_SECRET = 2**14, 2**12
"""Bytes of a line that wait for its end, and how many of them wait for more if it is longer."""
_LINE_SECONDS = 0.3
"""Time that the beginning of a line waits for its end."""
_HAS_PROC = os.path.isdir("/proc/self")  # noqa: PTH112 - importing pathlib takes as long as all of this
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


def main() -> int:
    mode, folder, rules, sandbox, *command = sys.argv[1:]
    starter = os.getppid()
    known = _read_all(int(rules)) if rules else b"[]"
    wakeup = _wake_on_signals()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    reading, writing = os.pipe()
    child = _fork_into(int(sandbox)) if sandbox else os.fork()
    if child == 0:
        os.dup2(writing, 2)
        if mode == "null":
            os.dup2(writing, 1)
        _become(command, mode)
    os.close(writing)
    _prctl(_PR_SET_DUMPABLE, 0)  # what is known of secrets is not for the command to read in our memory
    if mode != "null":
        os.dup2(2, 1)  # only the command may hold the output, or its end would never be seen
    log = _Log(reading, known)
    try:
        status = _wait(child, wakeup, starter, log, mode)
        if status is None and mode == "pass":
            status = _gone_within(child, _POLITE_SECONDS, log)
        status = _end_all(child, status, log)
        log.copy()
        log.flush()
    finally:
        if folder:
            _remove(folder)
    return status


def _read_all(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()


class _Log:
    """Copies a pipe to our stderr without secrets, line by line, up to a limit."""

    def __init__(self, source: int, rules: bytes) -> None:
        self.source = source
        self.ended = False
        self.begun = b""
        """The beginning of a line whose end is awaited, since a secret may be cut in two."""
        self._known = rules
        self._rules: list[tuple[bytes, re.Pattern[bytes], bytes]] | None = None
        os.set_blocking(source, False)
        self._room = _HEAD_BYTES
        self._end: int | None = None
        """Position in the file at which the kept beginning ends; None until something is left out."""
        self._tail = bytearray()
        self._left_out = 0

    def copy(self) -> None:
        """Copy what is there now, but no more than a pipe holds, so that a flood does not delay other work."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):
                if not (data := os.read(self.source, 65536)):
                    self.ended = True
                    return
                data = self.begun + data
                end = max(data.rfind(b"\n") + 1, len(data) - _LONGEST_SECRET if len(data) > _LONGEST_LINE else 0)
                self.begun = data[end:]
                self._keep(self._redacted(data[:end]))

    def flush(self) -> None:
        """Copy the beginning of a line too."""
        data, self.begun = self.begun, b""
        self._keep(self._redacted(data))

    def _redacted(self, data: bytes) -> bytes:
        if data and self._rules is None:
            import json
            import re

            rules = [[part.encode() for part in rule] for rule in json.loads(self._known)]
            self._rules = [(trigger, re.compile(pattern), new) for trigger, pattern, new in rules]
        for trigger, pattern, new in self._rules or ():
            if trigger in data:
                data = pattern.sub(new, data)
        return data

    def _keep(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk is no reason to end a server
            if self._end is None and len(data) <= self._room:
                self._room -= len(data)
                os.write(2, data)
            else:
                self._keep_last(data)

    def _keep_last(self, data: bytes) -> None:
        if self._end is None:
            self._end = os.fstat(2).st_size
        self._tail += data
        if len(self._tail) <= 2 * _TAIL_BYTES:
            os.write(2, data)
            return
        self._left_out += len(self._tail) - _TAIL_BYTES
        del self._tail[:-_TAIL_BYTES]
        os.ftruncate(2, self._end)
        os.write(2, b"\n[%d bytes left out]\n" % self._left_out + self._tail)


def _fork_into(control: int) -> int:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    from sandboxed import fork_into  # type: ignore[import-not-found]

    forked: int = fork_into(control)
    return forked


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _wake_on_signals() -> int:
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _note)
    return readable


_asked_to_stop = False


def _note(number: int, frame: object) -> None:
    global _asked_to_stop
    _asked_to_stop = _asked_to_stop or number != signal.SIGCHLD


def _become(command: list[str], mode: str) -> None:
    try:
        if mode != "pass":
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if not _HAS_PROC:
            os.setpgid(0, 0)
        watchdog = os.getppid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != watchdog:
            os._exit(1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _wait(child: int, wakeup: int, starter: int, log: _Log, mode: str) -> int | None:
    """Wait until the command ends, and return its status, or until it has to be ended, and return None."""
    poll = select.poll()
    # Linux always reports a hang-up. Darwin reports one only if it is asked for some event, and then reports every byte
    # that the command has not read yet.
    poll.register(0, 0 if mode == "pass" else select.POLLHUP)
    poll.register(wakeup, select.POLLIN)
    poll.register(log.source, select.POLLIN)
    while True:
        if (status := _reap(child)) is not None:
            return status
        if _asked_to_stop or os.getppid() != starter:
            return None
        events = dict(poll.poll((_LINE_SECONDS if log.begun else _CHECK_SECONDS) * 1000))
        if not events:
            log.flush()
        if events.get(0):
            return None
        if wakeup in events:
            os.read(wakeup, 4096)
        if log.source in events:
            log.copy()
            if log.ended:
                poll.unregister(log.source)


def _reap(child: int) -> int | None:
    """Collect all ended children; return the command's status if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = ended[1]
    return found


def _end_all(child: int, status: int | None, log: _Log) -> int:
    """End all that is left; return the exit status for this process."""
    if _descendants(child):
        _signal_all(child, signal.SIGTERM)
        ended = _gone_within(child, _POLITE_SECONDS, log)
        status = ended if ended is not None else status
    for kills in range(100):  # a process that forks faster than this would need a cgroup
        if not _descendants(child):
            break
        _signal_all(child, signal.SIGKILL, spared=_TRACKER if kills < _KILLS_WITHOUT_TRACKERS else None)
        ended = _gone_within(child, 0.05, log)
        status = ended if ended is not None else status
    return os.waitstatus_to_exitcode(status) % 256 if status is not None else 0


def _gone_within(child: int, seconds: float, log: _Log) -> int | None:
    """Wait until nothing is left; return the command's status if it ended meanwhile."""
    status = None
    deadline = time.monotonic() + seconds
    while True:
        reaped = _reap(child)
        status = reaped if reaped is not None else status
        log.copy()
        if not _descendants(child) or time.monotonic() >= deadline:
            return status
        time.sleep(0.01)


def _signal_all(child: int, number: int, *, spared: bytes | None = None) -> None:
    """Send a signal to all descendants except those whose command line holds `spared`; without a /proc, to all."""
    if not _HAS_PROC:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, number)
        return
    for pid in _descendants(child):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if spared is None or spared not in _command_line(pid):
                os.kill(pid, number)


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as words:  # noqa: PTH123
        return words.read()
    return b""


def _descendants(child: int) -> list[int]:
    """Return the descendants of this process, unreaped ones included; without a /proc, the command if it or another
    process of its group lives."""
    if not _HAS_PROC:
        for asked in (os.killpg, os.kill):  # the command may not have made its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                asked(child, 0)
                return [child]
        return []
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                parent = stat.read().rpartition(b")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
