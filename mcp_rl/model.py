"""A named model: its run directory, its step, and the backend that trains it.

This module imports no torch; the backend brings it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import anyio
from pydantic import BaseModel

from mcp_rl.errors import ConfigError
from mcp_rl.learning.disk.checkpoint import newest_checkpoint
from mcp_rl.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from openai import AsyncOpenAI

    from mcp_rl.config import RunConfig, TrainConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
    from mcp_rl.inference.openai_api.served import ServedModel
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

ModelConfig = TypeVar("ModelConfig", bound=BaseModel | None)


@dataclass(frozen=True)
class TrainResult:
    """The result of one training step."""

    step: int
    """Training steps of the policy that is sampled from now on."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the step; docs/learning.md names them."""


@dataclass(frozen=True)
class EpisodeRecipe:
    """All that another machine needs to play a run's episodes."""

    config: RunConfig
    states: Mapping[str, Mapping[str, Any]]
    """The measured states of the tool servers, by their names, as JSON."""
    schemas: str
    """Hash of the tool schemas that the run's own session was offered."""


class PlaysElsewhere(Protocol):
    """Plays one scenario on another machine."""

    async def __call__(self, scenario: McpScenario, seed: int, temperature: float) -> Trajectory:
        """Return the unscored trajectory; a fault of the tool server is a faulted one. Raises RunStop."""
        ...


