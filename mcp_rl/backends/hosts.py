"""The two sides of a backend: the learner host, and the sampler host of its policy.

The learner is in this process, in a child process, or distributed over several processes; the policy is sampled by the
in-process engine or by vLLM. `make_hosts.py` builds what the settings ask for, and `LocalBackend` sees only these
protocols. This module imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict

from mcp_rl.config import ChatConfig, EngineConfig, PlacementConfig, RolloutConfig, TrainConfig, UnslothConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
    from mcp_rl.trajectory import TrajectoryGroup


class BackendSettings(BaseModel):
    """Settings of a backend of this machine, for any model that it may train."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: TrainConfig = TrainConfig()
    engine: EngineConfig = EngineConfig()
    placement: PlacementConfig = PlacementConfig()
    unsloth: UnslothConfig = UnslothConfig()
    chat: ChatConfig = ChatConfig()
    rollout: RolloutConfig = RolloutConfig()
    """The limits by which memory is planned."""
    seed: int = 0
    temperature: float = 1.0
    """Temperature of the rollouts."""
    max_context: int | None = None
    """Most tokens of an episode."""
    init: Path | None = None
    """The run or checkpoint whose weights a new run begins with."""
    keep: int | None = None
    """Number of checkpoints that stay on disk; None: `train.keep_checkpoints`."""

    @property
    def kept_checkpoints(self) -> int:
        """Number of the newest checkpoints that stay on disk."""
        return self.train.keep_checkpoints if self.keep is None else self.keep

    def for_run(self, base_model: str, run: Path, title: str) -> LocalSettings:
        """Return these settings for one run."""
        return LocalSettings(base_model=base_model, run=run, title=title, **dict(self))


class LocalSettings(BackendSettings):
    """Settings of one run: the single object that backend, learner host, sampler host and child process work from.

    It serialises to JSON for the child process.
    """

    base_model: str
    run: Path
    """The run directory."""
    title: str
    """`project/name`, for model cards."""

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.run / "checkpoints"


class OpenedLearner(BaseModel):
    """The result of opening a learner host."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: Path | None = None
    """The checkpoint that is continued; None for a new run."""
    frontier: dict[str, Any] = {}
    """The caller's data stored with that checkpoint."""
    skipped: list[str] = []
    """Warnings: one sentence for each damaged checkpoint that was passed over, one for other versions of packages, and
    one for a model whose shared prefixes cannot be computed once."""
    loaded: dict[str, Any] = {}
    """The base model as it was loaded, for model.json."""


class CheckpointExtras(BaseModel):
    """The contents of a checkpoint besides the learner's own files."""

    metrics: dict[str, int | float] | None = None
    """Metrics of the step, for the model card."""
    frontier: dict[str, Any] | None = None
    """The caller's data, JSON."""
    files: dict[str, bytes] = {}
    """The caller's own files, by name."""
    protect: tuple[int, ...] = ()
    """Steps whose checkpoints stay on disk beside the newest ones."""


class LearnerHost(Protocol):
    """The place of the learner: in process, in a child, or distributed.

    Every method raises what the learner raises, and EngineError if its process is gone.
    """

    chat: ChatFormat | None = None
    """The chat format of the base as it was loaded; None before `open`, or if this process cannot have exactly the same
    without transformers."""

    @property
    def step(self) -> int:
        """Training steps that the weights have taken; one more than expected if an update broke off half-way."""
        ...

    async def open(self) -> OpenedLearner:
        """Load the base; continue from the newest whole checkpoint, or begin."""
        ...

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        """Take one step and return the metrics of `Learner.update`. Nothing is saved."""
        ...

    async def save(self, extras: CheckpointExtras) -> Path:
        """Write the checkpoint of the current step and the last batch; return the checkpoint's folder."""
        ...

    async def write_policy(self, folder: Path) -> None:
        """Write what a server needs to sample the current policy: a PEFT adapter, or a whole model (method "full")."""
        ...

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the natural-log probability of every token but a sequence's first, under the current policy at
        temperature 1."""
        ...

    async def rest(self) -> dict[str, float]:
        """Move the learner to the machine's memory, if the settings say so, and return what that took as metrics. Until
        `wake` it can be saved, but computes nothing. By default nothing moves."""
        return {}

    async def wake(self) -> dict[str, float]:
        """End `rest`. Every other method may be called afterwards."""
        return {}

    async def close(self) -> None:
        """Free the learner's memory and end its processes."""
        ...


class SamplerHost(Protocol):
    """The sampler of the learner's policy."""

    @property
    def engine(self) -> Engine:
        """The engine. Raises ConfigError before `open`."""
        ...

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        """Get ready to sample. Called after the learner was opened."""
        ...

    async def prepare(self, learner: LearnerHost, step: int) -> None:
        """Get from the learner what `take` of the same step needs, so that the learner can rest meanwhile. By default
        `take` gets it itself."""
        return

    async def take(self, learner: LearnerHost, step: int) -> None:
        """Sample the learner's policy from now on. Raises CanaryError if another policy would be sampled."""
        ...

    async def rest(self) -> None:
        """Free memory that the learner may need; nothing is sampled until `wake`. By default it frees nothing: the
        in-process engine holds the learner's own base and a cache."""
        return

    async def wake(self) -> None:
        """End `rest`."""
        return

    async def close(self) -> None:
        """End the engine."""
        ...


class HostsToMake(Protocol):
    """The hosts of some settings, not opened yet, while everything that takes long starts."""

    @property
    def settings(self) -> LocalSettings:
        """The settings of the run."""
        ...

    async def prepared(self) -> None:
        """Wait until `make` may be called."""
        ...

    def make(self) -> tuple[LearnerHost, SamplerHost]:
        """Return both hosts, to be opened and closed by the caller from now on."""
        ...

    async def close(self) -> None:
        """End what was started, unless `make` gave it away."""
        ...
