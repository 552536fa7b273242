"""Every setting of a run: one pydantic tree, with one line of reason for each default.

The defaults suit the built-in model; `preset_for` holds what differs for other base models, and given values win over
both. No field holds a secret: API keys are read from the environment where they are used.
"""

from mcp_rl.config.chat import ChatConfig
from mcp_rl.config.learning import LoraConfig, TrainConfig
from mcp_rl.config.levels import AUTO, LEVELS, MIXED, explored_levels, level_shares
from mcp_rl.config.listing import chosen_settings, config_keys, flat_values, role_of, section_of, settings
from mcp_rl.config.machine import EngineConfig, PlacementConfig, RayConfig, UnslothConfig
from mcp_rl.config.playing import (
    MOST_STEPS,
    CurriculumConfig,
    Elicitation,
    Isolation,
    RolloutConfig,
    SandboxKind,
    ScenarioConfig,
    ToolsConfig,
    Transport,
)
from mcp_rl.config.presets import DEFAULTS, SIZES, Default, ModelKind, defaults_for, kind_of
from mcp_rl.config.run import JUDGE_PRESET, RunConfig, preset_for, run_name
from mcp_rl.config.run_settings import TINY
from mcp_rl.config.scoring import EvaluationConfig, JudgeConfig, RewardConfig

__all__ = [
    "AUTO",
    "DEFAULTS",
    "JUDGE_PRESET",
    "LEVELS",
    "MIXED",
    "MOST_STEPS",
    "SIZES",
    "TINY",
    "ChatConfig",
    "CurriculumConfig",
    "Default",
    "Elicitation",
    "EngineConfig",
    "EvaluationConfig",
    "Isolation",
    "JudgeConfig",
    "LoraConfig",
    "ModelKind",
    "PlacementConfig",
    "RayConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxKind",
    "ScenarioConfig",
    "ToolsConfig",
    "TrainConfig",
    "Transport",
    "UnslothConfig",
    "chosen_settings",
    "config_keys",
    "defaults_for",
    "explored_levels",
    "flat_values",
    "kind_of",
    "level_shares",
    "preset_for",
    "role_of",
    "run_name",
    "section_of",
    "settings",
]
