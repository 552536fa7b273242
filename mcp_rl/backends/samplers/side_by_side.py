"""Several engines that sample one policy, as one engine.

They give the same results to the last bit, so it does not matter which of them plays an episode: the one with the
fewest open ones.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

from mcp_rl.inference.batch import EngineStats
from mcp_rl.inference.engine import room_left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp_rl.backends.processes.child import ChildEngine
    from mcp_rl.inference.engine import Completion, Episode, Sampling
    from mcp_rl.inference.local import LocalEngine


class SideBySide:
    """An engine in this process and others elsewhere."""

    def __init__(self, own: LocalEngine, others: Sequence[ChildEngine]) -> None:
        self._own, self._others = own, others
        self._engines: list[LocalEngine | ChildEngine] = [*others, own]  # this process has other work too
        self._open = [0] * len(self._engines)
        self._seen, self._cached = own.seen_prefixes(), own.stats.cached_tokens

    @property
    def version(self) -> int:
        return self._own.version

    @property
    def max_context(self) -> int:
        return self._own.max_context

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the weights that are sampled here."""
        return self._own.fingerprint

    @property
    def stats(self) -> EngineStats:
        """The sums of the engines' counters, as last reported; `cached_tokens` as a single engine counts them, but of
        an episode's first prompt alone, also where a new policy version makes it compute that again."""
        every = [engine.stats for engine in self._engines]
        sums = {field.name: sum(getattr(stats, field.name, 0) for stats in every) for field in fields(EngineStats)}
        return EngineStats(**{**sums, "cached_tokens": self._cached})

    @property
    def others_peak_rss_mb(self) -> float:
        """The most memory, in MiB, that the other processes used, as last reported."""
        return sum(other.peak_rss_mb for other in self._others)

    def forget_prefixes(self) -> None:
        """Count cached tokens anew, since other weights were loaded."""
        self._seen.clear()

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[Episode]:
        """Open an episode in one of the engines."""
        place = self._open.index(min(self._open))
        self._open[place] += 1
        try:
            async with self._engines[place].episode(seed=seed) as episode:
                yield _Counted(self, episode)
        finally:
            self._open[place] -= 1

    def count(self, ids: Sequence[int]) -> None:
        """Count a new episode's ids that were given before."""
        self._cached += self._seen.count(ids)


class _Counted:
    """An episode whose first prompt is counted."""

    def __init__(self, engine: SideBySide, episode: Episode) -> None:
        self._engine, self._episode = engine, episode
        self._begun = False

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        if not self._begun:
            if not new_ids:
                raise ValueError("A turn needs something to continue.")
            room_left(self._engine.max_context, 0, len(new_ids))
            self._engine.count(new_ids)
            self._begun = True
        return await self._episode.generate(new_ids, sampling)
