"""The built-in backends, offered through the hook that plugins use."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError
from mcp_rl.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.backends.cluster.backend import RayBackend
    from mcp_rl.backends.local import LocalBackend
    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import MakeBackend


@hookimpl
def register_backends(register: Callable[[str, MakeBackend], None]) -> None:
    """Register the backend of this machine: a learner, and the in-process engine or vLLM; and that of a Ray cluster."""
    register("local", local)
    register("ray", OnRay())


class OnRay:
    """The backend of a Ray cluster, whose package is an extra."""

    def check(self) -> None:
        """Raise ConfigError if Ray is not installed."""
        if find_spec("ray") is None:
            raise ConfigError("The backend ray needs the package Ray: pip install 'mcp-rl[ray]'.")

    def __call__(self, config: RunConfig) -> RayBackend:
        """Make a backend for this run."""
        self.check()
        from mcp_rl.backends.cluster.backend import RayBackend

        return RayBackend(config)


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
