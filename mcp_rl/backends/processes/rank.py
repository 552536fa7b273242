"""A rank of a distributed learner: the work of every process when all do the same together."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mcp_rl.backends.processes.in_process import InProcessLearner, token_logprobs
from mcp_rl.backends.processes.meeting import SILENCE_SECONDS
from mcp_rl.errors import McpRlError
from mcp_rl.learning.parallel import Ranks
from mcp_rl.learning.step import update
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._C._distributed_c10d import Store
    from transformers import PreTrainedModel

    from mcp_rl.backends.hosts import LocalSettings, OpenedLearner
    from mcp_rl.config import TrainConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.learning.learner import Learner
    from mcp_rl.trajectory import TrajectoryGroup


@dataclass(frozen=True)
class Failure:
    """An error of a rank, as the ranks tell each other."""

    kind: str
    """The error's class."""
    sentence: str
    ours: bool
    """True for an McpRlError, which was raised on purpose."""


def own_device() -> torch.device:
    """Return the device of this process, which sees its own GPU alone or as the first."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def failure_of(error: BaseException) -> Failure:
    lines = without_secrets(str(error)).strip().splitlines() or ["no reason given"]
    return Failure(type(error).__name__, lines[0][:500], isinstance(error, McpRlError))


class RankLearner(InProcessLearner):
    """A rank of a distributed learner."""

    def __init__(
        self,
        settings: LocalSettings,
        *,
        on_base: Callable[[PreTrainedModel, ChatFormat], None] | None = None,
    ) -> None:
        super().__init__(settings, on_base=on_base)
        self.ranks: Ranks | None = None

    def enter(self, rank: int, size: int, store: Store) -> None:
        """Join the other ranks."""
        self.ranks = Ranks(rank, size, store, device=own_device(), timeout=SILENCE_SECONDS)

    def leave(self) -> None:
        if self.ranks is not None:
            self.ranks.close()
            self.ranks = None

    def _made(self, learner: Learner) -> None:
        assert self.ranks is not None
        learner.join(self.ranks, shard_reference=not self.sampled)  # an engine samples from the reference's weights

    @property
    def sampled(self) -> bool:
        """True if the engine samples rank 0's base; then the other ranks must load theirs in the same way."""
        return self._on_base is not None

    @property
    def sharded(self) -> bool:
        return self.settings.train.method == "full"

    @property
    def _offloads(self) -> bool:
        return super()._offloads and not self.sharded

    def load(self) -> OpenedLearner:
        return self._open()

    def agree(self) -> None:
        """Check that all ranks begin at the same step with the same weights. Raises CanaryError."""
        assert self.ranks is not None
        self.ranks.check_equal([torch.tensor([self.learner.step])], self.learner.step)
        if not self.sharded:
            self.ranks.check_equal(self.learner.parameters.values(), self.learner.step)

    def learn(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        self.learner.config = config
        return update(self.learner, groups)

    def gather(self, optimizer: bool) -> Learner | None:
        from mcp_rl.learning.undivided import undivided

        return undivided(self.learner, optimizer=optimizer)

    def measure(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        learner = self.learner
        assert learner.sharding is not None
        return learner.sharding.run(learner.model, functools.partial(token_logprobs, learner, sequences))
