"""Whole weights from the learner to all engines at once, in a process group: NCCL among GPUs, gloo elsewhere.

An object store would hold every policy once a node, and pass it on in pieces of its own; a broadcast runs at the speed
of the network and holds one chunk. What crosses are the files of the policy, so an engine loads just what it would have
found on a disk. A group lives as long as its members do: whoever is not in it is given the policy by the object store.
"""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import TypeAdapter

from mcp_rl.errors import PartLost
from mcp_rl.system.boundary import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHUNK = 64 * 2**20
"""Bytes that cross at once."""
_NAMES = TypeAdapter(dict[str, int])
_GLANCE = 0.002


class MeetingPlace:
    """The store through which a group finds itself; it listens at the learner's address."""

    def __init__(self, address: str, seconds: float) -> None:
        from torch._C._distributed_c10d import TCPStore

        listening = socket.create_server((address, 0))
        self.address, self.port = listening.getsockname()[:2]
        self.store = TCPStore(
            self.address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
            master_listen_fd=listening.detach(),
        )


class WeightsGroup:
    """The learner or an engine in a process group: the learner, rank 0, sends, and the engines receive."""

    def __init__(self, store: Any, rank: int, size: int, *, address: str, gpus: bool, seconds: float) -> None:
        """`address` is this node's. `seconds` is the time for all to join, and for each chunk. Raises RuntimeError."""
        import torch
        from torch import distributed

        self._distributed, self._seconds = distributed, seconds
        self._device = torch.device("cuda" if gpus else "cpu")
        timeout = timedelta(seconds=seconds)
        if gpus:
            nccl = distributed.ProcessGroupNCCL.Options()
            nccl._timeout = timeout
            self._group: Any = distributed.ProcessGroupNCCL(store, rank, size, nccl)
        else:
            gloo: Any = vars(distributed.ProcessGroupGloo)["_Options"]()
            gloo._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
            gloo._timeout = timeout
            self._group = distributed.ProcessGroupGloo(store, rank, size, gloo)
        self._here = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=gpus)
        self._there = self._here if not gpus else torch.empty(CHUNK, dtype=torch.uint8, device=self._device)
        self._cross(1)  # NCCL connects with the first message

    @classmethod
    def join(
        cls, address: str, port: int, rank: int, size: int, *, own: str, gpus: bool, seconds: float
    ) -> WeightsGroup:
        """Join the group that meets at a MeetingPlace. `own` is the address of this node."""
        from torch._C._distributed_c10d import TCPStore

        store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))
        return cls(store, rank, size, address=own, gpus=gpus, seconds=seconds)

    def send(self, folder: Path) -> int:
        """Send all files of a folder; return their bytes. Raises RuntimeError if a member is gone."""
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        about = json.dumps({name: path.stat().st_size for name, path in files.items()}).encode()
        self._send_number(len(about))
        self._view(len(about))[:] = about
        self._cross(len(about))
        sent = 0
        for path in files.values():
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(self._view(CHUNK)):
                    self._cross(count)
                    sent += count
        return sent

    def receive(self, folder: Path) -> int:
        """Receive files into a folder; return their bytes. Raises RuntimeError if the sender is gone, ValueError for a
        name that leads out of the folder."""
        length = self._receive_number()
        self._receive_chunk(length)
        names = _NAMES.validate_json(bytes(self._view(length)))
        received = 0
        for name, size in names.items():
            target = (folder / name).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise ValueError(f"{name!r} leads out of {folder}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb", buffering=0) as file:
                for count in _chunks(size):
                    self._receive_chunk(count)
                    file.write(self._view(count))
                    received += count
        return received

    def close(self) -> None:
        """End the group, also if something is still under way in it."""
        self._group.abort()

    def _send_number(self, number: int) -> None:
        self._view(8)[:] = number.to_bytes(8, "little")
        self._cross(8)

    def _receive_number(self) -> int:
        self._receive_chunk(8)
        return int.from_bytes(bytes(self._view(8)), "little")

    def _view(self, count: int) -> memoryview:
        return memoryview(self._here.numpy().data)[:count]

    def _cross(self, count: int) -> None:
        """Send the first bytes of the buffer."""
        if self._there is not self._here:
            self._there[:count].copy_(self._here[:count])
        self._broadcast(count)

    def _receive_chunk(self, count: int) -> None:
        self._broadcast(count)
        if self._there is not self._here:
            self._here[:count].copy_(self._there[:count])

    def _broadcast(self, count: int) -> None:
        options = self._distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        work = self._group.broadcast([self._there[:count]], options)
        if self._device.type == "cpu":
            work.wait(timedelta(seconds=self._seconds))
            return
        deadline = time.monotonic() + self._seconds  # `wait` of NCCL only orders streams
        while not work.is_completed():
            if time.monotonic() > deadline:
                self._group.abort()
                raise RuntimeError(f"a chunk of the weights did not cross within {self._seconds:.0f} s")
            time.sleep(_GLANCE)
        work.wait()


def _chunks(size: int) -> Iterator[int]:
    while size > 0:
        yield min(CHUNK, size)
        size -= CHUNK


class Membership:
    """The place of an actor in its newest group, as the driver asks for it; every method runs in a thread."""

    def __init__(self) -> None:
        self._group: WeightsGroup | None = None
        self._meeting: MeetingPlace | None = None
        self.name = ""
        """Name of the group that it is in."""

    def invite(self, name: str, address: str, seconds: float) -> tuple[str, int]:
        """Open the place where a new group meets; return its address and port."""
        self.leave()
        self._meeting = MeetingPlace(address, seconds)
        self.name = name
        return self._meeting.address, self._meeting.port

    def host(self, size: int, address: str, gpus: bool, seconds: float) -> None:
        """Join, as the sender, those who were invited."""
        assert self._meeting is not None
        self._group = WeightsGroup(self._meeting.store, 0, size, address=address, gpus=gpus, seconds=seconds)

    def join(self, name: str, at: tuple[str, int], rank: int, size: int, own: str, gpus: bool, seconds: float) -> None:
        """Join a group that was invited to `at`, to receive."""
        self.leave()
        self._group = WeightsGroup.join(*at, rank, size, own=own, gpus=gpus, seconds=seconds)
        self.name = name

    def group(self, name: str) -> WeightsGroup:
        """Return the group of that name. Raises PartLost if this is not in it, such as after a new start."""
        if self._group is None or self.name != name:
            raise PartLost("A member has left the group in which weights cross")
        return self._group

    def leave(self) -> None:
        """End the group."""
        group, self._group, self._meeting, self.name = self._group, None, None, ""
        if group is not None:
            group.close()


async def in_group(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do a group's work in a thread, and return what it returns. Raises PartLost if another member is gone or late."""
    try:
        return await anyio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True)
    except RuntimeError as error:  # torch's errors of a group
        raise PartLost(f"A broadcast of weights broke off ({first_line(error)[:200]})") from error
