"""A rank other than 0: it does what rank 0 asks, and ends with it.

Started by rank 0 as `python -m mcp_rl.backends.follower RANK`, or by torchrun with the command of the run. It writes no
file and prints nothing but errors.
"""

import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from mcp_rl.backends.early import UNSLOTH, import_early
from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.launched import Launched
from mcp_rl.backends.loading.first import import_first
from mcp_rl.backends.meeting import INVITATION, announced, come, environment_store
from mcp_rl.boundary import without_secrets
from mcp_rl.errors import EngineStop, McpRlError
from mcp_rl.hardware.gpus import device_environment, visible_entries

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from mcp_rl.backends.ranked import RankedLearner

REQUESTS = ("load", "agree", "learn", "gather", "measure")
"""What rank 0 may ask for: methods of RankedLearner. Before them come `prepare` and `enter`, after them `end`."""
_LOST_STATUS = 3
Message = tuple[Any, ...]


def follow(launched: Launched) -> int:
    """As one of torchrun's processes, which ends in here; where there was nothing to follow, the exit code is returned.
    Raises EngineStop where rank 0 cannot be reached."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 decides what they mean, and then we end with it
        signal.signal(number, signal.SIG_IGN)
    _see_own_device(launched)
    store = environment_store()
    invitation = announced(store)
    if invitation is not None:
        _leave(_Follower(invitation, launched.rank, store).serve())
    return 0


def _leave(status: int) -> NoReturn:
    """End this process at once: threads of torch.distributed that are still in its C++ code when the interpreter takes
    itself down would abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _see_own_device(launched: Launched) -> None:
    """Of the GPUs of this machine, the one with our number: threads of ours that come later see it as their first."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None or visible_entries(given):  # else there are none, and CPUs learn
        os.environ.update(device_environment([launched.local_rank]))


class _Follower:
    """One rank and its connection to rank 0."""

    def __init__(self, invitation: str, rank: int, store: "Store | None" = None) -> None:
        self._rank, self._store = rank, store
        self._connection: Connection = come(invitation, rank)
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._busy = False
        """Whether something that was asked for is not answered yet."""
        self._learner: RankedLearner | None = None

    def serve(self) -> int:
        """Until rank 0 wants no more."""
        threading.Thread(target=self._read, name="mcp-rl-requests", daemon=True).start()
        while (message := self._messages.get()) is not None and message[0] != "end":
            try:
                self._do(*message)
                failure = None
            except Exception as error:
                from mcp_rl.backends.ranked import failure_of

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
            raise EngineStop(f"Learner {self._rank} ends: learner 0, whom it follows, is gone.")
        return 0

    def _read(self) -> None:
        """Where rank 0 goes while we are at work, what we wait for may never come."""
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
        """Everything that can fail in one rank alone, before all wait for each other."""
        settings = LocalSettings.model_validate_json(told)
        import_first(False if sampled else settings.unsloth.use)
        from mcp_rl.backends.ranked import RankedLearner, own_device

        if (own := own_device().type) != device:
            raise EngineStop(
                f"Learner {self._rank} would learn on {own}, and learner 0 on {device}: each needs a GPU of its own, "
                "or all learn on CPUs; CUDA_VISIBLE_DEVICES says what they see."
            )
        self._learner = RankedLearner(settings, on_base=_not_here if sampled else None)

    def _enter(self, learner: "RankedLearner", size: int, where: str | None) -> None:
        from torch._C._distributed_c10d import FileStore

        learner.enter(self._rank, size, FileStore(where, size) if where else self._required_store())

    def _required_store(self) -> "Store":
        if self._store is None:
            raise EngineStop(f"Learner {self._rank} was told no place to meet.")
        return self._store


def _not_here(base: object, chat: object) -> None:
    """Rank 0's engine samples."""


def main() -> NoReturn:
    """Started by rank 0, which puts its invitation into our environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    invitation = os.environ.pop(INVITATION)
    import_early({"0": False, "1": True}.get(os.environ.get(UNSLOTH, "")))
    try:
        status = _Follower(invitation, int(sys.argv[1])).serve()
    except McpRlError as error:
        print(error, file=sys.stderr, flush=True)
        status = _LOST_STATUS
    _leave(status)


if __name__ == "__main__":
    main()
