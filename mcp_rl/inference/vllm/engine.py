"""vLLM as an engine: every turn is one request, with the ids of the whole episode as its prompt.

vLLM's prefix cache keeps what was computed for an episode between its turns. A request names the policy version that
answers it, so all tokens of a turn come from that one, and a new version begins with the next turn. Where a version has
no name of its own (all weights were replaced), turns wait until the weights are new, and those in flight end first.

    engine = VllmEngine(VllmClient(server), stop_token_ids=chat.stop_token_ids, decode=chat.decode, max_context=4096)
    await engine.load(version)
    engine.switch(version)
    async with engine.episode(seed=7) as episode:
        completion = await episode.generate(prompt_ids, Sampling())

With seeds, the same request gives the same tokens as long as logits do not change with what else is in vLLM's batch:
in float32 on a CPU nearly always, in 16 bits mostly.
"""

import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from mcp_rl.errors import ContextOverflow, EngineError
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.inference.stops import Decode, StopRule
from mcp_rl.inference.vllm.client import VllmClient


@dataclass(eq=False)
class PolicyVersion:
    """A policy as the server has it."""

    version: int
    model: str
    """By what name requests ask for it."""
    folder: Path | None = None
    """Where its weights lie: an adapter's, or with `whole` all of them; None: the server's base model."""
    whole: bool = False
    turns: int = field(default=0, init=False)
    """Turns that it is sampling."""


@dataclass
class Stats:
    """Counters since the engine was made."""

    turns: int = 0
    prompt_tokens: int = 0
    """Given tokens, and those that the episode had sampled before, of all turns."""
    reused_tokens: int = 0
    """Those of them that vLLM had in its prefix cache."""
    cached_tokens: int = 0
    """Those of them that began a new episode."""
    decoded_tokens: int = 0
    asked_again: int = 0
    """Turns that a dead server did not answer at first."""


class VllmEngine:
    """Samples with a vLLM server for all episodes at once.

    stop_token_ids: ids that end a turn. decode: the text of ids, for turns that stop at texts. max_context: most tokens
    of an episode. seeds: whether requests may bring a seed of their own.
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
        self.stats = Stats()
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
        """What new turns are sampled with."""
        if self._policy is None:
            raise EngineError("vLLM has no policy to sample yet: load one, and switch to it.")
        return self._policy

    @property
    def version(self) -> int:
        return self.policy.version

    @property
    def held(self) -> Sequence[PolicyVersion]:
        """What the server was given and has not been told to forget, oldest first."""
        return tuple(self._held)

    async def load(self, policy: PolicyVersion) -> None:
        """Give the server a version; turns go on with the one that there is. Raises EngineError where vLLM refuses
        it. Every weight is replaced at once, so that must happen between `pause` and `resume`."""
        await self._client.persist(lambda: self._give(policy))
        self._held = [held for held in self._held if not (policy.whole and held.whole)] + [policy]

    def switch(self, policy: PolicyVersion) -> None:
        """Sample new turns with a version that was loaded."""
        self._policy = policy

    async def forget(self, policy: PolicyVersion) -> None:
        """Have the server forget a version that no turn is sampled with any more."""
        self._held.remove(policy)
        if policy.folder is not None and not policy.whole:
            await self._client.persist(lambda: self._client.unload_adapter(policy.model))

    async def pause(self) -> None:
        """Let new turns wait, and return when no turn is being sampled any more."""
        if self._open.is_set():
            self._open = anyio.Event()
        while self._running:
            self._ended = anyio.Event()
            await self._ended.wait()

    def resume(self) -> None:
        self._open.set()

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator["VllmEpisode"]:
        """Open an episode, whose draws depend on `seed` alone."""
        yield VllmEpisode(self, seed)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[PolicyVersion]:
        """A turn under the newest version, which is kept until the turn is over."""
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
        """Give a server that was started again what it had."""
        if not self._forgotten:
            return
        async with self._restoring:
            if not self._forgotten:
                return
            starts, self._client.forgot = self._client.server.starts, False
            for policy in self._held:
                if policy.folder is not None and not policy.whole:
                    await self._client.unload_adapter(policy.model)  # of a try that broke off
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
            ids = sampled.token_ids
            if sampling.stop:  # vLLM looks for them in another text than we do: pieces as they come
                ids = ids[: next((n for n in range(1, len(ids)) if rule.ends(ids[:n])), len(ids))]
            stats = self.stats
            stats.turns += 1
            stats.prompt_tokens += len(prompt)
            cached = sampled.cached if first else 0
            stats.reused_tokens += sampled.cached
            stats.cached_tokens += cached
            stats.decoded_tokens += len(ids)
            stats.asked_again += self._client.server.starts != starts
            stopped = sampled.stopped or rule.ends(ids)
            finish = "stop" if stopped else "length"
            top = sampled.top_logprobs[: len(ids)]
            return Completion(ids, sampled.logprobs[: len(ids)], policy.version, finish, cached, top)


class VllmEpisode:
    """One growing sequence."""

    def __init__(self, engine: VllmEngine, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        self._ids: list[int] = []
        self._turns = 0
        self._busy = False

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Append `new_ids`, then sample until a stop token, a stop text, `sampling.max_tokens` or the context's end.

        Raises ContextOverflow, with nothing sent, where the new ids and one more token do not fit; EngineError where
        vLLM refuses the request or does not come back. Neither changes the episode, nor does a turn that is cancelled.
        """
        if self._busy:
            raise EngineError("This episode cannot go on: its last turn is not over.")
        if not (new_ids or self._ids):
            raise ValueError("A turn needs something to continue.")
        room = self._engine.max_context - len(self._ids) - len(new_ids)
        if room < 1:
            raise ContextOverflow(
                f"{len(self._ids)} tokens, {len(new_ids)} new ones and one more do not fit the context of "
                f"{self._engine.max_context} tokens."
            )
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
    """A seed in [0, 2^63) for one request."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
