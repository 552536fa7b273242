"""The built-in backend, offered through the hook that plugins use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.backends.local import LocalBackend
    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import MakeBackend


@hookimpl
def register_backends(register: Callable[[str, MakeBackend], None]) -> None:
    """Register the backend of this machine: a learner, and the in-process engine or vLLM."""
    register("local", local)


def local(config: RunConfig) -> LocalBackend:
    """Make a backend for this run."""
    from mcp_rl.backends.local import LocalBackend

    return LocalBackend(
        config=config.train,
        seed=config.seed,
        temperature=config.rollout.temperature,
        init=config.init,
        engine=config.engine,
        placement=config.placement,
        unsloth=config.unsloth,
        chat=config.chat,
        rollout=config.rollout,
    )
