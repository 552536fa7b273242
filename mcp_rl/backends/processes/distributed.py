"""A learner distributed over several processes: its rank 0, which its caller uses like any other learner.

It asks the other ranks for everything that all must do together, and does the same itself meanwhile. If one is lost or
fails alone, the others' waiting is broken off, and the error says which one it was and what it said last.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from torch._C._distributed_c10d import FileStore
from transformers import PreTrainedModel

from mcp_rl.backends.processes.environment import learner_environment
from mcp_rl.backends.processes.failures import died, failed, kernel_kills
from mcp_rl.backends.processes.in_process import InProcessLearner, in_thread
from mcp_rl.backends.processes.launched import Launched, launched
from mcp_rl.backends.processes.meeting import (
    INVITATION,
    JOIN_SECONDS,
    SILENCE_SECONDS,
    Meeting,
    announce,
    environment_store,
    host_for,
    send_all,
)
from mcp_rl.backends.processes.rank import Failure, RankLearner, failure_of, own_device
from mcp_rl.errors import EngineStop
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.learning.parallel import LostRank
from mcp_rl.system.processes.devices import device_environment
from mcp_rl.system.processes.spawn import Child, spawned

if TYPE_CHECKING:
    from pathlib import Path

    from torch._C._distributed_c10d import Store

    from mcp_rl.backends.hosts import LocalSettings, OpenedLearner
    from mcp_rl.config import PlacementConfig, TrainConfig
    from mcp_rl.learning.learner import Learner
    from mcp_rl.trajectory import TrajectoryGroup

T = TypeVar("T")
OnBase = Callable[[PreTrainedModel, ChatFormat], None]
_ANSWER_SECONDS = 10.0
"""Time for the other ranks to answer, once one has failed."""
_END_SECONDS = 5.0
"""Time for a process to end after it was told to, or after it closed its connection."""
_DOING = {
    **dict.fromkeys(("prepare", "enter", "load", "agree"), "open"),
    "learn": "update",
    "gather": "save",
    "measure": "token_logprobs",
    "move": "move",
}
"""The call of a LearnerHost that each request is part of."""
_GLANCE = 0.25
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def make_learner_host(settings: LocalSettings, *, on_base: OnBase | None = None) -> InProcessLearner:
    """Return a learner in this process, the first rank of several if the settings or torchrun say so."""
    started = launched()
    size = started.size if started else processes(settings.placement)
    if size == 1:
        return InProcessLearner(settings, on_base=on_base)
    return DistributedLearner(settings, size, started, on_base=on_base)


def _nothing() -> None: ...


def processes(placement: PlacementConfig) -> int:
    """Return the number of learners that the settings ask for."""
    return placement.learner_processes or max(1, len(placement.learner_gpus))


@dataclass
class _Answers:
    """The other ranks' answers to one request."""

    failures: dict[int, Failure] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    """Ranks that were gone before anything was broken off."""
    silent: list[int] = field(default_factory=list)
    """Ranks that were there and did not answer."""
    own_failed: bool = False
    """True once rank 0 itself has failed."""


