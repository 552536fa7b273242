"""The in-process engine: samples for all episodes in flight with one Hugging Face model.

    async with LocalEngine(model, stop_token_ids=chat.stop_token_ids) as engine:
        async with engine.episode(seed=7) as episode:
            completion = await episode.generate(prompt_ids, Sampling())

All torch work happens in one thread, so tools and judges are served meanwhile. A beginning that any episode has in
common with another, of now or before, is computed once. An episode keeps its row while its tool runs, so at most
`max_rows` episodes are sampled side by side; further ones wait until a row is free.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Generic, TypeVar

import anyio
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.errors import ContextOverflow, EngineError, McpRlError
from mcp_rl.inference.batch import Batch, Stats
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.inference.low_rank import LowRank
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.probe import decodes_as_it_prefills, is_batch_invariant
from mcp_rl.inference.row import Row, Turn
from mcp_rl.inference.sampler import Draws
from mcp_rl.inference.scheduler import Scheduler
from mcp_rl.inference.stops import Decode, StopRule

T = TypeVar("T")


class LocalEngine:
    """Samples with `model` in this process. Runs on asyncio.

    The model's parameters are shared, not copied, and must not change in place; its adapters are left out. Raises
    EngineError for a model that cannot be batched this way: no transformers attention interface, or layers other than
    attention.

    stop_token_ids: ids that end a turn. decode: the text of ids, for turns that stop at texts. max_context: most
    tokens in an episode, at most the model's own positions. max_rows: episodes sampled side by side; memory is theirs
    times the longest of them. gang: take turns up together only, so that the batch does not depend on how fast tools
    are; None does so where results on this CPU would depend on the batch. admission_wait: seconds that a gang waits for
    episodes whose tool is slow.
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
    ) -> None:
        self._policy = Policy(model)
        self.max_context = min(max_context or self._policy.window, self._policy.window)
        self._stops = frozenset(stop_token_ids)
        self._decode = decode
        self._batch = Batch(self._policy, self._stops, max_rows)
        self._wanted_gang = self.gang = gang
        """Whether turns are taken up together only; None until the engine is opened and has found out."""
        self._admission_wait = admission_wait
        self._orders = itertools.count()
        self._scheduler: Scheduler | None = None
        self._opened = False
        self._low_rank_seen = False

    @property
    def version(self) -> int:
        """Policy version that is being sampled now; 0 is the model as it was given."""
        return self._policy.version

    @property
    def fingerprint(self) -> str:
        """`policy.fingerprint_of` the weights that are being sampled, read from where they are sampled."""
        return self._policy.fingerprint

    @property
    def stats(self) -> Stats:
        """Counters since the engine was made."""
        return self._batch.stats

    async def __aenter__(self) -> "LocalEngine":
        if self._opened:
            raise EngineError("An engine can be opened only once; make a new one.")
        self._opened = True
        mixed = await anyio.to_thread.run_sync(self._probe)
        self.gang = not mixed if self._wanted_gang is None else self._wanted_gang
        self._scheduler = Scheduler(
            self._batch, gang=self.gang, admission_wait=self._admission_wait, after_load=self._after_load
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
        """Whether turns may join a running batch: results do not depend on it, or are not repeatable here anyway."""
        if self._policy.shape.device.type != "cpu":
            return True
        try:
            self._batch.share_sampled = decodes_as_it_prefills(self._policy)
            return self._wanted_gang is not None or is_batch_invariant(self._policy)
        except Exception as error:
            raise EngineError(f"The engine cannot sample this model: {type(error).__name__}: {error}.") from error

    def _after_load(self) -> bool:
        """The thin products of a low-rank policy are of other shapes than those that were measured, so they are
        measured too, once. In the worker thread."""
        if self._policy.low_rank and not self._low_rank_seen:
            self._low_rank_seen = True
            shared = self._batch.share_sampled
            mixed = self._probe()
            self._batch.share_sampled &= shared
            if self._wanted_gang is None:
                self.gang = self.gang or not mixed
        return bool(self.gang)

    @property
    def _running(self) -> Scheduler:
        if self._scheduler is None:
            raise EngineError("The engine is closed; it samples only inside `async with engine`.")
        return self._scheduler

    async def load_policy(self, weights: Mapping[str, Tensor | LowRank], version: int) -> None:
        """Sample another policy version: the base with `weights` in place of its own, or added to them where they are
        of low rank, by parameter name.

        Turns that are being sampled end under the version they began with; turns that wait start under the new one,
        with everything recomputed. The weights are copied and must stay as they are until this returns. Raises
        EngineError where they do not fit the model; the old version is then kept.
        """
        done = _Answer[None]()
        self._running.load(weights, version, done.set)
        await done.future

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator["LocalEpisode"]:
        """Open an episode, whose draws depend on `seed` alone."""
        row = Row(next(self._orders), Draws(seed))
        scheduler = self._running
        scheduler.open_row()
        try:
            yield LocalEpisode(self, row)
        finally:
            scheduler.close_row(row)


class LocalEpisode:
    """One growing sequence."""

    def __init__(self, engine: LocalEngine, row: Row) -> None:
        self._engine = engine
        self._row = row
        self._length = 0
        self._broken = ""

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Append `new_ids`, then sample until a stop token, a stop text, `sampling.max_tokens` or the context's end.

        Raises ContextOverflow, and changes nothing, where the new ids and one more token do not fit; EngineError where
        sampling failed or the engine was closed, after which the episode cannot go on; CanaryError where what is cached
        is not of the policy that is sampled.
        """
        scheduler = self._engine._running
        if self._broken:
            raise EngineError(f"This episode cannot go on: its last turn {self._broken}.")
        if not (new_ids or self._length):
            raise ValueError("A turn needs something to continue.")
        room = self._engine.max_context - self._length - len(new_ids)
        if room < 1:
            raise ContextOverflow(
                f"{self._length} tokens, {len(new_ids)} new ones and one more do not fit the context of "
                f"{self._engine.max_context} tokens."
            )
        answer = _Answer[Completion]()
        turn = Turn(
            sampling,
            min(sampling.max_tokens, room),
            StopRule(sampling, self._engine._stops, self._engine._decode),
            None if sampling.seed is None else Draws(sampling.seed),
        )
        self._broken = "is not over"
        scheduler.submit(self._row, list(new_ids), turn, answer.set)
        try:
            completion = await answer.future
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


class _Answer(Generic[T]):
    """A future of this event loop that the worker thread fills."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def set(self, result: T | McpRlError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._resolve, result)
        except RuntimeError:  # the loop is gone, and with it whoever waited
            return

    def _resolve(self, result: T | McpRlError) -> None:
        if self.future.done():
            return
        if isinstance(result, McpRlError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)
