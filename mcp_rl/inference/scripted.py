"""An engine without a model: a function writes every turn.

It replaces a slow model, so a whole evaluation runs in milliseconds; ids, limits and errors are those of a real engine.
The same seed and the same function give the same episode.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from mcp_rl.inference.engine import Completion, Sampling, room_left
from mcp_rl.inference.stops import StopRule

if TYPE_CHECKING:
    from mcp_rl.inference.chat.chat_format import ChatFormat

Reply = Callable[[str, int, int], str]
"""`reply(text so far, seed of the episode, turn from 0) -> text of the turn`, without the stop token."""


class ScriptedEngine:
    """Samples the text of `reply`, followed by the stop token, at a fixed logprob."""

    def __init__(
        self, reply: Reply, chat: ChatFormat, version: int = 0, *, max_context: int = 32_768, logprob: float = -0.1
    ) -> None:
        self.version = version
        self.max_context = max_context
        self._reply = reply
        self._chat = chat
        self._logprob = logprob

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[ScriptedEpisode]:
        """Open an episode; `seed` is passed to the function."""
        yield ScriptedEpisode(self, seed)

    def _turn(self, ids: list[int], seed: int, turn: int) -> list[int]:
        text = self._reply(self._chat.decode(ids), seed, turn)
        return [*self._chat.encode(text), self._chat.stop_token_ids[0]]


class ScriptedEpisode:
    """A scripted episode."""

    def __init__(self, engine: ScriptedEngine, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        self._turn = 0
        self._ids: list[int] = []

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Append `new_ids` and the scripted turn.

        The turn is cut after `sampling.max_tokens`, at the context's end, or after the first stop token or stop text.
        `sampling.seed` is passed to the function in place of the episode's. Raises ContextOverflow if not one token
        fits, and whatever the function raises.
        """
        await checkpoint()
        room = room_left(self._engine.max_context, len(self._ids), len(new_ids))
        self._ids += new_ids
        seed = self._seed if sampling.seed is None else sampling.seed
        whole = self._engine._turn(self._ids, seed, self._turn)
        stops = StopRule(sampling, self._engine._chat.stop_token_ids, self._engine._chat.decode)
        whole = whole[: stops.kept([], whole)[0]]
        sampled = whole[: min(room, sampling.max_tokens)]
        self._ids += sampled
        self._turn += 1
        finish = "stop" if len(sampled) == len(whole) else "length"
        logprob = self._engine._logprob
        top = [[(id, logprob)] for id in sampled] if sampling.top_logprobs else []
        return Completion(sampled, [logprob] * len(sampled), self._engine.version, finish, top_logprobs=top)
