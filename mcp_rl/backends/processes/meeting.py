"""The place where the ranks of a distributed learner meet, and their connections for requests and answers.

Requests and answers are pickled, so each side first proves that it knows a key which is made for each start
(`multiprocessing.connection`); nothing is unpickled before. torch.distributed offers no such proof, so it carries only
tensors. On one machine messages go through a socket in a folder that no other user may enter, so no port is open; over
several machines, under torchrun, through a port of the first, which is open until all are there. torch.distributed
meets in a file of that folder or in torchrun's store.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import secrets
import socket
import stat
import struct
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import EngineStop
from mcp_rl.system.processes.held_folder import HeldFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch._C._distributed_c10d import Store

    from mcp_rl.backends.processes.launched import Launched

INVITATION = "MCP_RL_LEARNERS"
"""Variable with rank 0's invitation, for the processes that it starts."""
JOIN_SECONDS = 300.0
"""Time for all processes to arrive, after they imported torch."""
SILENCE_SECONDS = 600.0
"""A living rank that sends nothing for so long while the others wait for it counts as lost."""
_GREETING_SECONDS = 10.0
"""Time for an arriving process to prove that it knows the key."""
_PREFIX = "mcp_rl_learners_"
_ANNOUNCED = "mcp_rl/invitation"
_CONNECT_WAIT = timedelta(seconds=60)
_LONGEST_WAIT = timedelta(days=2)
"""Time for rank 0 to open its learner, after the tool server was explored. torchrun ends this process if it ends."""


class Meeting:
    """Rank 0's side: the place to which the other ranks come."""

    def __init__(self, size: int, *, host: str | None = None) -> None:
        """`host`: the name by which other machines know this one; None if all ranks are on this machine. Raises
        EngineStop if no such place can be made."""
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
        """The address and the key, a secret for the other ranks only."""
        return json.dumps([self._socket.getsockname(), self._key.hex()])

    def wait(self, seconds: float, check: Callable[[], None]) -> dict[int, Connection]:
        """Wait for all other ranks, close the entrance, and return the connections by rank.

        `check` is called meanwhile, and raises if waiting is pointless. Raises EngineStop if they do not come in time.
        """
        found: dict[int, Connection] = {}
        end = time.monotonic() + seconds
        while missing := [str(rank) for rank in range(1, self.size) if rank not in found]:
            check()
            if time.monotonic() > end:
                raise EngineStop(f"Learners {', '.join(missing)} of {self.size} did not come within {seconds:.0f} s.")
            try:
                accepted, _ = self._socket.accept()
            except OSError:  # nobody at this moment, or a client that has gone again
                continue
            arrived = self._met(accepted)
            if arrived is not None and str(arrived[0]) in missing:
                found[arrived[0]] = arrived[1]
        self._socket.close()
        return found

    def _met(self, accepted: socket.socket) -> tuple[int, Connection] | None:
        """Return the rank and the connection of an arrived process; None if it does not know the key or is silent."""
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
    """Limit how long one read or write of a socket may wait."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), 0))


def come(invitation: str, rank: int) -> Connection:
    """Connect to rank 0. Raises EngineStop if it cannot be reached."""
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
    """Refuse a folder that others may enter: anyone who can write to torchrun's store could name a socket of theirs."""
    about = folder.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise PermissionError(f"others may enter {folder}")


@functools.cache
def environment_store() -> Store:
    """Return the store that torchrun's processes share. Raises EngineStop if it cannot be reached."""
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # torchrun's agent has the store from the beginning; without it, rank 0 makes one when it opens its learner.
    there = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    try:
        store, _, _ = next(rendezvous("env://", timeout=_CONNECT_WAIT if there else _LONGEST_WAIT))
    except (RuntimeError, ValueError) as error:
        raise EngineStop(f"The store of torchrun cannot be reached: {str(error).splitlines()[0]}") from error
    return PrefixStore("mcp_rl", store)


def announce(store: Store, invitation: str | None) -> None:
    """Publish rank 0's invitation to torchrun's other processes; None: there is nothing for them to do."""
    store.set(_ANNOUNCED, invitation or "")


def announced(store: Store) -> str | None:
    """Wait for `announce`, and return its invitation."""
    store.wait([_ANNOUNCED], _LONGEST_WAIT)
    return store.get(_ANNOUNCED).decode() or None


@contextmanager
def dismissing() -> Iterator[None]:
    """Run rank 0's whole command in here: torchrun's other processes then end even if it never opens a learner."""
    try:
        yield
    finally:
        with suppress(RuntimeError, EngineStop):  # a killed torchrun's store is gone, and nobody waits there
            announce(environment_store(), None)


def host_for(launched: Launched, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return this machine's name for processes on others; None if all are on this one."""
    return None if launched.local_size == launched.size else environment["MASTER_ADDR"]


def send_all(connections: Mapping[int, Connection], message: Any) -> int | None:
    """Send one message to all; return the rank of one that is gone, or None."""
    content = pickle.dumps(message)
    for rank, connection in connections.items():
        try:
            connection.send_bytes(content)
        except OSError:
            return rank
    return None
