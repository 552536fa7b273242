"""An engine that samples with vLLM: every turn is one request whose prompt is the ids of the whole episode.

vLLM's prefix cache keeps what was computed for an episode between its turns. A request names the policy version that
answers it, so all tokens of a turn come from that version, and a new version begins with the next turn. If versions
have no names of their own (all weights are replaced), new turns wait until the turns in flight have ended and the new
weights are loaded.

    engine = VllmEngine(VllmClient(server), stop_token_ids=chat.stop_token_ids, decode=chat.decode, max_context=4096)
    await engine.load(version)
    engine.switch(version)
    async with engine.episode(seed=7) as episode:
        completion = await episode.generate(prompt_ids, Sampling())

With seeds, the same request gives the same tokens as long as the logits do not depend on the rest of vLLM's batch:
nearly always in float32 on a CPU, mostly in 16 bits.
"""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from mcp_rl.errors import EngineError
from mcp_rl.inference.engine import Completion, Sampling, room_left
from mcp_rl.inference.stops import Decode, StopRule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence
    from pathlib import Path

    from mcp_rl.inference.vllm.client import VllmClient


@dataclass(eq=False)
class PolicyVersion:
    """A policy version as the server knows it. Compared by identity."""

    version: int
    model: str
    """Its name in requests."""
    folder: Path | None = None
    """Folder of the adapter, or with `whole` of all weights; None: the server's base model."""
    whole: bool = False
    turns: int = field(default=0, init=False)
    """Number of turns that are being sampled with it."""


@dataclass
class VllmStats:
    """Counters since the engine was made."""

    turns: int = 0
    prompt_tokens: int = 0
    """Tokens of all prompts: given ones, and those sampled earlier in the episode."""
    reused_tokens: int = 0
    """Prompt tokens found in vLLM's prefix cache."""
    cached_tokens: int = 0
    """Prompt tokens of first turns found in vLLM's prefix cache."""
    decoded_tokens: int = 0
    asked_again: int = 0
    """Turns that had to be repeated because the server died."""


