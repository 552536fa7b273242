"""A thread that does all torch work and decides when to take up which turns.

If results do not depend on the batch, turns join whenever that is efficient. Otherwise they are taken up as a gang:
only when nothing is being sampled, and when every open episode waits or `admission_wait` seconds have passed. Then the
batch does not depend on the speed of tools, and a run can be repeated exactly. Turns are taken in the order in which
their episodes were opened.

Invariant: every submitted turn is answered, with a completion or an EngineError, however the thread ends.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcp_rl.errors import CanaryError, EngineError, McpRlError
from mcp_rl.inference.engine import Completion

if TYPE_CHECKING:
    from mcp_rl.inference.batch import DecodingBatch
    from mcp_rl.inference.low_rank import LowRank
    from mcp_rl.inference.row import Row, RowTurn

SETTLE = 0.005
"""Seconds without a new turn after which an idle engine starts, since turns often come in quick succession."""
PATIENCE = 0.05
"""Most seconds that a turn waits for others, if results do not depend on the batch."""
JOIN_SHARE = 0.25
"""Turns join a running batch if they are at least this share of it."""

Answer = Callable[[Completion | McpRlError], None]
Loaded = Callable[[McpRlError | None], None]


@dataclass(eq=False)
class Request:
    """A turn that waits for its completion."""

    row: Row
    new_ids: list[int]
    turn: RowTurn
    answer: Answer
    since: float


class Scheduler:
    """Public methods may be called on any event loop; everything else runs in the worker thread.

    All messages of one pass of an event loop wake the thread together: waking it for each of a hundred turns takes as
    long as a forward pass over them.
    """

    def __init__(
        self,
        batch: DecodingBatch,
        *,
        gang: bool,
        admission_wait: float,
        send: Callable[[], None],
        after_load: Callable[[], bool] | None = None,
    ) -> None:
        """send: hands over the answers that were given since it was last called. after_load: called after each policy
        load; returns whether turns are taken up as a gang from then on."""
        self._batch = batch
        self._gang = gang
        self._after_load = after_load
        self._send_answers = send
        self._admission_wait = admission_wait
        self._outboxes: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        """Messages of this pass of an event loop."""
        self._inbox: queue.SimpleQueue[list[Callable[[], None]]] = queue.SimpleQueue()
        self._left: deque[Callable[[], None]] = deque()
        """Messages that came and are not handled yet."""
        self._answering = threading.Lock()
        self._open = 0
        self._waiting: list[Request] = []
        self._sampled: dict[Row, Request] = {}
        self._loads: list[tuple[Mapping[str, Tensor | LowRank], int, Loaded]] = []
        self._closing = False
        self._dead: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="mcp-rl-engine", daemon=True)
        self._thread.start()

    def open_row(self) -> None:
        """Begin an episode."""
        self._tell(self._opened)

    def close_row(self, row: Row) -> None:
        """End an episode; a turn of it that still runs is stopped and never answered."""
        self._tell(lambda: self._closed(row))

    def submit(self, row: Row, new_ids: list[int], turn: RowTurn, answer: Answer) -> None:
        """Submit a turn. `answer` is called in the worker thread."""
        self._tell(lambda: self._submitted(Request(row, new_ids, turn, answer, time.monotonic())))

    def cancel(self, row: Row) -> None:
        """Stop the row's turn without an answer."""
        self._tell(lambda: self._cancelled(row))

    def load(self, weights: Mapping[str, Tensor | LowRank], version: int, done: Loaded) -> None:
        """Swap the policy as soon as no turn is being sampled; waiting turns are sampled with the new one."""
        self._tell(lambda: done(self._dead) if self._dead else self._loads.append((weights, version, done)))

    def stop(self) -> None:
        """Answer waiting turns with EngineError and end the thread, which may take one call of the engine."""

        def close() -> None:
            self._closing = True

        self._tell(close)

    def _tell(self, message: Callable[[], None]) -> None:
        """Have the thread call a function, together with all others of this pass of the running event loop."""
        loop = asyncio.get_running_loop()
        if (outbox := self._outboxes.get(loop)) is None:
            outbox = self._outboxes[loop] = []
            loop.call_soon(self._send, loop)
        outbox.append(message)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        self._inbox.put(self._outboxes.pop(loop))
        if self._dead:
            self._answer_all()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        reason = EngineError("The engine was closed while a turn waited for it.")
        try:
            with torch.inference_mode():
                while not self._closing:
                    self._receive()
                    self._advance()
        except BaseException as error:
            reason = EngineError(f"The engine's thread ended: {type(error).__name__}: {error}.")
            raise
        finally:
            self._end(reason)

    def _end(self, reason: EngineError) -> None:
        """Answer all turns, now and later, with the reason."""
        self._dead = reason
        self._batch.clear()
        self._fail(reason)
        for _, _, done in self._loads:
            done(reason)
        self._answer_all()

    def _answer_all(self) -> None:
        """Handle all messages that have come."""
        try:
            with self._answering, suppress(queue.Empty):
                self._handle([])
                while True:
                    self._handle(self._inbox.get_nowait())
        finally:
            self._send_answers()

    def _handle(self, messages: Sequence[Callable[[], None]]) -> None:
        self._left.extend(messages)  # a message that fails leaves the others to be answered
        while self._left:
            self._left.popleft()()

    def _receive(self) -> None:
        """Handle all messages; sleep until one comes if there is nothing else to do."""
        if not self._batch.active and not self._loads:
            due = max(self._due() - time.monotonic(), 0) if self._waiting else None
            with suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=due))
        self._answer_all()

    def _advance(self) -> None:
        began = time.perf_counter()
        try:
            if self._loads and not self._batch.active:
                self._swap(*self._loads.pop(0))
            elif requests := self._admissible():
                self._finish(self._start(requests))
            elif self._batch.active:
                self._finish(self._batch.step())
            else:
                return
        except Exception as error:
            self._batch.clear()
            self._fail(error if isinstance(error, CanaryError) else _typed("Sampling", error))
        self._send_answers()
        self._batch.stats.busy_seconds += time.perf_counter() - began

    def _swap(self, weights: Mapping[str, Tensor | LowRank], version: int, done: Loaded) -> None:
        try:
            self._batch.policy.load(weights, version)
            self._batch.clear()
            if self._after_load is not None:
                self._gang = self._after_load()
        except Exception as error:
            done(error if isinstance(error, EngineError) else _typed("Loading the policy", error))
        else:
            done(None)

    def _admissible(self) -> list[Request]:
        """Return the waiting turns to take up now."""
        if self._loads or not self._waiting:
            return []
        requests, room = [], self._batch.room
        for request in sorted(self._waiting, key=lambda r: r.row.order):
            if request.row.slot >= 0:
                requests.append(request)
            elif room > 0:
                requests.append(request)
                room -= 1
        if not requests:
            return []
        if self._batch.active:
            many = len(requests) >= JOIN_SHARE * self._batch.active
            return requests if not self._gang and (many or self._overdue()) else []
        everyone = len(self._waiting) >= self._open or len(requests) >= self._batch.max_rows
        return requests if everyone or self._overdue() else []

    def _due(self) -> float:
        """Latest time to take up waiting turns, unless a gang is being sampled."""
        oldest = min(request.since for request in self._waiting)
        if self._gang:
            return oldest + self._admission_wait
        newest = max(request.since for request in self._waiting)
        return oldest + PATIENCE if self._batch.active else min(newest + SETTLE, oldest + PATIENCE)

    def _overdue(self) -> bool:
        return time.monotonic() >= self._due()

    def _start(self, requests: list[Request]) -> list[Row]:
        for request in requests:
            self._waiting.remove(request)
            self._sampled[request.row] = request
            request.row.ids += request.new_ids
            request.row.turn = request.turn
        return self._batch.start([request.row for request in requests])

    def _finish(self, rows: list[Row]) -> None:
        for row in rows:
            request = self._sampled.pop(row)
            turn = request.turn
            request.answer(Completion(turn.ids, turn.logprobs, row.version, turn.finish, row.copied, turn.top))

    def _fail(self, error: McpRlError) -> None:
        for request in [*self._waiting, *self._sampled.values()]:
            request.answer(error)
        self._waiting.clear()
        self._sampled.clear()

    def _opened(self) -> None:
        self._open += 1

    def _closed(self, row: Row) -> None:
        self._open -= 1
        self._cancelled(row)
        self._batch.release(row)

    def _submitted(self, request: Request) -> None:
        if self._dead:
            request.answer(self._dead)
        else:
            self._waiting.append(request)

    def _cancelled(self, row: Row) -> None:
        self._waiting = [request for request in self._waiting if request.row is not row]
        if self._sampled.pop(row, None) is not None:
            self._batch.drop(row)


def _typed(what: str, error: Exception) -> EngineError:
    typed = EngineError(f"{what} failed: {type(error).__name__}: {error}.")
    typed.__cause__ = error
    return typed
