"""Sample one turn in slices of tokens, and keep its ids and as much of its text as is certain.

The engine continues where it stopped, with the next random numbers, so a turn in slices equals the turn in one go. Stop
texts are cut off, as in OpenAI's API; the ids are all that were sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_rl.errors import ContextOverflow
from mcp_rl.inference.engine import Episode, Sampling
from mcp_rl.inference.openai_api.reading import begun_at_end
from mcp_rl.inference.openai_api.refusals import context_exceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.inference.chat.chat_format import ChatFormat

_CUT_CHARACTER = "\ufffd"


@dataclass(eq=False)
class SampledTurn:
    """A turn in progress: call `advance` until `finish` says why it ended."""

    episode: Episode
    chat: ChatFormat
    prompt: list[int]
    limit: int
    """Most tokens to sample."""
    room: int
    """Tokens that the engine's context holds."""
    temperature: float
    stop: Sequence[str] = ()
    top_logprobs: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    """The likeliest tokens for each id, if asked for."""
    text: str = ""
    """The certain text: without half characters, and without what may yet become a stop text."""
    finish: str = ""
    """"stop" or "length"; empty before the end."""
    stopped: bool = False
    """True if a stop text ended the turn and cut its text."""
    version: int = -1
    """Version of the policy that sampled the newest token."""
    cached: int = 0
    """Tokens of the prompt that the engine found in its cache."""

    async def advance(self, most: int | None = None) -> None:
        """Sample up to `most` more tokens, or to the end. Raises Refusal, EngineError."""
        left = min(self.limit, self.room - len(self.prompt)) - len(self.ids)
        wanted = left if most is None else min(most, left)
        new = [] if self.ids else self.prompt
        sampling = Sampling(self.temperature, wanted, stop=tuple(self.stop), top_logprobs=self.top_logprobs)
        try:
            completion = await self.episode.generate(new, sampling)
        except ContextOverflow as error:
            raise context_exceeded(self.room, len(self.prompt)) from error
        if new:
            self.cached = completion.cached_tokens
        self.ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.top += completion.top_logprobs
        self.version = completion.version
        ended = completion.finish == "stop"
        if ended or len(completion.token_ids) < wanted or wanted == left:
            self.finish = "stop" if ended else "length"
        self._read()

    def _read(self) -> None:
        whole = self.chat.decode(self.ids)
        if found := [at for at in (whole.find(text) for text in self.stop) if at >= 0]:
            self.text, self.finish = whole[: min(found)], "stop"
            self._end_at_stop_text()
        elif self.finish:
            self.text = whole
        else:
            held = max((begun_at_end(whole, text) for text in self.stop), default=0)
            certain = whole[: len(whole) - held].rstrip(_CUT_CHARACTER)
            self.text = certain if certain.startswith(self.text) else self.text

    def _end_at_stop_text(self) -> None:
        """Drop the tokens after the stop text.

        The engine ends a turn at the token that completes a stop text, but does not see one that began in the slice
        before.
        """
        self.stopped = True
        while any(text in self.chat.decode(self.ids[:-1]) for text in self.stop):
            for sampled in (self.ids, self.logprobs, self.top):
                del sampled[-1:]

    def likeliest(self, since: int) -> list[list[tuple[int, float]]]:
        """Return the likeliest tokens for each id from an index on."""
        return self.top[since:] if self.top_logprobs else [[] for _ in self.ids[since:]]

    @property
    def continuable(self) -> bool:
        """Return whether another message may follow these ids: they end as every turn does, and all of the text was
        answered."""
        return not self.stopped and bool(self.ids) and self.ids[-1] in self.chat.stop_token_ids
