"""The record of a rollout, token by token.

It holds the exact ids that the policy read and sampled. Messages are a view of them for people and judges; nothing is
ever rendered or tokenized again from messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, overload

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mcp_rl.scenario import McpScenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator


Period = tuple[float, float]
"""The Unix times, in seconds, at which something began and ended."""


def _empty(value: object) -> bool:
    return not value


class StopReason(StrEnum):
    """The reason why a rollout ended. `FAULT` is the world's mistake and keeps the trajectory out of training."""

    ANSWERED = "answered"
    """The model sent a message without a tool call."""
    MAX_TURNS = "max_turns"
    MAX_TURN_TOKENS = "max_turn_tokens"
    """A turn was cut off at its token limit."""
    MAX_TOKENS = "max_tokens"
    """The trajectory reached its limit on sampled tokens."""
    MAX_TOOL_CALLS = "max_tool_calls"
    CONTEXT_FULL = "context_full"
    PROGRAM_FAILED = "program_failed"
    """The agent program failed after it had asked the model: no answer, the model's mistake."""
    TIMEOUT = "timeout"
    """The rollout took too many seconds; kept out of training, since a slow machine is not the model's mistake."""
    FAULT = "fault"

    @property
    def trainable(self) -> bool:
        """True unless the world or the clock ended the rollout."""
        return self not in (StopReason.FAULT, StopReason.TIMEOUT)

    @property
    def truncated(self) -> bool:
        """True if a limit on tokens cut the rollout off."""
        return self in (StopReason.MAX_TURN_TOKENS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)


class Segment(BaseModel):
    """A sequence of tokens that only grows at its end. All four lists have the same length T."""

    model_config = ConfigDict(extra="forbid")

    tokens: list[int] = []
    sampled: list[bool] = []
    """True for a token that the policy sampled. This is the loss mask, and not the role."""
    logprobs: list[float] = []
    """Log-probability under the sampling distribution (temperature applied); 0.0 for a token not sampled."""
    versions: list[int] = []
    """Policy version (training step of the adapter) that sampled the token; -1 for a token not sampled."""

    @model_validator(mode="after")
    def _aligned(self) -> Segment:
        if len({len(self.tokens), len(self.sampled), len(self.logprobs), len(self.versions)}) != 1:
            raise ValueError("tokens, sampled, logprobs and versions must have one length")
        return self

    def observe(self, token_ids: list[int]) -> None:
        """Append tokens that the policy was given."""
        self.tokens += token_ids
        self.sampled += [False] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)
        self.versions += [-1] * len(token_ids)

    def act(self, token_ids: list[int], logprobs: list[float], version: int) -> None:
        """Append tokens that the policy sampled."""
        if len(token_ids) != len(logprobs) or not all(map(math.isfinite, logprobs)):
            raise ValueError("each sampled token needs one finite logprob")
        self.tokens += token_ids
        self.sampled += [True] * len(token_ids)
        self.logprobs += logprobs
        self.versions += [version] * len(token_ids)


class CallRecord(BaseModel):
    """A tool call as the model made it, and its result."""

    model_config = ConfigDict(extra="forbid")

    turn: int
    name: str
    """The tool's name as the model wrote it."""
    tool: str | None = None
    """The server's name of the tool; None if there is no such tool."""
    arguments: dict[str, Any] | None = None
    """The arguments; None if the model's JSON is unreadable."""
    result: str = ""
    """The text that the model read."""
    structured: Any = None
    is_error: bool = False
    """True if the tool reported an error or the call was refused before it was sent: a mistake, not a fault."""
    sent: bool = True
    reads_only: bool = False
    """True if the server declares that the tool changes nothing."""
    asked: list[dict[str, Any]] = []
    """Questions that the server asked the user during the call, with the answers of the declared policy."""
    seconds: float = 0.0
    unix_seconds: Period | None = None
    """When it was sent, and when its result had come; None if that is unknown or it was not sent."""


