"""A whole run, and what is different for larger models and judges."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from mcp_rl.config.contradictions import contradictions
from mcp_rl.config.learning import TrainConfig
from mcp_rl.config.machine import EngineConfig, PlacementConfig, UnslothConfig
from mcp_rl.config.playing import CurriculumConfig, RolloutConfig, ScenarioConfig, ToolsConfig, Transport
from mcp_rl.config.scoring import EvaluationConfig, JudgeConfig, RewardConfig
from mcp_rl.config.section import Section

TINY = "mcp-rl/tiny"


class RunConfig(Section):
    """A whole run."""

    server: tuple[str, ...] = Field(min_length=1)
    """A plugin's server name, an entry of a `server_config`, a script, a quoted command, or a URL; several together."""
    transport: Transport | None = None
    """How to speak to it; none: what the server prefers (SSE)."""
    plugins: tuple[str, ...] = ()
    """Python files with plugins of your own, beside the installed ones."""
    base_model: str = TINY
    """The built-in model, which needs no download and no GPU."""
    project: str = Field(default="default", pattern=r"^[\w][\w.-]*$")
    """Folder that holds the runs of one topic."""
    name: str = Field(default="", pattern=r"^([\w][\w.-]*)?$")
    """The run's folder; empty: server, model and seed."""
    output_dir: Path = Field(default=Path(".mcp_rl"))
    """Where projects are kept: beside the work they belong to."""
    seed: int = Field(default=0, ge=0)
    """All randomness follows from it."""
    backend: str = "local"
    """What trains and samples: this machine; plugins offer others."""
    trackers: tuple[str, ...] = ()
    """What else shows the metrics: `tensorboard`, `wandb`, a plugin's; none: they are in history.jsonl anyway."""
    init: Path | None = None
    """A run or a checkpoint whose adapter this run begins with; none: a fresh one."""
    steps: int = Field(default=120, ge=0)
    """Training steps: four minutes on two cores."""
    scenarios: ScenarioConfig = ScenarioConfig()
    """The tasks."""
    tools: ToolsConfig = ToolsConfig()
    """The tool servers."""
    rollout: RolloutConfig = RolloutConfig()
    """The episodes."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """The order of the tasks."""
    train: TrainConfig = TrainConfig()
    """The update."""
    engine: EngineConfig = EngineConfig()
    """What samples."""
    placement: PlacementConfig = PlacementConfig()
    """Processes and devices."""
    unsloth: UnslothConfig = UnslothConfig()
    """How the base is loaded."""
    judge: JudgeConfig = JudgeConfig()
    """The judge."""
    reward: RewardConfig = RewardConfig()
    """The reward."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """The proof."""

    @field_validator("server", "trackers", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        """Values that were not given come from the preset of the base model, and of the judge where there is one."""
        if not isinstance(given, Mapping):
            return given
        judge = given.get("judge")
        judged = JUDGE_PRESET if isinstance(judge, Mapping) and judge.get("model") else {}
        return _merged(_merged(preset_for(str(given.get("base_model", TINY))), judged), given)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for complaint in contradictions(self):
            raise ValueError(complaint)
        if not self.name:
            object.__setattr__(self, "name", run_name(self))
        return self

    @property
    def run_dir(self) -> Path:
        """`<output_dir>/<project>/models/<name>`."""
        return self.output_dir / self.project / "models" / self.name


# What a pretrained chat model of billions of parameters wants instead of the defaults above.
LARGE_MODEL_PRESET: dict[str, Any] = {
    "steps": 100,
    "scenarios": {"max_steps": 5, "unsolvable": 0.05, "without_tools": 0.05},
    "rollout": {
        "groups_per_step": 8,
        "group_size": 8,
        "max_turns": 10,
        "max_turn_tokens": 1024,
        "max_tokens": 4096,
        "max_result_tokens": 2048,
        "concurrency": 64,
        "deadline": 1200.0,
    },
    "train": {"learning_rate": 1e-5, "decay_steps": 0, "epochs": 1, "checkpoint_every": 1, "sequence_norm": 4096},
}


JUDGE_PRESET: dict[str, Any] = {"train": {"scale_by_std": False}}
"""A judge's scores are rarely equal and often close."""


def preset_for(base_model: str) -> dict[str, Any]:
    """Values that differ from the defaults for this base model. The defaults themselves suit `mcp-rl/tiny`."""
    return {} if base_model == TINY else LARGE_MODEL_PRESET


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping):
            if isinstance(value, BaseModel):
                value = value.model_dump(exclude_unset=True)
            value = _merged(below, value) if isinstance(value, Mapping) else value
        merged[key] = value
    return merged


def run_name(config: RunConfig) -> str:
    """The same command finds the same run again: server, base model and, unless it is 0, the seed."""
    parts = [*map(_folder_name, config.server), _folder_name(config.base_model.removeprefix("mcp-rl/"))]
    return "-".join([*parts, f"seed{config.seed}"] if config.seed else parts)


def _folder_name(text: str) -> str:
    """The text itself where it can be a folder, else what can be read of it and a hash that keeps it apart.

    Of a command, its words up to the first option and no variables, of a URL its host and path without what looks
    random: the rest may hold a secret.
    """
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,59}", text):
        return text
    place = re.sub(r"^https?://([^/?#]*@)?|[?#].*|/(?=[^/]*\d)[\w=-]{32,}", "", text)
    telling = re.sub(r"\s-.*|(^|\s)[\w-]+=\S*", "", place, flags=re.DOTALL)
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", telling).strip("-.")[:40].strip("-.")
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
