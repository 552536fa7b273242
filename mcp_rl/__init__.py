"""Point it at any MCP server and get a model that has mastered that server's tools, with proof.

All public names live here, and each is imported when it is first asked for, so that `import mcp_rl` stays light.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_rl.backends.local import LocalBackend
    from mcp_rl.config import RunConfig, TrainConfig
    from mcp_rl.errors import McpRlError, UserError
    from mcp_rl.gather import gather_trajectory_groups
    from mcp_rl.model import Model, TrainableModel
    from mcp_rl.plugins.hookspecs import hookimpl
    from mcp_rl.plugins.server import ToolServer
    from mcp_rl.rewards.ruler import ruler_score_group
    from mcp_rl.rollout import rollout
    from mcp_rl.scenario import (
        McpScenario,
        ServerParams,
        SseServer,
        StdioServer,
        StreamableHttpServer,
        ToolCall,
        Verifier,
        read_scenarios,
    )
    from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

_HOMES = {
    "LocalBackend": "mcp_rl.backends.local",
    "McpRlError": "mcp_rl.errors",
    "McpScenario": "mcp_rl.scenario",
    "Model": "mcp_rl.model",
    "RunConfig": "mcp_rl.config",
    "ServerParams": "mcp_rl.scenario",
    "SseServer": "mcp_rl.scenario",
    "StdioServer": "mcp_rl.scenario",
    "StopReason": "mcp_rl.trajectory",
    "StreamableHttpServer": "mcp_rl.scenario",
    "ToolCall": "mcp_rl.scenario",
    "ToolServer": "mcp_rl.plugins.server",
    "TrainConfig": "mcp_rl.config",
    "TrainableModel": "mcp_rl.model",
    "Trajectory": "mcp_rl.trajectory",
    "TrajectoryGroup": "mcp_rl.trajectory",
    "UserError": "mcp_rl.errors",
    "Verifier": "mcp_rl.scenario",
    "gather_trajectory_groups": "mcp_rl.gather",
    "hookimpl": "mcp_rl.plugins.hookspecs",
    "read_scenarios": "mcp_rl.scenario",
    "rollout": "mcp_rl.rollout",
    "ruler_score_group": "mcp_rl.rewards.ruler",
}

__all__ = [
    "LocalBackend",
    "McpRlError",
    "McpScenario",
    "Model",
    "RunConfig",
    "ServerParams",
    "SseServer",
    "StdioServer",
    "StopReason",
    "StreamableHttpServer",
    "ToolCall",
    "ToolServer",
    "TrainConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "UserError",
    "Verifier",
    "gather_trajectory_groups",
    "hookimpl",
    "read_scenarios",
    "rollout",
    "ruler_score_group",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


class _Package(ModuleType):
    """Keeps `mcp_rl.rollout` the function: importing its module of the same name would put the module there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
