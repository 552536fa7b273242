"""The built-in verifiers and rewards, registered through the same hooks as those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.clean_calls import clean_calls
from mcp_rl.rewards.program import PROGRAM, program
from mcp_rl.rewards.verifier import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.rewards.verdict import RewardFunction, VerifierFunction


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
