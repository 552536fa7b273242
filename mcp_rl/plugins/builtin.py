"""The built-in verifiers, rewards and the server `none`, registered through the same hooks as those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.clean_calls import clean_calls
from mcp_rl.rewards.program import PROGRAM, program
from mcp_rl.rewards.verifier import BUILT_IN
from mcp_rl.toolserver.tool_server import NO_SERVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.rewards.verdict import RewardFunction, VerifierFunction
    from mcp_rl.toolserver.tool_server import ToolServer


@hookimpl
def register_servers(register: Callable[[ToolServer], None]) -> None:
    """Register `none`, which docs/servers.md describes."""
    register(NO_SERVER)


@hookimpl
def register_verifiers(register: Callable[[str, VerifierFunction], None]) -> None:
    """Register the kinds that docs/rewards.md lists."""
    for kind, function in BUILT_IN.items():
        register(kind, function)


@hookimpl
def register_rewards(register: Callable[[str, RewardFunction], None]) -> None:
    """Register the reward that docs/rewards.md describes; the run itself adds `verifier` and `ruler`."""
    register("clean_calls", clean_calls)
    register(PROGRAM, program)
