"""What "auto" comes to on this machine. Nothing heavy is imported here."""

from typing import Literal

from mcp_rl.config import EngineConfig, PlacementConfig


def in_process(placement: PlacementConfig) -> bool:
    """Whether the learner is in the trainer's own process."""
    return placement.in_process is not False and len(placement.learner_gpus) < 2


def engine_kind(engine: EngineConfig) -> Literal["local", "vllm"]:
    """What samples."""
    if engine.kind != "auto":
        return engine.kind
    return "vllm" if engine.url or engine.python else "local"
