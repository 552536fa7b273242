"""The in-process engine: samples for all episodes in flight with one Hugging Face model.

    async with LocalEngine(model, stop_token_ids=chat.stop_token_ids) as engine:
        async with engine.episode(seed=7) as episode:
            completion = await episode.generate(prompt_ids, Sampling())

All torch work happens in one thread, so tools and judges are served meanwhile. A beginning that an episode shares with
another, present or past, is computed once. An episode keeps its row while its tool runs, so at most `max_rows` episodes
are sampled side by side; further ones wait until a row is free.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import EngineError, McpRlError
from mcp_rl.inference.batch import DecodingBatch, EngineStats
from mcp_rl.inference.drafts import Drafts
from mcp_rl.inference.engine import Completion, Sampling, room_left
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.probe import decodes_as_it_prefills, is_batch_invariant
from mcp_rl.inference.row import Row, RowTurn
from mcp_rl.inference.sampler import Draws
from mcp_rl.inference.scheduler import Scheduler
from mcp_rl.inference.stops import Decode, StopRule
from mcp_rl.system.threads import take_turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from torch import Tensor
    from transformers import PreTrainedModel

    from mcp_rl.inference.low_rank import LowRank


class LocalEngine:
    """Samples with `model` in this process. Runs on asyncio.

    The model's parameters are shared, not copied, and must not change in place; its adapters are left out. Raises
    EngineError for a model that cannot be batched this way: no transformers attention interface, or layers other than
    attention.

    stop_token_ids: ids that end a turn. decode: turns ids into text, for turns that stop at texts. max_context: most
    tokens of an episode, at most the model's own positions. max_rows: episodes sampled side by side; memory grows with
    their number times the longest of them. gang: take turns up together only, so the batch does not depend on the speed
    of tools; None: only if results on this CPU would depend on the batch. admission_wait: seconds that a gang waits for
    episodes whose tool is slow. guess: check guesses of several ids in one pass (`drafts`) where that changes no bit;
    off only serves to measure what that saves.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_token_ids: Collection[int],
        decode: Decode | None = None,
        max_context: int | None = None,
        max_rows: int = 256,
        gang: bool | None = None,
        admission_wait: float = 1.0,
        guess: bool = True,
    ) -> None:
        self._policy = Policy(model)
        self.max_context = min(max_context or self._policy.window, self._policy.window)
        self._stops = frozenset(stop_token_ids)
        self._decode = decode
        self._batch = DecodingBatch(self._policy, self._stops, max_rows)
        self._wanted_gang = self.gang = gang
        """True if turns are taken up together only; None until the engine is opened and has measured it."""
        self._admission_wait = admission_wait
        self._guess = guess
        self._orders = itertools.count()
        self._scheduler: Scheduler | None = None
        self._answers = _Answers()
        self._opened = False
        self._low_rank_seen = False

    @property
    def version(self) -> int:
        """The policy version being sampled; 0 is the model as it was given."""
        return self._policy.version

    @property
    def fingerprint(self) -> str:
        """`policy.fingerprint_of` the weights being sampled, read from the sampling model itself."""
        return self._policy.fingerprint

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        return self._batch.stats

    async def __aenter__(self) -> LocalEngine:
        if self._opened:
            raise EngineError("An engine can be opened only once; make a new one.")
        self._opened = True
        take_turns()
        mixed = await anyio.to_thread.run_sync(self._probe)
        self.gang = not mixed if self._wanted_gang is None else self._wanted_gang
        self._choose_drafts()
        self._scheduler = Scheduler(
            self._batch,
            gang=self.gang,
            admission_wait=self._admission_wait,
            after_load=self._after_load,
            send=self._answers.send,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scheduler, self._scheduler = self._running, None
        scheduler.stop()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(scheduler.join)

    def _probe(self) -> bool:
        """Return whether turns may join a running batch: results are independent of it, or not repeatable anyway."""
        if self._policy.shape.device.type != "cpu":
            return True
        try:
            self._batch.share_sampled = decodes_as_it_prefills(self._policy)
            return self._wanted_gang is not None or is_batch_invariant(self._policy)
        except Exception as error:
            raise EngineError(f"The engine cannot sample this model: {type(error).__name__}: {error}.") from error

    def _after_load(self) -> bool:
        """Measure again after the first low-rank policy, whose thin products have other shapes; return `gang`.

        Runs in the worker thread.
        """
        if self._policy.low_rank and not self._low_rank_seen:
            self._low_rank_seen = True
            shared = self._batch.share_sampled
            mixed = self._probe()
            self._batch.share_sampled &= shared
            if self._wanted_gang is None:
                self.gang = self.gang or not mixed
            self._choose_drafts()
        return bool(self.gang)

    def _choose_drafts(self) -> None:
        """Guess ids only where that changes no bit, or where bits cannot be repeated anyway."""
        if not self._guess or self.gang or not self._batch.share_sampled:
            self._batch.drafts = None
        elif self._batch.drafts is None:
            self._batch.drafts = Drafts()

    @property
    def _running(self) -> Scheduler:
        if self._scheduler is None:
            raise EngineError("The engine is closed; it samples only inside `async with engine`.")
        return self._scheduler

    async def load_policy(self, weights: Mapping[str, Tensor | LowRank], version: int) -> None:
        """Sample another policy version: the base with `weights`, by parameter name, in place of its own, or added to
        them if they are low-rank updates.

        Turns being sampled end under their version; waiting turns start under the new one, with everything recomputed.
        The weights are copied and must stay unchanged until this returns. Raises EngineError if they do not fit the
        model; the old version is then kept.
        """
        loaded, done = self._answers.expect()
        self._running.load(weights, version, done)
        await loaded

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[LocalEpisode]:
        """Open an episode whose draws depend on `seed` alone."""
        row = Row(next(self._orders), Draws(seed))
        scheduler = self._running
        scheduler.open_row()
        try:
            yield LocalEpisode(self, row)
        finally:
            scheduler.close_row(row)


class LocalEpisode:
    """An episode: a growing sequence of ids."""

    def __init__(self, engine: LocalEngine, row: Row) -> None:
        self._engine = engine
        self._row = row
        self._length = 0
        self._broken = ""

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Append `new_ids`, then sample until a stop token, a stop text, `sampling.max_tokens` or the context's end.

        Raises ContextOverflow, and changes nothing, if the new ids and one more token do not fit; EngineError if
        sampling fails or the engine is closed, after which the episode cannot go on; CanaryError if the cache does not
        belong to the sampled policy.
        """
        scheduler = self._engine._running
        if self._broken:
            raise EngineError(f"This episode cannot go on: its last turn {self._broken}.")
        if not (new_ids or self._length):
            raise ValueError("A turn needs something to continue.")
        room = room_left(self._engine.max_context, self._length, len(new_ids))
        answered, answer = self._engine._answers.expect()
        turn = RowTurn(
            sampling,
            min(sampling.max_tokens, room),
            StopRule(sampling, self._engine._stops, self._engine._decode),
            None if sampling.seed is None else Draws(sampling.seed),
        )
        self._broken = "is not over"
        scheduler.submit(self._row, list(new_ids), turn, answer)
        try:
            completion: Completion = await answered
        except asyncio.CancelledError:
            self._broken = "was cancelled"
            scheduler.cancel(self._row)
            raise
        except McpRlError:
            self._broken = "failed"
            raise
        self._broken = ""
        self._length += len(new_ids) + len(completion.token_ids)
        return completion


class _Answers:
    """Answers of the worker thread to what waits on event loops, each of which is woken once for all that were given
    since the last `send`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def expect(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """Return a future of the running loop, and a function for any thread that gives its result or its error."""
        future = asyncio.get_running_loop().create_future()
        return future, partial(self._give, future)

    def _give(self, future: asyncio.Future[Any], result: Any) -> None:
        with self._lock:
            self._given.setdefault(future.get_loop(), []).append((future, result))

    def send(self) -> None:
        """Hand over what was given."""
        if not self._given:
            return
        with self._lock:
            given, self._given = self._given, {}
        for loop, answers in given.items():
            with suppress(RuntimeError):  # the loop is gone, and with it everything that waited
                loop.call_soon_threadsafe(_hand_over, answers)


def _hand_over(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in answers:
        if future.done():
            continue
        if isinstance(result, McpRlError):
            future.set_exception(result)
        else:
            future.set_result(result)
