"""One learner in several processes: what each of them, each rank, does when all do the same together."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from mcp_rl.backends.here import LearnerHere, token_logprobs
from mcp_rl.backends.hosts import LocalSettings, Opened
from mcp_rl.backends.meeting import SILENCE_SECONDS
from mcp_rl.boundary import without_secrets
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import TrainConfig
from mcp_rl.errors import McpRlError
from mcp_rl.learning.parallel import Ranks
from mcp_rl.learning.step import Learner
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True)
class Failure:
    """What a rank says of an error."""

    kind: str
    """Its class."""
    sentence: str
    ours: bool
    """Whether it was raised on purpose."""


def own_device() -> torch.device:
    """Where this process learns: each sees its own GPU alone, or as the first."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def failure_of(error: BaseException) -> Failure:
    lines = without_secrets(str(error)).strip().splitlines() or ["no reason given"]
    return Failure(type(error).__name__, lines[0][:500], isinstance(error, McpRlError))


class RankedLearner(LearnerHere):
    """A rank of a learner in several processes."""

    def __init__(
        self,
        settings: LocalSettings,
        *,
        on_base: Callable[[PreTrainedModel, ChatFormat], None] | None = None,
    ) -> None:
        super().__init__(settings, on_base=on_base)
        self.ranks: Ranks | None = None

    def enter(self, rank: int, size: int, store: "Store") -> None:
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
        """Whether rank 0's base is what the engine samples from; then the others must load theirs as it does."""
        return self._on_base is not None

    @property
    def sharded(self) -> bool:
        return self.settings.train.method == "full"

    def load(self) -> Opened:
        return self._open()

    def agree(self) -> None:
        """Make sure that all ranks begin at the same step with the same weights. Raises CanaryError."""
        assert self.ranks is not None
        self.ranks.check_equal([torch.tensor([self.learner.step])], self.learner.step)
        if not self.sharded:
            self.ranks.check_equal(self.learner.parameters.values(), self.learner.step)

    def learn(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        self.learner.config = config
        return self.learner.update(groups)

    def gather(self, optimizer: bool) -> Learner | None:
        from mcp_rl.learning.sharding import undivided

        return undivided(self.learner, optimizer=optimizer)

    def measure(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        learner = self.learner
        assert learner.sharding is not None
        return learner.sharding.run(learner.model, functools.partial(token_logprobs, learner, sequences))
