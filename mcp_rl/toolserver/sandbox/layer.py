"""`Layer`: what a server in a sandbox has written, asked for and changed through its keeper (`sandboxed.py`)."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.toolserver.sandbox.sandbox import Sandbox, layer_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

log = logging.getLogger(__name__)

_SECONDS = 60.0
"""Time for one request."""
_LONGEST_ANSWER = 4096
_MOST_PACKED = 2**22
"""Bytes of files that are kept to fill other layers with."""
_QUICK_MILLISECONDS = 1
"""Time in which most answers come, so that waiting for them costs less than going round the event loop."""


class Layer:
    """The layer of one process. Between two episodes: `throw_away`. No tool call may be under way then.

    Every method raises ServerFault if the process has ended.
    """

    def __init__(self, wanted: Sandbox, server: str) -> None:
        self._wanted = wanted
        self._server = server
        self._channel: socket.socket | None = None
        self._quick = select.poll()
        self._ready = False
        self._marked = False
        self._lock = anyio.Lock(fast_acquire=True)

    @contextmanager
    def descriptor(self, cwd: str | None) -> Iterator[int]:
        """Give the descriptor of a socket that the watchdog needs to start the server in its sandbox."""
        self.close()
        self._ready = self._marked = False
        self._channel, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._quick.register(self._channel, select.POLLIN)
        place = os.fsencode(os.path.realpath(cwd or "."))
        with control:
            self._channel.send(b"\0".join((self._wanted.kind.encode(), place, b"%d" % layer_bytes())))
            yield control.fileno()

    def close(self) -> None:
        """Let go of the process; its layer vanishes when it ends."""
        if self._channel is not None:
            self._quick.unregister(self._channel)
            self._channel.close()
            self._channel = None

    async def begin(self) -> None:
        """Put the layer into the state that episodes begin in: its state at the first call of this."""
        if self._marked:
            await self.throw_away()
        else:
            await self.mark()

    async def mark(self) -> None:
        """Make the layer as it is now what `throw_away` returns to; until then that is an empty layer."""
        await self._ask("mark")
        self._marked = True

    async def throw_away(self) -> None:
        """Undo all that was written since the mark, while the process stays."""
        if await self._ask("throw-away") == "full":
            self._warn_of_full()

    async def turn(self, leaving: int | None, coming: int | None, forgotten: Sequence[int] = ()) -> bool:
        """Put the layer away under the number `leaving`, and bring back what was put away as `coming`.

        None stands for the mark: the layer is thrown away, or returned to its mark. Returns False if nothing more
        fitted into it. What was put away is gone after `throw_away`; before all else, the numbers `forgotten` are.
        """
        names = ("-" if number is None else str(number) for number in (leaving, coming, *forgotten))
        if await self._ask(f"turn {' '.join(names)}") != "full":
            return True
        self._warn_of_full()
        return False

    async def drop(self, number: int) -> None:
        """Forget what was put away under this number."""
        await self._ask(f"forget {number}")

    async def packed(self) -> bytes | None:
        """Return what the layer holds, for `unpack`; None if that is too much to keep."""
        with _file_in_memory() as file:
            if await self._ask(f"save {_MOST_PACKED}", file.fileno()) == "large":
                return None
            file.seek(0)
            return zlib.compress(file.read())

    async def unpack(self, packed: bytes) -> None:
        """Put into the layer what `packed` returned in the same folder."""
        with _file_in_memory() as file:
            file.write(zlib.decompress(packed))
            file.flush()
            file.seek(0)
            await self._ask("load", file.fileno())

    def _warn_of_full(self) -> None:
        megabytes = layer_bytes() / 2**20
        log.warning(
            "%s filled its layer (%.0f MB), so some of its writes failed; nothing of it is left. A server that "
            "writes as much needs --sandbox off.", self._server, megabytes,
        )  # fmt: skip

    async def changed(self) -> bool:
        """Return whether anything was written since the mark that is still there."""
        return await self._ask("changed") == "yes"

    async def _ask(self, request: str, *files: int) -> str:
        try:
            with anyio.fail_after(_SECONDS):
                async with self._lock:
                    await self._answer_of_start()
                    assert self._channel is not None
                    if files:
                        socket.send_fds(self._channel, [request.encode()], files)
                    else:
                        self._channel.send(request.encode())
                    return await self._answer()
        except TimeoutError:
            raise self._fault(f"it did not answer within {_SECONDS:g} s") from None
        except OSError as error:
            raise self._fault(error.strerror or str(error)) from error

    async def _answer_of_start(self) -> None:
        if not self._ready:
            await self._answer()
            self._ready = True

    async def _answer(self) -> str:
        if self._channel is None:
            raise self._fault("the server has ended")
        self._quick.poll(_QUICK_MILLISECONDS)
        answer = (await asyncio.get_running_loop().sock_recv(self._channel, _LONGEST_ANSWER)).decode()
        verdict, _, rest = answer.partition(" ")
        if verdict != "ok":
            raise self._fault(rest or "the server has ended")
        return rest

    def _fault(self, why: str) -> ServerFault:
        return ServerFault(f"The files of {self._server[:1].lower()}{self._server[1:]} could not be put back: {why}.")


def _file_in_memory() -> BinaryIO:
    return open(os.memfd_create("mcp-rl"), "w+b")  # noqa: PTH123  # a descriptor, closed by its user
