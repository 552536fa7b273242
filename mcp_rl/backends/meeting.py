"""How learners in several processes find each other, and what carries rank 0's requests and the others' answers.

Messages go between Python processes of one user and prove that they know a key which is made for each start
(`multiprocessing.connection`). On one machine they go through a socket in a folder that nobody else may enter, so no
port is open; over several machines, where torchrun started us, through a port of the first. torch.distributed, which
carries tensors, meets in a file of that folder or in torchrun's store.
"""

import functools
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.launched import Launched
from mcp_rl.errors import EngineStop

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

INVITATION = "MCP_RL_LEARNERS"
"""Variable with where rank 0 is, for a process that it starts."""
JOIN_SECONDS = 300.0
"""For all processes to be there: they are importing torch."""
_ANNOUNCED = "mcp_rl/invitation"
_LONGEST_WAIT = timedelta(days=2)
"""For rank 0 to open its learner, which comes after the tool server was explored. torchrun ends us where it ends."""


class Meeting:
    """Rank 0's side: where the others come to."""

    def __init__(self, size: int, *, host: str | None = None) -> None:
        """`host`: where the others are on other machines too, the name by which they know this one."""
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="mcp_rl_learners_"))
        self._key = secrets.token_bytes(32)
        self._socket = socket.socket(socket.AF_UNIX if host is None else socket.AF_INET)
        self._socket.bind(str(self.folder / "meeting") if host is None else (host, 0))
        self._socket.listen(size)
        self._socket.settimeout(0.2)

    @property
    def invitation(self) -> str:
        """What the others must be told, and nobody else."""
        return json.dumps([self._socket.getsockname(), self._key.hex()])

    def wait(self, seconds: float, check: Callable[[], None]) -> dict[int, Connection]:
        """Connections to the others, by rank, when all are there. `check` is called meanwhile, and raises where there
        is nothing to wait for any more. Raises EngineStop where they do not come in time."""
        found: dict[int, Connection] = {}
        end = time.monotonic() + seconds
        while len(found) < self.size - 1:
            check()
            if time.monotonic() > end:
                missing = [str(rank) for rank in range(1, self.size) if rank not in found]
                raise EngineStop(f"Learners {', '.join(missing)} of {self.size} did not come within {seconds:.0f} s.")
            try:
                accepted, _ = self._socket.accept()
                accepted.setblocking(True)
                connection = Connection(accepted.detach())
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                found[int(connection.recv())] = connection
            except (TimeoutError, AuthenticationError, EOFError, ConnectionError):
                continue
        return found

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def come(invitation: str, rank: int) -> Connection:
    """The other side: a connection to rank 0. Raises EngineStop where it cannot be reached."""
    address, key = json.loads(invitation)
    try:
        connection = Client(tuple(address) if isinstance(address, list) else address, authkey=bytes.fromhex(key))
        connection.send(rank)
        return connection
    except (OSError, EOFError, AuthenticationError) as error:
        raise EngineStop(f"Learner {rank} cannot reach learner 0: {error}.") from error


@functools.cache
def environment_store() -> "Store":
    """The store that torchrun's processes share."""
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", timeout=_LONGEST_WAIT))
    return PrefixStore("mcp_rl", store)


def announce(store: "Store", invitation: str | None) -> None:
    """Tell torchrun's other processes where rank 0 waits for them; None: there is nothing to do for them."""
    store.set(_ANNOUNCED, invitation or "")


def announced(store: "Store") -> str | None:
    """Wait for `announce`."""
    store.wait([_ANNOUNCED], _LONGEST_WAIT)
    return store.get(_ANNOUNCED).decode() or None


@contextmanager
def dismissing() -> Iterator[None]:
    """In rank 0, around all that it does: where it never opens a learner, torchrun's other processes still end."""
    try:
        yield
    finally:
        with suppress(RuntimeError):  # where torchrun was killed its store is gone, and nobody waits there
            announce(environment_store(), None)


def host_for(launched: Launched, environment: Mapping[str, str] = os.environ) -> str | None:
    """This machine's name for processes on others; None where all are here."""
    return None if launched.local_size == launched.size else environment["MASTER_ADDR"]


def send_all(connections: Mapping[int, Connection], message: Any) -> int | None:
    """Send one message to all; the rank of one that is gone, or None."""
    import pickle

    content = pickle.dumps(message)
    for rank, connection in connections.items():
        try:
            connection.send_bytes(content)
        except OSError:
            return rank
    return None
