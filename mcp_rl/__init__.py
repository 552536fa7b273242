"""Train a language model on the tools of any MCP server, and measure what it learned.

All public names are here; each is imported on first use, so that `import mcp_rl` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_rl.backends.local import LocalBackend
    from mcp_rl.config import RunConfig, TrainConfig
    from mcp_rl.errors import McpRlError, UserError
    from mcp_rl.model import Model, TrainableModel
    from mcp_rl.plugins.hookspecs import hookimpl
    from mcp_rl.plugins.resolve import resolve_server
    from mcp_rl.rewards.mix import mix_rewards
    from mcp_rl.rewards.ruler import ruler_score_group
    from mcp_rl.rewards.verifier import verify, verify_group
    from mcp_rl.rollouts.gather import gather_trajectory_groups
    from mcp_rl.rollouts.rollout import rollout
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
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.python_tools import python_tools
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

_HOMES = {
    "LocalBackend": "mcp_rl.backends.local",
    "McpRlError": "mcp_rl.errors",
    "McpScenario": "mcp_rl.scenario",
    "Model": "mcp_rl.model",
    "RunConfig": "mcp_rl.config",
    "ServerParams": "mcp_rl.scenario",
    "Sessions": "mcp_rl.toolserver.pool",
    "SseServer": "mcp_rl.scenario",
    "StdioServer": "mcp_rl.scenario",
    "StopReason": "mcp_rl.trajectory",
    "StreamableHttpServer": "mcp_rl.scenario",
    "ToolCall": "mcp_rl.scenario",
    "ToolServer": "mcp_rl.toolserver.tool_server",
    "TrainConfig": "mcp_rl.config",
    "TrainableModel": "mcp_rl.model",
    "Trajectory": "mcp_rl.trajectory",
    "TrajectoryGroup": "mcp_rl.trajectory",
    "UserError": "mcp_rl.errors",
    "Verifier": "mcp_rl.scenario",
    "gather_trajectory_groups": "mcp_rl.rollouts.gather",
    "hookimpl": "mcp_rl.plugins.hookspecs",
    "mix_rewards": "mcp_rl.rewards.mix",
    "python_tools": "mcp_rl.toolserver.python_tools",
    "read_scenarios": "mcp_rl.scenario",
    "resolve_server": "mcp_rl.plugins.resolve",
    "rollout": "mcp_rl.rollouts.rollout",
    "ruler_score_group": "mcp_rl.rewards.ruler",
    "verify": "mcp_rl.rewards.verifier",
    "verify_group": "mcp_rl.rewards.verifier",
}

__all__ = [
    "LocalBackend",
    "McpRlError",
    "McpScenario",
    "Model",
    "RunConfig",
    "ServerParams",
    "Sessions",
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
    "mix_rewards",
    "python_tools",
    "read_scenarios",
    "resolve_server",
    "rollout",
    "ruler_score_group",
    "verify",
    "verify_group",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