class Trajectory(BaseModel):
    """A rollout of one scenario."""

    model_config = ConfigDict(extra="forbid")

    scenario_id: str
    seed: int = 0
    segments: list[Segment] = []
    messages: list[dict[str, Any]] = []
    """OpenAI chat messages, for people and judges."""
    calls: list[CallRecord] = []
    submission: str | None = None
    """The answer handed in with a call, if the scenario wants that, or the answer of an agent program."""
    final_state: list[CallRecord] = []
    """The verifier's own calls after the last turn, on the rollout's session; the model never sees them."""
    stop_reason: StopReason = StopReason.ANSWERED
    fault: str | None = None
    """The world's mistake, in one sentence."""
    reward: float | None = None
    """The reward; None until scored."""
    success: bool | None = None
    metrics: dict[str, float] = {}
    """The parts of the reward, and other numbers to average."""
    explanation: str | None = None
    """The verifier's or the judge's explanation."""
    seconds: float = 0.0
    unix_seconds: Period | None = None
    """When the rollout began and ended, waiting included; None for one that an earlier version recorded."""
    turns: int = 0
    """Model turns."""
    turn_unix_seconds: list[Period] = []
    """When each turn was asked for, and when it had been sampled."""
    seat: str | None = Field(default=None, exclude_if=_empty)
    """The seat, where the episode has several."""
    speaker: str | None = Field(default=None, exclude_if=_empty)
    """Who spoke in the seat: "policy", or the name of an opponent, from whom nothing is learned."""
    others: list[Trajectory] = Field(default=[], exclude_if=_empty)
    """The other seats of the episode; only the first seat's trajectory holds them."""

    @property
    def final_answer(self) -> str | None:
        """The text that the model submitted; None if it never did."""
        if self.submission is not None:
            return self.submission
        if self.stop_reason is not StopReason.ANSWERED or not self.messages:
            return None
        last = self.messages[-1]
        return last.get("content") or "" if last.get("role") == "assistant" else None

    @property
    def trainable(self) -> bool:
        """True if the rollout ended properly and was scored."""
        return self.stop_reason.trainable and self.reward is not None

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(sum(segment.sampled) for segment in self.segments)


@dataclass(frozen=True)
class PendingGroup:
    """Rollouts of one scenario, still to be awaited by `gather_trajectory_groups`."""

    rollouts: tuple[Awaitable[Trajectory], ...]
    scenario: McpScenario | None = None
    """The scenario; None if the rollouts hold it."""


DEMONSTRATION = "demonstration"
"""Key in the metadata of a group whose trajectories are reference solutions."""
PLAYED_IN = "played_in_step"
"""Key in the metadata of such a group: the step in which it was played, which may be before the one that imitates it.
"""


class TrajectoryGroup(BaseModel):
    """Rollouts of one scenario, scored against each other; failed rollouts are kept as sentences in `exceptions`.

    `TrajectoryGroup(awaitables)` makes a `PendingGroup`, the group before its rollouts are done.
    """

    model_config = ConfigDict(extra="forbid")

    def __new__(cls, rollouts: Iterable[Awaitable[Trajectory]] | None = None, **fields: Any) -> Any:
        if rollouts is None:
            return super().__new__(cls)
        return PendingGroup(tuple(rollouts), **fields)

    if TYPE_CHECKING:

        @overload
        def __init__(self, rollouts: Iterable[Awaitable[Trajectory]], *, scenario: McpScenario | None = None) -> None:
            """Make a pending group for `gather_trajectory_groups`."""

        @overload
        def __init__(
            self,
            *,
            scenario: McpScenario,
            trajectories: list[Trajectory] = ...,
            exceptions: list[str] = ...,
            metadata: dict[str, Any] = ...,
        ) -> None:
            """Make a finished group."""

        def __init__(self, *args: Any, **fields: Any) -> None: ...

    scenario: McpScenario
    trajectories: list[Trajectory] = []
    exceptions: list[str] = []
    metadata: dict[str, Any] = Field(default_factory=dict)

    def played_in(self, step: int) -> bool:
        """Return whether a group that a step learned from was played in it."""
        return bool(self.metadata.get(PLAYED_IN, step) == step)

    @property
    def demonstrates(self) -> bool:
        """True if its trajectories are reference solutions, to be imitated whatever their rewards."""
        return bool(self.metadata.get(DEMONSTRATION))

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    @property
    def rewards(self) -> list[float]:
        """Rewards of the trajectories that may be trained on."""
        return [t.reward for t in self.trajectories if t.trainable and t.reward is not None]

    @property
    def has_variance(self) -> bool:
        """True if the rewards differ; else the group has no gradient."""
        return len(self.rewards) > 1 and max(self.rewards) - min(self.rewards) > 1e-9