class DistributedLearner(RankLearner):
    """Rank 0 of a distributed learner. It starts the other ranks, unless torchrun has."""

    def __init__(
        self, settings: LocalSettings, size: int, started: Launched | None, *, on_base: OnBase | None = None
    ) -> None:
        super().__init__(settings, on_base=on_base)
        self.size, self._started = size, started
        self._stack = AsyncExitStack()
        self._children: dict[int, Child] = {}
        self._others: dict[int, Connection] = {}
        self._over: str | None = None
        """The reason why the ranks can do nothing together any more; None while they can."""
        self._kills = kernel_kills()

    async def open(self) -> OpenedLearner:
        """Meet the other ranks and load. Raises EngineStop if they do not come."""
        meeting = Meeting(self.size, host=host_for(self._started) if self._started else None)
        self._stack.callback(meeting.close)
        where: str | None = None
        store: Store
        if self._started is None:
            where = str(meeting.folder / "store")
            store = FileStore(where, self.size)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
            await self._start(meeting.invitation)
        else:
            store = await in_thread(environment_store)
            announce(store, meeting.invitation)
        self._others = await in_thread(meeting.wait, JOIN_SECONDS, self._check_children)
        await self._together("prepare", self.settings.model_dump_json(), self.sampled, own_device().type, own=_nothing)
        await self._together("enter", self.size, where, own=lambda: self.enter(0, self.size, store))
        opened = await self._together("load", own=self.load)
        await self._together("agree", own=self.agree)
        return opened

    async def _start(self, invitation: str) -> None:
        for rank in range(1, self.size):
            environment = learner_environment(self.settings.unsloth, sampling=self.sampled)
            environment |= {INVITATION: invitation, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
            if self.settings.placement.learner_gpus:  # they are all that this process sees, in this order
                environment |= device_environment([rank])
            process = spawned(
                [sys.executable, "-P", "-m", "mcp_rl.backends.processes.follower", str(rank)],
                role=f"learner {rank}",
                run=self.settings.run,
                log=self.settings.run / "logs" / f"learner-{rank}.log",
                environment=environment,
            )
            try:
                self._children[rank] = await self._stack.enter_async_context(process)
            except OSError as error:
                raise EngineStop(f"{self._name(rank)} cannot be started: {error}.") from error

    def _check_children(self) -> None:
        """Raise if a child has ended. Called in a thread while the others are awaited."""
        anyio.from_thread.check_cancelled()
        for rank, child in self._children.items():
            if child.returncode is not None:
                raise died(child.ending, ["open"], child.log.path, child.tail(), who=self._name(rank))

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        groups, moved = list(groups), await self.wake()
        return await self._together("learn", groups, config, own=lambda: self.learn(groups, config)) | moved

    async def rest(self) -> dict[str, float]:
        return await self._together("move", False, own=lambda: self.move(False)) if self._offloads else {}

    async def wake(self) -> dict[str, float]:
        return await self._together("move", True, own=lambda: self.move(True)) if self._offloads else {}

    async def in_one_piece(self, *, optimizer: bool = False) -> Learner:
        if not self.sharded:
            return self.learner
        whole = await self._together("gather", optimizer, own=lambda: self.gather(optimizer))
        assert whole is not None
        return whole

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        if not self.sharded:
            return await super().token_logprobs(sequences)
        return await self._together("measure", sequences, own=lambda: self.measure(sequences))

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._over is None:
                send_all(self._others, ("end",))
                self._over = "they were closed."
                with anyio.move_on_after(_END_SECONDS if self._others else 0):
                    for child in self._children.values():
                        await child.wait()
            self._break_off()
            await in_thread(self.leave)
            await self._stack.aclose()
            await super().close()

    async def _together(self, call: str, *arguments: Any, own: Callable[[], T]) -> T:
        """Ask the other ranks for a call, and do `own`, our part of it, meanwhile. Cancelling does not abandon it."""
        if self._over is not None:
            raise EngineStop(f"The learners cannot go on together: {self._over}")
        answers, done = _Answers(), threading.Event()
        result: list[T] = []
        error: Exception | None = None
        with anyio.CancelScope(shield=True):
            gone = await in_thread(send_all, self._others, (call, *arguments))
            if gone is not None:
                answers.lost.append(gone)
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(in_thread, self._collect, answers, done)
                    try:
                        result.append(await in_thread(own))
                    except Exception as raised:
                        error, answers.own_failed = raised, True
                    finally:
                        done.set()
            if error is None and not answers.failures and not answers.lost and not answers.silent:
                return result[0]
            failure = await self._what_happened(call, answers, error)
        raise failure from (error if error is not failure else None)

    def _collect(self, answers: _Answers, done: threading.Event) -> None:
        """Read the others' answers. Break off if one is lost or silent."""
        waiting = dict(self._others)
        quiet = 0.0
        while waiting:
            ready = wait(waiting.values(), _GLANCE)
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                try:
                    failure: Failure | None = waiting.pop(rank).recv()
                except (EOFError, OSError):
                    answers.lost.append(rank)
                else:
                    if failure is not None:
                        answers.failures[rank] = failure
            if answers.lost:
                break
            if done.is_set() or answers.failures:
                quiet = 0.0 if ready else quiet + _GLANCE
            failed_already = answers.own_failed or answers.failures  # the other ranks fail soon, or wait for ever
            if quiet > (_ANSWER_SECONDS if failed_already else SILENCE_SECONDS):
                answers.silent += waiting
                break
        if answers.lost or answers.silent:
            self._break_off()

    async def _what_happened(self, call: str, answers: _Answers, error: Exception | None) -> Exception:
        """Return the error that explains a failed request. Unless all ranks agree on it, they are broken off."""
        own = failure_of(error) if error is not None else None
        everyone = len(answers.failures) == len(self._others) and not answers.lost
        if own is not None and own.ours and everyone and all(said == own for said in answers.failures.values()):
            assert error is not None
            return error
        self._break_off()
        alone = [(rank, said) for rank, said in answers.failures.items() if said.kind != LostRank.__name__]
        if answers.lost:
            found: Exception = await self._lost(call, answers.lost[0])
        elif alone:
            rank, said = alone[0]
            found = failed(said.kind, said.sentence, _DOING[call], self._log(rank), self._name(rank))
        elif error is not None and not isinstance(error, LostRank):
            found = error
        elif error is None and not answers.failures:
            found = EngineStop(
                f"{self._name(answers.silent[0])} said nothing for {SILENCE_SECONDS:.0f} s after the first was done, "
                "so it counts as lost; the same command continues from the last whole step."
            )
        else:
            found = EngineStop(f"{error or next(iter(answers.failures.values())).sentence}")
        self._over = str(found)
        return found

    async def _lost(self, call: str, rank: int) -> EngineStop:
        """Return the error for a rank whose process is gone."""
        child = self._children.get(rank)
        if child is None:
            return EngineStop(
                f"{self._name(rank)} is gone; it was started by torchrun, whose output says more; the same command "
                "continues from the last whole step."
            )
        with anyio.move_on_after(_END_SECONDS):
            await child.wait()
        by_kernel = kernel_kills() > self._kills
        log, who = child.log.path, self._name(rank)
        return died(child.ending, [_DOING[call]], log, child.tail(), by_kernel=by_kernel, who=who)

    def _name(self, rank: int) -> str:
        return f"Learner {rank} (of 0 to {self.size - 1})"

    def _log(self, rank: int) -> Path | None:
        return self._children[rank].log.path if rank in self._children else None

    def _break_off(self) -> None:
        """End all waiting of ranks for each other."""
        self._over = self._over or "one of them was lost."
        if self.ranks is not None:
            self.ranks.abort()
        for connection in self._others.values():
            connection.close()
        for child in self._children.values():
            child.kill()