class VllmEngine:
    """Samples with a vLLM server for all episodes at once.

    stop_token_ids: ids that end a turn. decode: turns ids into text, for turns that stop at texts. max_context: most
    tokens of an episode. seeds: whether to send a seed with each request.
    """

    def __init__(
        self,
        client: VllmClient,
        *,
        stop_token_ids: Collection[int],
        decode: Decode | None = None,
        max_context: int,
        seeds: bool = True,
    ) -> None:
        self.max_context = max_context
        self.stats = VllmStats()
        self._client = client
        self._stops = tuple(sorted(stop_token_ids))
        self._decode = decode
        self._seeds = seeds
        self._policy: PolicyVersion | None = None
        self._held: list[PolicyVersion] = []
        self._starts = client.server.starts
        self._restoring = anyio.Lock()
        self._open = anyio.Event()
        self._open.set()
        self._running = 0
        self._ended = anyio.Event()
        client.restored = self._restore

    @property
    def policy(self) -> PolicyVersion:
        """The policy version that new turns are sampled with."""
        if self._policy is None:
            raise EngineError("vLLM has no policy to sample yet: load one and switch to it.")
        return self._policy

    @property
    def version(self) -> int:
        return self.policy.version

    @property
    def held(self) -> Sequence[PolicyVersion]:
        """Versions that were loaded and not yet forgotten, oldest first."""
        return tuple(self._held)

    async def load(self, policy: PolicyVersion) -> None:
        """Give the server a version; turns go on with the current one.

        Whole weights replace the current version at once, so load them between `pause` and `resume`. Raises EngineError
        if vLLM refuses it.
        """
        await self._client.persist(lambda: self._give(policy))
        self._held = [held for held in self._held if not (policy.whole and held.whole)] + [policy]

    def switch(self, policy: PolicyVersion) -> None:
        """Sample new turns with a loaded version."""
        self._policy = policy

    async def forget(self, policy: PolicyVersion) -> None:
        """Unload a version that no turn is sampled with any more."""
        self._held.remove(policy)
        if policy.folder is not None and not policy.whole:
            await self._client.persist(lambda: self._client.unload_adapter(policy.model))

    async def pause(self) -> None:
        """Hold new turns back, and return when no turn is being sampled any more."""
        if self._open.is_set():
            self._open = anyio.Event()
        while self._running:
            self._ended = anyio.Event()
            await self._ended.wait()

    def resume(self) -> None:
        self._open.set()

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[VllmEpisode]:
        """Open an episode whose draws depend on `seed` alone."""
        yield VllmEpisode(self, seed)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[PolicyVersion]:
        """Count a turn under the newest version, which stays loaded until the turn is over."""
        while not self._open.is_set():
            await self._open.wait()
        policy = self.policy
        policy.turns += 1
        self._running += 1
        try:
            yield policy
        finally:
            policy.turns -= 1
            self._running -= 1
            self._ended.set()

    async def _give(self, policy: PolicyVersion) -> None:
        if policy.folder is None:
            return
        if policy.whole:
            await self._client.load_weights(policy.folder)
        else:
            await self._client.load_adapter(policy.model, policy.folder)

    @property
    def _forgotten(self) -> bool:
        return self._client.forgot or self._client.server.starts != self._starts

    async def _restore(self) -> None:
        """Load again what a restarted server had."""
        if not self._forgotten:
            return
        async with self._restoring:
            if not self._forgotten:
                return
            starts, self._client.forgot = self._client.server.starts, False
            for policy in self._held:
                if policy.folder is not None and not policy.whole:
                    await self._client.unload_adapter(policy.model)  # from an attempt that failed half-way
                await self._give(policy)
            self._starts = starts

    async def _sample(
        self, prompt: list[int], sampling: Sampling, max_tokens: int, seed: int, *, first: bool
    ) -> Completion:
        rule = StopRule(sampling, self._stops, self._decode)
        async with self._turn() as policy:
            starts = self._client.server.starts
            sampled = await self._client.sample(
                policy.model,
                prompt,
                max_tokens=max_tokens,
                temperature=sampling.temperature,
                stop_token_ids=sorted({*self._stops, *sampling.stop_token_ids}),
                stop=sampling.stop,
                seed=seed if self._seeds and sampling.temperature else None,
                top_logprobs=sampling.top_logprobs,
            )
            kept, stops = rule.kept([], sampled.token_ids)  # vLLM searches another text, incrementally decoded
            ids = sampled.token_ids[:kept]
            stats = self.stats
            stats.turns += 1
            stats.prompt_tokens += len(prompt)
            cached = sampled.cached if first else 0
            stats.reused_tokens += sampled.cached
            stats.cached_tokens += cached
            stats.decoded_tokens += len(ids)
            stats.asked_again += self._client.server.starts != starts
            finish = "stop" if sampled.stopped or stops else "length"
            top = sampled.top_logprobs[: len(ids)]
            return Completion(ids, sampled.logprobs[: len(ids)], policy.version, finish, cached, top)


class VllmEpisode:
    """An episode: a growing sequence of ids."""

    def __init__(self, engine: VllmEngine, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        self._ids: list[int] = []
        self._turns = 0
        self._busy = False

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Append `new_ids`, then sample until a stop token, a stop text, `sampling.max_tokens` or the context's end.

        Raises ContextOverflow, with nothing sent, if the new ids and one more token do not fit; EngineError if vLLM
        refuses the request or does not come back. The episode is unchanged after an error and after a cancelled turn.
        """
        if self._busy:
            raise EngineError("This episode cannot go on: its last turn is not over.")
        if not (new_ids or self._ids):
            raise ValueError("A turn needs something to continue.")
        room = room_left(self._engine.max_context, len(self._ids), len(new_ids))
        prompt = [*self._ids, *new_ids]
        seed = _seed(self._seed, self._turns) if sampling.seed is None else _seed(sampling.seed)
        self._busy = True
        try:
            completion = await self._engine._sample(
                prompt, sampling, min(sampling.max_tokens, room), seed, first=not self._turns
            )
        finally:
            self._busy = False
        self._ids = prompt + completion.token_ids
        self._turns += 1
        return completion


def _seed(*parts: int) -> int:
    """Derive a seed in [0, 2^63) for one request."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
