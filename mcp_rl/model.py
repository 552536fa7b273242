"""A model under a name: where its run lives on disk, which step it is at, which backend trains it.

This module imports no torch; the backend brings it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import anyio
from pydantic import BaseModel

from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.durable import write_atomically
from mcp_rl.errors import ConfigError
from mcp_rl.inference.engine import Engine
from mcp_rl.learning.checkpoint import newest_checkpoint
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from mcp_rl.backends.result import TrainResult
    from mcp_rl.config import TrainConfig
    from mcp_rl.serving.served import Served

ModelConfig = TypeVar("ModelConfig", bound=BaseModel | None)


class Backend(Protocol):
    """What trains a model and samples from it. `LocalBackend` is one; plugins offer others."""

    @property
    def engine(self) -> Engine:
        """Samples the newest policy; its version is the step of the weights that it samples."""
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
        """What was stored with the checkpoint that was continued; empty for a new run."""
        ...

    async def register(self, model: "TrainableModel[Any]") -> None:
        """Load the model, at its newest whole checkpoint in `<model.path>/checkpoints`, or write the initial one."""
        ...

    async def train(
        self,
        model: "TrainableModel[Any]",
        groups: Iterable[TrajectoryGroup],
        config: "TrainConfig | None" = None,
        *,
        frontier: Mapping[str, Any] | None = None,
        save: bool | None = None,
    ) -> "TrainResult":
        """One step, sampled from then on; a checkpoint is written where `save`, or where it is due (None)."""
        ...

    async def save(
        self,
        model: "TrainableModel[Any]",
        *,
        metrics: Mapping[str, float] | None = None,
        frontier: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Write the checkpoint of the current step, `files` of the caller's own among it; returns its folder."""
        ...

    def protect(self, step: int | None) -> None:
        """Retention leaves the checkpoint of this step alone, and of no other, beside the newest ones; None: only
        those."""
        ...

    def kept(self, name: str) -> bytes | None:
        """A file that the caller stored with the checkpoint that was continued; None where there is none."""
        ...

    async def close(self) -> None:
        """Let go of everything. What was saved stays."""
        ...


class Model(Generic[ModelConfig]):
    """A named model and its run directory `<base_path>/<project>/models/<name>`. `config` is the user's own slot."""

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
        """Step of the newest whole checkpoint; 0 where there is none."""
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

        Logging a step of a split again replaces what was logged for it. `step` defaults to `get_step()`.
        """
        groups = list(groups)
        step = await self.get_step() if step is None else step
        line = {"step": step, "split": split, **group_metrics(groups), **(metrics or {})}
        await anyio.to_thread.run_sync(self._write_log, groups, split, step, line)

    def _write_log(self, groups: list[TrajectoryGroup], split: str, step: int, line: dict[str, Any]) -> None:
        lines = "".join(group.model_dump_json() + "\n" for group in groups)
        write_atomically(self.path / "trajectories" / split / f"{step:04d}.jsonl", lines.encode())
        history = self.path / "history.jsonl"
        earlier = history.read_text().splitlines() if history.exists() else []
        kept = [text for text in earlier if not _is_about(text, step, split)]
        write_atomically(history, "".join(f"{text}\n" for text in [*kept, json.dumps(line)]).encode())


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
        self._served: Served | None = None

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
        """Samples the newest policy."""
        return self.backend.engine

    @property
    def chat(self) -> ChatFormat:
        """The chat format that the policy speaks."""
        return self.backend.chat

    def openai_client(self, **options: Any) -> "AsyncOpenAI":
        """A ready client of the newest policy, for an agent loop of your own: `model.name`, or `model.name@step` for
        the step that is sampled now and no other.

        Requests never leave the process: there is no port and no key. A turn is sampled in the task that asks for it,
        and after the backend was closed every request is refused. `options` are those of AsyncOpenAI. What it answers
        is OpenAI's protocol (docs/serve.md); with `return_token_ids` also the ids that training needs. Raises
        ConfigError before `register`.
        """
        from mcp_rl.serving.in_process import openai_client
        from mcp_rl.serving.served import Served
        from mcp_rl.serving.service import Service

        _ = self.backend
        if self._served is None:
            self._served = Served(
                lambda: [self.name, f"{self.name}@{self.engine.version}"],
                lambda: self.engine,
                lambda: self.chat,
                self.base_model,
            )
        return openai_client(Service([self._served]), **options)

    async def register(self, backend: Backend) -> None:
        """Make the backend load this model, at its newest whole checkpoint, and write model.json for a new run."""
        await backend.register(self)
        self._backend, self._served = backend, None
        about = self.path / "model.json"
        fields = {"name": self.name, "project": self.project, "base_model": self.base_model}
        written = json.loads(about.read_bytes()) if about.exists() else None
        loaded = getattr(backend, "loaded", None)  # which a run that is continued loads again
        known = fields if written is None else written
        if loaded and "loaded" not in known:
            known = known | {"loaded": dict(loaded)}
        if known != written:
            write_atomically(about, (json.dumps(known, indent=2) + "\n").encode())


def group_metrics(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """Means over all trajectories of some groups, faults counted apart; what could not be measured is left out."""
    groups = list(groups)
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


def _is_about(line: str, step: int, split: str) -> bool:
    content = json.loads(line)
    return bool(content.get("step") == step and content.get("split") == split)
