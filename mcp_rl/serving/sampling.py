"""One turn that is being sampled, a slice of tokens at a time: its ids, and as much of its text as is certain.

The engine goes on where it stopped, with the random numbers that come next, so a turn in slices is the turn in one go.
Stop texts are cut off, as OpenAI's API has it; the ids are all that were sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.errors import ContextOverflow
from mcp_rl.inference.engine import Episode, Sampling
from mcp_rl.serving.refusals import context_exceeded

_CUT_CHARACTER = "\ufffd"


@dataclass(eq=False)
class SampledTurn:
    """`advance` until `finish` says why it ended."""

    episode: Episode
    chat: ChatFormat
    prompt: list[int]
    limit: int
    """Sampled tokens at most."""
    room: int
    """Tokens that the engine's context holds."""
    temperature: float
    stop: Sequence[str] = ()
    top_logprobs: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    """The likeliest tokens for each id, where some were asked for."""
    text: str = ""
    """What is certain of it: no half of a character, and nothing that may yet become a stop text."""
    finish: str = ""
    """"stop" or "length"."""
    stopped: bool = False
    """A stop text ended it, and cut its text."""
    version: int = -1
    """Of the policy that sampled its newest token."""
    cached: int = 0
    """Tokens of the prompt that the engine did not compute again."""

    async def advance(self, most: int | None = None) -> None:
        """Sample `most` tokens more, or to the end. Raises Refusal, EngineError."""
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
            held = max((_overlap(whole, text) for text in self.stop), default=0)
            certain = whole[: len(whole) - held].rstrip(_CUT_CHARACTER)
            self.text = certain if certain.startswith(self.text) else self.text

    def _end_at_stop_text(self) -> None:
        """Forget what was sampled after it. The engine ends a turn at the token that completes a stop text, but does
        not see one that began in the slice before."""
        self.stopped = True
        while any(text in self.chat.decode(self.ids[:-1]) for text in self.stop):
            for sampled in (self.ids, self.logprobs, self.top):
                del sampled[-1:]

    def likeliest(self, since: int) -> list[list[tuple[int, float]]]:
        """For each id from there on."""
        return self.top[since:] if self.top_logprobs else [[] for _ in self.ids[since:]]

    @property
    def continuable(self) -> bool:
        """Whether another message may follow the very ids: they end as every turn does, and all of it was answered."""
        return not self.stopped and bool(self.ids) and self.ids[-1] in self.chat.stop_token_ids


def _overlap(text: str, stop: str) -> int:
    """How much at the end of the text may be the beginning of the stop text."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-n:])), 0)
