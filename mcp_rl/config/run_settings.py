"""The fields of `RunConfig`, without its presets and checks."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from mcp_rl.config.chat import ChatConfig
from mcp_rl.config.learning import TrainConfig
from mcp_rl.config.machine import EngineConfig, PlacementConfig, RayConfig, UnslothConfig
from mcp_rl.config.playing import CurriculumConfig, RolloutConfig, ScenarioConfig, ToolsConfig, Transport
from mcp_rl.config.scoring import EvaluationConfig, JudgeConfig, RewardConfig
from mcp_rl.config.section import CARRIED, LIVE, Role, Section
from mcp_rl.config.tracking import TrackingConfig

TINY = "mcp-rl/tiny"


def _fixed(reason: str, *, replay: bool = False, same_policy: bool = False) -> Role:
    """Mark a setting that a fork cannot change and that the identity does not hold among its settings."""
    return Role(identity=False, fixed=reason, replay=replay, same_policy=same_policy)


class RunSettings(Section):
    """Every setting of a run, in sections."""

    server: Annotated[tuple[str, ...], _fixed("the episodes so far used it")] = Field(min_length=1)
    """The tool server: a plugin's name, an entry of `server_config`, a script, a quoted command, or a URL; a list
    offers several together."""
    transport: Annotated[Transport | None, _fixed("pass it to `mcp-rl train` instead")] = None
    """Transport to the server; none: the first of those that it offers."""
    plugins: Annotated[tuple[str, ...], LIVE] = ()
    """Python files with your own plugins, beside the installed ones."""
    base_model: Annotated[str, _fixed("the checkpoint belongs to its base model")] = TINY
    """The model to train; the built-in one needs no download and no GPU."""
    project: Annotated[str, _fixed("use --project")] = Field(default="default", pattern=r"^[\w][\w.-]*$")
    """Folder that groups the runs of one topic."""
    name: Annotated[str, _fixed("use --name")] = Field(default="", pattern=r"^([\w][\w.-]*)?$")
    """Name of the run's folder; empty: made from server, model and seed."""
    output_dir: Annotated[Path, _fixed("use --output-dir")] = Field(default=Path(".mcp_rl"))
    """Folder that holds the projects, beside the work they belong to."""
    mirror: Annotated[str | None, LIVE] = Field(default=None, min_length=1)
    """Address for a copy of the run after every saved step, such as s3://bucket/runs: anything that fsspec reaches; a
    run that is further there than here goes on from it; none: no copy."""
    seed: Annotated[int, _fixed("the initial policy was evaluated with it", replay=True)] = Field(default=0, ge=0)
    """Seed of all randomness."""
    backend: Annotated[str, Role(carried=True, fixed="the checkpoint belongs to its backend")] = "local"
    """Backend that trains and samples: this machine; `ray` is a cluster, and plugins offer others."""
    trackers: Annotated[tuple[str, ...], LIVE] = ()
    """Trackers that show the run in other tools, such as `tensorboard`; its own folder holds everything in any case."""
    tracking: Annotated[TrackingConfig, LIVE] = TrackingConfig()
    """Data for the trackers: how many episodes, and if with their texts."""
    init: Annotated[Path | None, _fixed("a fork begins at a checkpoint", replay=True, same_policy=True)] = None
    """A run or a checkpoint whose adapter this run begins with; none: a fresh adapter."""
    steps: Annotated[int, Role(identity=False, replay=True, same_policy=True)] = Field(default=100, ge=0)
    """Training steps at most: two to three minutes on two cores."""
    target_success: Annotated[float | None, Role(identity=False, carried=True, replay=True, same_policy=True)] = Field(
        default=0.995, gt=0, le=1
    )
    """Success over the training scenarios, estimated from the last ten steps, at which a run ends before its last step:
    what is solved teaches nothing more; none: never."""
    scenarios: Annotated[ScenarioConfig, Role(fixed="its scenarios are already made")] = ScenarioConfig()
    """The tasks."""
    tools: Annotated[ToolsConfig, Role(fixed="the episodes so far used these tools")] = ToolsConfig()
    """The tool servers."""
    rollout: RolloutConfig = RolloutConfig()
    """The episodes."""
    chat: Annotated[ChatConfig, Role(measured=True)] = ChatConfig()
    """The chat format."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """The order of the tasks."""
    train: Annotated[TrainConfig, Role(replay=True)] = TrainConfig()
    """The update."""
    engine: Annotated[EngineConfig, CARRIED] = EngineConfig()
    """The engine that samples."""
    placement: Annotated[PlacementConfig, CARRIED] = PlacementConfig()
    """Processes and devices."""
    ray: Annotated[RayConfig, CARRIED] = RayConfig()
    """The parts of a run on a Ray cluster."""
    unsloth: UnslothConfig = UnslothConfig()
    """Loading of the base model."""
    judge: Annotated[JudgeConfig, Role(measured=True)] = JudgeConfig()
    """The judge."""
    reward: Annotated[RewardConfig, Role(measured=True)] = RewardConfig()
    """The reward."""
    evaluation: Annotated[EvaluationConfig, Role(fixed="the initial policy was evaluated with it")] = EvaluationConfig()
    """The measurement of success."""

    @field_validator("output_dir")
    @classmethod
    def _on_this_machine(cls, given: Path) -> Path:
        if re.match(r"[A-Za-z][\w+.-]+:/", str(given)):
            raise ValueError(
                "a run's folder is on this machine: leave it out, and keep a copy with mirror=, such as "
                "mirror=s3://bucket/runs"
            )
        return given

    @field_validator("server", "trackers", mode="before")
    @classmethod
    def _one_is_a_list(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given
