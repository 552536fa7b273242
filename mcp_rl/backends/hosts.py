"""The two sides of a backend: where the learner is, and what samples its policy.

The learner may be in this process, in a child, or in several children with a GPU each; what samples may be the
in-process engine or vLLM. `make_hosts` puts together what the settings ask for; `LocalBackend` sees only the protocols.
This module imports no torch.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import EngineConfig, PlacementConfig, TrainConfig, UnslothConfig
from mcp_rl.inference.engine import Engine
from mcp_rl.trajectory import TrajectoryGroup


class LocalSettings(BaseModel):
    """What a backend of this machine is made of. JSON, so that a child process can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_model: str
    run: Path
    """The run directory."""
    title: str
    """`project/name`, for model cards."""
    train: TrainConfig = TrainConfig()
    engine: EngineConfig = EngineConfig()
    placement: PlacementConfig = PlacementConfig()
    unsloth: UnslothConfig = UnslothConfig()
    seed: int = 0
    temperature: float = 1.0
    max_context: int | None = None
    init: Path | None = None

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"


class Opened(BaseModel):
    """What a learner says when it is there."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: Path | None = None
    """The one that was continued."""
    frontier: dict[str, Any] = {}
    """What was stored with it."""
    skipped: list[str] = []
    """One sentence for each damaged checkpoint that was passed over, one for other versions of packages, and one for a
    model that shares no prefixes."""
    loaded: dict[str, Any] = {}
    """What was loaded, and how: for model.json."""


class LearnerHost(Protocol):
    """Where the learner is. Every method raises what the learner raises, and EngineError where its process is gone."""

    @property
    def step(self) -> int:
        """Training steps that the weights have taken; one further than expected where an update broke off half-way."""
        ...

    async def open(self) -> Opened:
        """Load the base, continue from the newest whole checkpoint or begin."""
        ...

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        """One step; the metrics of `Learner.update`, nothing saved."""
        ...

    async def save(
        self,
        *,
        metrics: Mapping[str, float] | None,
        frontier: Mapping[str, Any] | None,
        files: Mapping[str, bytes],
        keep: int,
        protect: Sequence[int],
    ) -> Path:
        """Write the checkpoint of the current step and the last batch; returns the checkpoint's folder."""
        ...

    async def write_policy(self, folder: Path) -> None:
        """Write what a server needs to sample the policy as it is: a PEFT adapter, or a whole model (method "full")."""
        ...

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Natural-log probability of every token but a sequence's first, under the policy as it is, temperature 1."""
        ...

    async def close(self) -> None: ...


class SamplerHost(Protocol):
    """What samples the learner's policy."""

    @property
    def engine(self) -> Engine: ...

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        """Be ready to sample. Called after the learner was opened."""
        ...

    async def take(self, learner: LearnerHost, step: int) -> None:
        """Sample the learner's policy from now on. Raises CanaryError where that is not what is sampled then."""
        ...

    async def rest(self) -> None:
        """Give up memory that the learner may need; nothing is sampled until `wake`."""
        ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...


async def begin_sampler(settings: LocalSettings) -> SamplerHost | None:
    """What samples, where its start takes long and need not wait for the learner: on its way, for `make_hosts`. None
    elsewhere. Raises ConfigError for what this machine cannot do."""
    from mcp_rl.backends.choices import engine_kind

    if engine_kind(settings.engine) != "vllm":
        return None
    from mcp_rl.backends.vllm_sampler import VllmSampler

    sampler = VllmSampler(settings)
    return sampler if await sampler.begin() else None


def make_hosts(settings: LocalSettings, begun: SamplerHost | None = None) -> tuple[LearnerHost, SamplerHost]:
    """Neither is opened yet; `begun` is what `begin_sampler` gave. Raises ConfigError for what this machine cannot
    do."""
    from mcp_rl.backends.choices import engine_kind, in_process

    vllm = engine_kind(settings.engine) == "vllm"
    if not in_process(settings.placement):
        from mcp_rl.backends.child import ChildLearner, ChildSampler

        child = ChildLearner(settings, sampling=not vllm)
        return child, begun or _vllm(settings) if vllm else ChildSampler(child)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as vLLM and nvidia-smi count; torch has not looked yet
    if vllm:
        from mcp_rl.backends.loading.first import import_first

        import_first(settings.unsloth.use)  # before transformers and PEFT, which come with what follows
    from mcp_rl.backends.here import LocalSampler
    from mcp_rl.backends.leader import learner_here

    if vllm:
        return learner_here(settings), begun or _vllm(settings)
    sampler = LocalSampler(settings)
    return learner_here(settings, on_base=sampler.build), sampler


def _vllm(settings: LocalSettings) -> SamplerHost:
    from mcp_rl.backends.vllm_sampler import VllmSampler

    return VllmSampler(settings)
