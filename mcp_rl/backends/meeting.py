"""How learners in several processes find each other, and what carries rank 0's requests and the others' answers.

Messages go between Python processes of one user and prove that they know a key which is made for each start
(`multiprocessing.connection`); nothing is unpickled before that. On one machine they go through a socket in a folder
that nobody else may enter, so no port is open; over several machines, where torchrun started us, through a port of the
first, until all are there. torch.distributed, which carries tensors, meets in a file of that folder or in torchrun's
store.
"""

import functools
import json
import os
import secrets
import socket
import stat
import struct
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
from mcp_rl.processes.held_folder import HeldFolder

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

INVITATION = "MCP_RL_LEARNERS"
"""Variable with where rank 0 is, for a process that it starts."""
JOIN_SECONDS = 300.0
"""For all processes to be there: they are importing torch."""
SILENCE_SECONDS = 600.0
"""A rank that is alive and sends nothing for so long, where the others wait for it, counts as lost."""
_GREETING_SECONDS = 10.0
"""For whoever comes to prove that it knows the key."""
_PREFIX = "mcp_rl_learners_"
_ANNOUNCED = "mcp_rl/invitation"
_CONNECT_WAIT = timedelta(seconds=60)
_LONGEST_WAIT = timedelta(days=2)
"""For rank 0 to open its learner, which comes after the tool server was explored. torchrun ends us where it ends."""


class Meeting:
    """Rank 0's side: where the others come to."""

    def __init__(self, size: int, *, host: str | None = None) -> None:
        """`host`: where the others are on other machines too, the name by which they know this one. Raises EngineStop
        where there can be no such place."""
        self.size = size
        self._held = HeldFolder(_PREFIX)
        self.folder = self._held.path
        self._key = secrets.token_bytes(32)
        self._socket = socket.socket(socket.AF_UNIX if host is None else socket.AF_INET)
        try:
            self._socket.bind(str(self.folder / "meeting") if host is None else (host, 0))
        except OSError as error:
            self.close()
            where = f"in {self.folder}" if host is None else f"at {host}"
            raise EngineStop(f"Learners cannot meet {where}: {error}.") from error
        self._socket.listen(size)
        self._socket.settimeout(0.2)

    @property
    def invitation(self) -> str:
        """What the others must be told, and nobody else."""
        return json.dumps([self._socket.getsockname(), self._key.hex()])

    def wait(self, seconds: float, check: Callable[[], None]) -> dict[int, Connection]:
        """Connections to the others, by rank, when all are there; nobody can come any more then. `check` is called
        meanwhile, and raises where there is nothing to wait for. Raises EngineStop where they do not come in time."""
        found: dict[int, Connection] = {}
        end = time.monotonic() + seconds
        while missing := [str(rank) for rank in range(1, self.size) if rank not in found]:
            check()
            if time.monotonic() > end:
                raise EngineStop(f"Learners {', '.join(missing)} of {self.size} did not come within {seconds:.0f} s.")
            try:
                accepted, _ = self._socket.accept()
            except OSError:  # nobody in this moment, or somebody who has gone again
                continue
            arrived = self._met(accepted)
            if arrived is not None and str(arrived[0]) in missing:
                found[arrived[0]] = arrived[1]
        self._socket.close()
        return found

    def _met(self, accepted: socket.socket) -> tuple[int, Connection] | None:
        """The rank of whoever has come, and the connection; None where it does not know the key, or says nothing."""
        accepted.setblocking(True)
        _limit(accepted, _GREETING_SECONDS)
        with accepted, suppress(OSError, EOFError, AuthenticationError, ValueError):
            with Connection(os.dup(accepted.fileno())) as connection:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                rank = int(connection.recv_bytes(16))
            _limit(accepted, SILENCE_SECONDS)
            return rank, Connection(accepted.detach())
        return None

    def close(self) -> None:
        self._socket.close()
        self._held.close()


def _limit(connected: socket.socket, seconds: float) -> None:
    """For how long one read or write of a socket may wait, whoever does it."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), 0))


def come(invitation: str, rank: int) -> Connection:
    """The other side: a connection to rank 0. Raises EngineStop where it cannot be reached."""
    address, key = json.loads(invitation)
    try:
        if isinstance(address, str):
            _check_own(Path(address).parent)
        connection = Client(tuple(address) if isinstance(address, list) else address, authkey=bytes.fromhex(key))
        connection.send_bytes(str(rank).encode())
        return connection
    except (OSError, EOFError, AuthenticationError) as error:
        raise EngineStop(f"Learner {rank} cannot reach learner 0: {error}.") from error


def _check_own(folder: Path) -> None:
    """Whoever can write to torchrun's store could name a socket of their own."""
    about = folder.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise PermissionError(f"others may enter {folder}")


@functools.cache
def environment_store() -> "Store":
    """The store that torchrun's processes share. Raises EngineStop where it cannot be reached."""
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # Where torchrun has it, it is there from the beginning; else rank 0 makes it when it opens its learner.
    there = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    try:
        store, _, _ = next(rendezvous("env://", timeout=_CONNECT_WAIT if there else _LONGEST_WAIT))
    except (RuntimeError, ValueError) as error:
        raise EngineStop(f"The store of torchrun cannot be reached: {str(error).splitlines()[0]}") from error
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
        with suppress(RuntimeError, EngineStop):  # where torchrun was killed its store is gone, and nobody waits there
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