class Backend(Protocol):
    """Trains a model and samples from it. `LocalBackend` is one; plugins offer others.

    A plugin's backend may leave out `begin`, `choose`, `play_elsewhere`, `skipped`, `loaded` and `protect`:
    `with_defaults` adds them.
    """

    @property
    def skipped(self) -> Sequence[str]:
        """Warnings about what was loaded: one sentence for each damaged checkpoint that was passed over, and the like.
        Empty by default."""
        return ()

    @property
    def loaded(self) -> Mapping[str, Any]:
        """The base model as it was loaded, for model.json, so that a continued run loads the same. Empty by default."""
        return {}

    async def choose(self, model: TrainableModel[Any]) -> Sequence[str]:
        """Decide what the settings leave open, before anything is loaded; return sentences that say what was decided.
        By default nothing is left open."""
        return ()

    async def begin(self, model: TrainableModel[Any]) -> None:
        """Start in the background what takes long, while tools are explored; `register` goes on with it. Does nothing
        by default."""
        return

    async def play_elsewhere(self, recipe: EpisodeRecipe) -> PlaysElsewhere | None:
        """Return a player whose episodes run on other machines, beside their tool servers; None, the default: they run
        in this process. Called after `register`."""
        return None

    def protect(self, steps: Collection[int]) -> None:
        """Keep the checkpoints of these steps on disk, beside the newest ones and in place of those protected before.
        Does nothing by default."""
        return

    @property
    def engine(self) -> Engine:
        """The engine that samples the newest policy; its version is the step of the weights that it samples."""
        ...

    @property
    def chat(self) -> ChatFormat:
        """The chat format that the policy speaks."""
        ...

    @property
    def step(self) -> int:
        """Training steps that the weights have taken."""
        ...

    @property
    def frontier(self) -> Mapping[str, Any]:
        """The caller's data stored with the checkpoint that was continued; empty for a new run."""
        ...

    async def register(self, model: TrainableModel[Any]) -> None:
        """Load the model, at its newest whole checkpoint in `<model.path>/checkpoints`, or write the initial one."""
        ...

    async def train(
        self,
        model: TrainableModel[Any],
        groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        *,
        frontier: Mapping[str, Any] | None = None,
        save: bool | None = None,
    ) -> TrainResult:
        """Take one step and sample the new policy from then on. `save`: write a checkpoint; None: if one is due."""
        ...

    async def save(
        self,
        model: TrainableModel[Any],
        *,
        metrics: Mapping[str, float] | None = None,
        frontier: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Write the checkpoint of the current step, with the caller's own `files` in it, and return its folder."""
        ...

    def kept(self, name: str) -> bytes | None:
        """Return a file that the caller stored with the checkpoint that was continued; None if it has none."""
        ...

    async def close(self) -> None:
        """Free everything. Saved files stay."""
        ...


def with_defaults(backend: Backend) -> Backend:
    """Return the backend, with the defaults of `Backend` for the optional parts that it lacks."""
    for name in ("begin", "choose", "play_elsewhere", "protect"):
        if not hasattr(backend, name):
            setattr(backend, name, MethodType(getattr(Backend, name), backend))
    for name, nothing in (("skipped", ()), ("loaded", {})):
        if not hasattr(backend, name):
            setattr(backend, name, nothing)
    return backend


class Model(Generic[ModelConfig]):
    """A named model and its run directory `<base_path>/<project>/models/<name>`. `config` is the user's to fill."""

    def __init__(
        self,
        name: str,
        project: str,
        *,
        config: ModelConfig = None,  # type: ignore[assignment]
        base_path: str | Path = ".mcp_rl",
    ) -> None:
        for what, text in (("model's name", name), ("project", project)):
            if not text or text.startswith(".") or "/" in text or "\\" in text:
                raise ConfigError(f"The {what} {text!r} cannot be a folder's name.")
        self.name, self.project = name, project
        self.config: ModelConfig = config
        self.base_path = Path(base_path)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.base_path / self.project / "models" / self.name

    async def get_step(self) -> int:
        """Return the step of the newest whole checkpoint; 0 if there is none."""
        checkpoint = await anyio.to_thread.run_sync(newest_checkpoint, self.path / "checkpoints")
        return checkpoint.step if checkpoint else 0

    async def log(
        self,
        groups: Iterable[TrajectoryGroup],
        split: str = "val",
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Write the groups to trajectories/<split>/<step>.jsonl and their means as a line of history.jsonl.

        Logging a step of a split again replaces its earlier log. `step` defaults to `get_step()`.
        """
        groups = list(groups)
        step = await self.get_step() if step is None else step
        line = {"step": step, "split": split, **group_metrics(groups), **(metrics or {})}
        await anyio.to_thread.run_sync(self._write_log, groups, split, step, line)

    def _write_log(self, groups: list[TrajectoryGroup], split: str, step: int, line: dict[str, Any]) -> None:
        run = RunDirectory(self.path)
        run.forget_line(step, split)
        run.save_trajectories(split, step, groups)
        run.append_history(line)


class TrainableModel(Model[ModelConfig]):
    """A base model and the adapter that is trained on it."""

    def __init__(
        self,
        name: str,
        project: str,
        base_model: str,
        *,
        config: ModelConfig = None,  # type: ignore[assignment]
        base_path: str | Path = ".mcp_rl",
    ) -> None:
        super().__init__(name, project, config=config, base_path=base_path)
        self.base_model = base_model
        self._backend: Backend | None = None
        self._served: ServedModel | None = None

    @property
    def backend(self) -> Backend:
        """The backend that trains this model. Raises ConfigError before `register`."""
        if self._backend is None:
            raise ConfigError(
                f"The model {self.name!r} has no backend yet: call `await model.register(backend)` first."
            )
        return self._backend

    @property
    def engine(self) -> Engine:
        """The engine that samples the newest policy."""
        return self.backend.engine

    @property
    def chat(self) -> ChatFormat:
        """The chat format that the policy speaks."""
        return self.backend.chat

    def openai_client(self, **options: Any) -> AsyncOpenAI:
        """Return an OpenAI client of the newest policy, for an agent loop of your own. Its models are `model.name`, and
        `model.name@step` for the step that is sampled now and no other.

        Requests never leave the process: there is no port and no key. A turn is sampled in the task that asks for it,
        and every request after the backend was closed is refused. `options` are those of AsyncOpenAI. Answers follow
        OpenAI's protocol (docs/serve.md); with `return_token_ids` they hold the ids that training needs. Raises
        ConfigError before `register`.
        """
        from mcp_rl.inference.openai_api.in_process import openai_client
        from mcp_rl.inference.openai_api.served import ServedModel
        from mcp_rl.inference.openai_api.service import Service

        _ = self.backend
        if self._served is None:
            self._served = ServedModel(
                lambda: [self.name, f"{self.name}@{self.engine.version}"],
                lambda: self.engine,
                lambda: self.chat,
                self.base_model,
            )
        return openai_client(Service([self._served]), **options)

    async def register(self, backend: Backend) -> None:
        """Make the backend load this model, at its newest whole checkpoint, and write model.json for a new run."""
        backend = with_defaults(backend)
        await backend.register(self)
        self._backend, self._served = backend, None
        about = self.path / "model.json"
        fields = {"name": self.name, "project": self.project, "base_model": self.base_model}
        written = json.loads(about.read_bytes()) if about.exists() else None
        known = fields if written is None else written
        if backend.loaded and "loaded" not in known:  # a run that is continued loads the same again
            known = known | {"loaded": dict(backend.loaded)}
        if known != written:
            RunDirectory(self.path).write_json(about.name, known)


def group_metrics(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """Return means over all trajectories of some groups, with faults counted apart.

    Metrics that could not be measured are left out, and so are demonstrations.
    """
    groups = [group for group in groups if not group.demonstrates]
    trajectories = [trajectory for group in groups for trajectory in group]
    usable = [trajectory for trajectory in trajectories if trajectory.trainable]
    exceptions = sum(len(group.exceptions) for group in groups) + len(trajectories) - len(usable)
    result: dict[str, float] = {
        "groups": len(groups),
        "rollouts": len(trajectories),
        "exception_rate": exceptions / max(1, exceptions + len(usable)),
        "sampled_tokens": sum(trajectory.sampled_tokens for trajectory in trajectories),
    }
    spreads = [pstdev(group.rewards) for group in groups if group.rewards]
    if usable:
        result["reward"] = fmean(trajectory.reward or 0.0 for trajectory in usable)
        result["reward_std_dev"] = fmean(spreads)
        result["turns"] = fmean(trajectory.turns for trajectory in usable)
    if judged := [trajectory.success for trajectory in usable if trajectory.success is not None]:
        result["success"] = fmean(judged)
    reasons = Counter(trajectory.stop_reason.value for trajectory in trajectories)
    return result | {f"stop_{name}": count / len(trajectories) for name, count in sorted(reasons.items())}
