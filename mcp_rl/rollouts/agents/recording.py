"""An engine that samples for one agent program and records what it samples, token by token, as segments.

The prompts of a program are whole histories. One that continues a segment to the token grows it; any other, an edited
history or a second conversation, begins a new segment, in which it is given and not sampled. So every sampled token is
in exactly one segment, once.

A program that says what our own loop would say draws the same random numbers, and so gets the same tokens.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mcp_rl.inference.engine import Completion, Engine, Episode, Sampling
from mcp_rl.rollouts.rollout import derive_seed
from mcp_rl.system.activity import Activity, during
from mcp_rl.system.periods import timed
from mcp_rl.trajectory import Segment, StopReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.openai_api.refusals import Refusal
    from mcp_rl.inference.openai_api.requests import Message
    from mcp_rl.rollouts.speaker import Limits
    from mcp_rl.trajectory import Trajectory


@dataclass(eq=False)
class RecordedConversation:
    """A conversation of the program: its segment, and the engine's episode that holds the same tokens."""

    segment: Segment = field(default_factory=Segment)
    episode: Episode | None = None
    """The engine's episode; None once it is closed."""
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    busy: bool = False
    asked: Sequence[Message] = ()
    """The conversation as the program sent it with its newest request."""
    said: dict[str, Any] | None = None
    """The newest turn, as a message."""

    async def close(self) -> None:
        """Close the engine's episode; the segment may still grow, in a new one."""
        closing, self.closing, self.episode = self.closing, AsyncExitStack(), None
        await closing.aclose()


class Recorder(Protocol):
    """The episode in progress for which an engine records."""

    trajectory: Trajectory
    limits: Limits
    temperature: float
    max_turns: int

    async def work(self, job: Callable[[], Awaitable[Any]]) -> Any:
        """Do a job of a request as part of the episode, which ends it if the job fails."""
        ...

    def end(self, reason: StopReason) -> Refusal:
        """End the episode at a limit; return the answer to the request that met it."""
        ...


class RecordingEngine:
    """The engine of one episode: `engine`, with the episode's own temperature, limits and random numbers."""

    def __init__(self, engine: Engine, chat: ChatFormat, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder
        self.thought = recorder.limits.max_thought_tokens if chat.thinks else 0
        self.conversations: list[RecordedConversation] = []
        self.sampled = 0
        """Sampled tokens of all turns, for the limit on them."""
        self.cut_off: StopReason | None = None
        """The limit that cut the newest turn off; None if the model ended it."""
        self._opened = 0

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[RecordedTurn]:
        """Open one turn. The program's own seed is not used: tries of a group must differ."""
        turn = RecordedTurn(self, self._recorder)
        try:
            yield turn
        finally:
            if turn.conversation is not None:
                turn.conversation.busy = False

    async def aclose(self) -> None:
        for conversation in self.conversations:
            await conversation.close()

    def begin(self) -> int:
        """Count a turn; return the most tokens that it may sample. Raises Refusal, and ends the episode, where no turn
        is left."""
        recorder = self._recorder
        left = recorder.limits.max_tokens - self.sampled
        if recorder.trajectory.turns >= recorder.max_turns:
            raise recorder.end(StopReason.MAX_TURNS)
        if left < 1:
            raise recorder.end(StopReason.MAX_TOKENS)
        recorder.trajectory.turns += 1
        return min(recorder.limits.max_turn_tokens, left) + self.thought

    async def take(self, prompt: list[int]) -> tuple[RecordedConversation, list[int]]:
        """Return the conversation that a prompt continues, or a new one, and the prompt's ids that the engine lacks."""
        ready = [conversation for conversation in reversed(self.conversations) if not conversation.busy]
        conversation = next((one for one in ready if prompt[: len(one.segment.tokens)] == one.segment.tokens), None)
        if conversation is None:
            conversation = RecordedConversation()
            self.conversations.append(conversation)
            self._recorder.trajectory.segments.append(conversation.segment)
        conversation.busy = True
        if conversation.episode is not None:
            return conversation, prompt[len(conversation.segment.tokens) :]
        for idle in ready:  # one idle episode at a time stays in the engine
            if not idle.busy:
                await idle.close()
        base = self._recorder.trajectory.seed
        seed = derive_seed(base, self._opened) if self._opened else base
        self._opened += 1
        await conversation.close()
        conversation.episode = await conversation.closing.enter_async_context(self._engine.episode(seed=seed))
        return conversation, prompt

    async def sample(self, conversation: RecordedConversation, new_ids: list[int], sampling: Sampling) -> Completion:
        """Sample as part of the episode. An engine's episode that did not finish is not used again."""
        episode, conversation.episode = conversation.episode, None
        assert episode is not None
        with during(Activity.SAMPLING):
            completion = await episode.generate(new_ids, sampling)
        conversation.episode = episode
        return completion


class RecordedTurn:
    """One turn of a program, which may be sampled in slices."""

    def __init__(self, engine: RecordingEngine, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder
        self._left = 0
        self.conversation: RecordedConversation | None = None
        self._number: int | None = None
        """Its place among the episode's turns, once something was sampled."""

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample and record. The first slice is given the whole prompt."""
        engine, given = self._engine, list(new_ids)
        if self.conversation is None:
            self._left = engine.begin()
            self.conversation, given = await self._recorder.work(partial(engine.take, given))
        elif self._left < 1:
            return Completion([], [], engine.version, "length")
        most = min(sampling.max_tokens, self._left)
        sampling = replace(sampling, temperature=self._recorder.temperature, max_tokens=most)
        conversation = self.conversation
        with timed() as period:
            completion: Completion = await self._recorder.work(partial(engine.sample, conversation, given, sampling))
        periods = self._recorder.trajectory.turn_unix_seconds
        if self._number is None:
            self._number = len(periods)
            periods.append(period())
        periods[self._number] = (periods[self._number][0], period()[1])
        conversation.segment.observe(list(new_ids[len(conversation.segment.tokens) :]))
        conversation.segment.act(completion.token_ids, completion.logprobs, completion.version)
        self._left -= len(completion.token_ids)
        engine.sampled += len(completion.token_ids)
        engine.cut_off = None if completion.finish == "stop" else self._limit_met(conversation)
        return completion

    def _limit_met(self, conversation: RecordedConversation) -> StopReason | None:
        """Return the limit at which the turn ended; None if the program's own ended it."""
        if len(conversation.segment.tokens) >= self._engine.max_context:
            return StopReason.CONTEXT_FULL
        if self._left > 0:
            return None
        spent = self._engine.sampled >= self._recorder.limits.max_tokens
        return StopReason.MAX_TOKENS if spent else StopReason.MAX_TURN_TOKENS
