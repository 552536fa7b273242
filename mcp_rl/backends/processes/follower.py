"""A rank other than 0 of a distributed learner: it does what rank 0 asks, and ends with it.

Rank 0 starts it as `python -m mcp_rl.backends.processes.follower RANK`, or torchrun with the command of the run. It
writes no file and prints only errors.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from mcp_rl.backends.base.first import import_first
from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.processes.early import import_early
from mcp_rl.backends.processes.meeting import INVITATION, announced, come, environment_store
from mcp_rl.errors import EngineStop, McpRlError
from mcp_rl.system.processes.devices import device_environment, visible_entries
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch._C._distributed_c10d import Store

    from mcp_rl.backends.processes.launched import Launched
    from mcp_rl.backends.processes.rank import RankLearner

REQUESTS = ("load", "agree", "learn", "gather", "measure", "move")
"""Methods of RankLearner that rank 0 may ask for, after `prepare` and `enter` and before `end`."""
_LOST_STATUS = 3
Message = tuple[Any, ...]


def follow(launched: Launched) -> int:
    """Follow rank 0 in one of torchrun's processes, and exit in here; return the exit code only if rank 0 opened no
    learner. Raises EngineStop if rank 0 cannot be reached."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 acts on them, and this process ends with it
        signal.signal(number, signal.SIG_IGN)
    _see_own_device(launched)
    store = environment_store()
    invitation = announced(store)
    if invitation is not None:
        _leave(_Follower(invitation, launched.rank, store).serve())
    return 0


def follow_rank(rank: int) -> None:
    """Follow rank 0, wherever torchrun's variables say that it is, with the devices that this process sees.

    If rank 0 goes away in the middle of work, this process exits.
    """
    store = environment_store()
    invitation = announced(store)
    if invitation is not None:
        import_early()
        _Follower(invitation, rank, store).serve()


def _leave(status: int) -> NoReturn:
    """Exit at once: threads of torch.distributed in C++ code would abort an interpreter that shuts down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _see_own_device(launched: Launched) -> None:
    """Make this process see only the GPU with its local rank."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None or visible_entries(given):  # else there are no GPUs, and CPUs learn
        os.environ.update(device_environment([launched.local_rank]))


class _Follower:
    """A rank and its connection to rank 0."""

    def __init__(self, invitation: str, rank: int, store: Store | None = None) -> None:
        self._rank, self._store = rank, store
        self._connection: Connection = come(invitation, rank)
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._busy = False
        """True while a request is not answered yet."""
        self._learner: RankLearner | None = None

    def serve(self) -> int:
        """Do what rank 0 asks until it sends `end`; return the exit code. Raises EngineStop if rank 0 is gone."""
        threading.Thread(target=self._read, name="mcp-rl-requests", daemon=True).start()
        while (message := self._messages.get()) is not None and message[0] != "end":
            try:
                self._do(*message)
                failure = None
            except Exception as error:
                from mcp_rl.backends.processes.rank import failure_of

                if not isinstance(error, McpRlError):
                    print(without_secrets(traceback.format_exc()), file=sys.stderr, flush=True)
                failure = failure_of(error)
            self._busy = False
            try:
                self._connection.send(failure)
            except OSError:
                message = None
                break
        if self._learner is not None:
            self._learner.leave()
        if message is None:
            raise EngineStop(f"Learner {self._rank} ends: learner 0 is gone.")
        return 0

    def _read(self) -> None:
        """Read requests. If rank 0 goes away during work, exit: the tensors that this rank waits for may never come."""
        try:
            while True:
                message = self._connection.recv()
                self._busy = message[0] != "end"
                self._messages.put(message)
        except (EOFError, OSError):
            if self._busy:
                print(f"Learner {self._rank} ends at once: learner 0 is gone.", file=sys.stderr, flush=True)
                os._exit(_LOST_STATUS)
            self._messages.put(None)
        except Exception:  # such as a class that another version of a package does not have
            print(without_secrets(traceback.format_exc()), file=sys.stderr, flush=True)
            os._exit(_LOST_STATUS)

    def _do(self, call: str, *arguments: Any) -> None:
        if call == "prepare":
            self._prepare(*arguments)
        elif call == "enter" and self._learner is not None:
            self._enter(self._learner, *arguments)
        elif call in REQUESTS and self._learner is not None:
            getattr(self._learner, call)(*arguments)
        else:
            raise EngineStop(f"Learner {self._rank} was asked for {call!r}, which it cannot do now.")

    def _prepare(self, told: str, sampled: bool, device: str) -> None:
        """Do everything that can fail in one rank alone, before all wait for each other."""
        settings = LocalSettings.model_validate_json(told)
        import_first(False if sampled else settings.unsloth.use)
        from mcp_rl.backends.processes.rank import RankLearner, own_device

        if (own := own_device().type) != device:
            raise EngineStop(
                f"Learner {self._rank} would learn on {own}, and learner 0 on {device}: each needs a GPU of its own, "
                "or all learn on CPUs; CUDA_VISIBLE_DEVICES says what they see."
            )
        self._learner = RankLearner(settings, on_base=_without_engine if sampled else None)

    def _enter(self, learner: RankLearner, size: int, where: str | None) -> None:
        from torch._C._distributed_c10d import FileStore

        learner.enter(self._rank, size, FileStore(where, size) if where else self._required_store())

    def _required_store(self) -> Store:
        if self._store is None:
            raise EngineStop(f"Learner {self._rank} was told no place to meet.")
        return self._store


def _without_engine(base: object, chat: object) -> None:
    """Do nothing with the base: only rank 0's engine samples."""


def main() -> NoReturn:
    """Follow rank 0, whose invitation is in the environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    invitation = os.environ.pop(INVITATION)
    import_early()
    try:
        status = _Follower(invitation, int(sys.argv[1])).serve()
    except McpRlError as error:
        print(error, file=sys.stderr, flush=True)
        status = _LOST_STATUS
    _leave(status)


if __name__ == "__main__":
    main()
