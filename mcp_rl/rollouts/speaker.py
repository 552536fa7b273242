"""A model's side of a conversation: the messages it reads, the turns it says, and the limits on both.

A policy speaks in tokens. Its next prompt is always the previous ids, the sampled ids and the rendering of only the new
messages.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mcp_rl.inference.engine import Completion, Engine, Episode, Sampling
from mcp_rl.system.activity import Activity, during
from mcp_rl.toolserver.tools.results import truncate_middle
from mcp_rl.trajectory import Segment, StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp_rl.inference.chat.calls import ParsedCompletion
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session


@dataclass(frozen=True)
class Limits:
    """Limits on one rollout, checked in this order; the first one reached names the StopReason.

    1. `seconds`, at any moment: TIMEOUT.
    2. A turn cut off before its stop token: CONTEXT_FULL if the engine had no room for the turn's share, else
       MAX_TOKENS if less than a turn's share was left, else MAX_TURN_TOKENS. Its calls are not executed.
    3. A turn without a tool call: ANSWERED, whatever the other limits say. If the scenario's user answers it, limits 5
       and 6 end the episode before another turn.
    4. `max_tool_calls`, if this turn's calls would exceed it: MAX_TOOL_CALLS; none of them is executed.
    5. `max_turns`, since no turn could read the results: MAX_TURNS; the calls are not executed.
    6. `max_tokens`, used up to the last one: MAX_TOKENS; the calls are not executed.
       If answers are handed in with a call, a turn with that call is exempt from 5 and 6.
    7. The engine's context, when the results do not fit: CONTEXT_FULL.
    """

    max_turns: int | None = None
    """Model turns, the answer included. The scenario's own limit is never exceeded; None leaves it alone."""
    max_turn_tokens: int = 256
    """Sampled tokens in one turn."""
    max_thought_tokens: int = 2048
    """Maximum tokens of a thought in one turn, which the other limits do not count."""
    max_tokens: int = 4096
    """Sampled tokens in all turns together."""
    max_tool_calls: int = 32
    seconds: float = 600.0
    """Wall-clock time of the rollout, waiting included."""
    max_result_tokens: int = 1024
    """Tokens of a tool result; a longer one is cut in the middle, with a mark that tells its length."""
    tool_deadline: float | None = None
    """Seconds for one tool call; None for the connection's limit. A call that takes longer is a fault."""


def cut_to_tokens(chat: ChatFormat, text: str, limit: int) -> str:
    """Return the text, without its middle if it is longer than `limit` tokens."""
    # no tokenizer makes more tokens of a text than it has bytes, so most texts need no counting
    if len(text.encode()) <= limit:
        return text
    return truncate_middle(text, limit, lambda part: len(chat.encode(part)), "tokens")


@dataclass(frozen=True)
class SaidTurn:
    """A model's turn."""

    parsed: ParsedCompletion
    text: str
    """The turn as written, calls included."""
    cut_off: StopReason | None = None
    """The limit that cut the turn off; None if the model ended it."""


class Speaker(Protocol):
    """A model's side of one conversation: reads new messages, says a turn."""

    sampled: int
    """Sampled tokens of all turns, thoughts within their limit not counted."""

    async def turn(self, new: Sequence[dict[str, Any]]) -> SaidTurn:
        """Return the turn that follows the new messages: first the opening, later the results of calls.

        Raises ContextOverflow if they do not fit, EngineError if the model could not be asked.
        """
        ...

    def cut(self, text: str, limit: int) -> str:
        """Return the text, without its middle if it is longer than `limit` tokens."""
        ...


class Surroundings(Protocol):
    """The surroundings of a rollout: the tools, and a system prompt. A dataclass."""

    @property
    def session(self) -> Session: ...

    @property
    def system_prompt(self) -> str | None: ...


class Setting(Surroundings, Protocol):
    """The surroundings of our own loop: a model that speaks, too."""

    def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AbstractAsyncContextManager[Speaker]:
        """Open the model's side of a new conversation, which records on the trajectory what it reads and says."""
        ...


@dataclass(frozen=True)
class PolicySetting:
    """The setting of a policy's rollout: the engine that samples, the chat format, the tools."""

    engine: Engine
    chat: ChatFormat
    session: Session
    system_prompt: str | None = None

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator[PolicySpeaker]:
        async with self.engine.episode(seed=trajectory.seed) as episode:
            yield PolicySpeaker(episode, self.chat, self.session, trajectory, temperature, limits)


class PolicySpeaker:
    """Samples turns from an engine, token-exactly: the history is never rendered or tokenized again."""

    def __init__(
        self,
        episode: Episode,
        chat: ChatFormat,
        session: Session,
        trajectory: Trajectory,
        temperature: float,
        limits: Limits,
    ) -> None:
        self.sampled = 0
        self._episode, self._chat, self._session = episode, chat, session
        self._segment = Segment()
        trajectory.segments = [self._segment]
        self._temperature, self._limits = temperature, limits

    async def turn(self, new: Sequence[dict[str, Any]]) -> SaidTurn:
        """Observe the rendering of the new messages alone, then sample up to a stop token or the limit."""
        said = self._segment.tokens
        new_ids = self._chat.continuation(new, after=said[-1]) if said else self._opening(new)
        left = self._limits.max_tokens - self.sampled
        thought = self._limits.max_thought_tokens if self._chat.thinks else 0
        budget = min(self._limits.max_turn_tokens, left) + thought
        with during(Activity.SAMPLING):
            completion = await self._sample(new_ids, Sampling(temperature=self._temperature, max_tokens=budget))
        self._segment.observe(new_ids)
        self._segment.act(completion.token_ids, completion.logprobs, completion.version)
        text = self._chat.decode(completion.token_ids)
        parsed = self._chat.parse(text, self._session.schemas.openai)
        self.sampled += len(completion.token_ids)
        if parsed.thought:
            self.sampled -= min(thought, len(self._chat.encode(parsed.thought)), len(completion.token_ids))
        return SaidTurn(parsed, text, self._cut_off(completion, budget, left))

    async def _sample(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        return await self._episode.generate(new_ids, sampling)

    def cut(self, text: str, limit: int) -> str:
        return cut_to_tokens(self._chat, text, limit)

    def _opening(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return self._chat.initial(messages, self._session.schemas.openai)

    def _cut_off(self, completion: Completion, budget: int, left: int) -> StopReason | None:
        if completion.finish == "stop":
            return None
        if len(completion.token_ids) < budget:
            return StopReason.CONTEXT_FULL
        return StopReason.MAX_TOKENS if left < self._limits.max_turn_tokens else StopReason.MAX_TURN_TOKENS
