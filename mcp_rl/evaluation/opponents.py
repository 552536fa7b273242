"""Opponents (`rollout.opponents`), who may speak in the other seats of an episode, opened once for all episodes."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import CheckpointError, ConfigError, ServerFault
from mcp_rl.evaluation.asked_function import AskedTurn, FunctionSetting
from mcp_rl.evaluation.chat_model import ChatModel, ChatSetting
from mcp_rl.evaluation.models import ModelSpec, find_model
from mcp_rl.evaluation.scripted import SCRIPTS, ScriptedSetting
from mcp_rl.rollouts.agents.command import PLAIN_FUNCTION, check_function, load_function
from mcp_rl.rollouts.episode import derive_seed
from mcp_rl.rollouts.seated import POLICY, Opponent
from mcp_rl.rollouts.speaker import PolicySetting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from mcp_rl.backends.samplers.policies import LocalPolicies
    from mcp_rl.config import RunConfig
    from mcp_rl.rollouts.speaker import Setting
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session

EARLIER = "earlier"
"""The name of an older checkpoint of the run itself, another one in each step."""


def earlier_steps(config: RunConfig, number: int) -> range:
    """Return the steps from whose checkpoints `earlier` is drawn for the batch of step `number`: every
    `rollout.earlier_every` steps, and the beginning. Empty if it is not among the opponents."""
    return range(0, number, config.rollout.earlier_every) if EARLIER in config.rollout.opponents else range(0)


def find_opponents(config: RunConfig) -> dict[str, ModelSpec | None]:
    """Return who may speak in the other seats, by name; None for the policy, its older checkpoints and functions.

    Raises ConfigError or CheckpointError for a model that cannot be found or asked.
    """
    runs = config.output_dir / config.project / "models"
    names = config.rollout.opponents or (POLICY,)
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"rollout.opponents names {doubled!r} twice; name each one once.")
    if config.rollout.opponents and config.rollout.agent is not None:
        raise ConfigError("An agent program drives its own conversation, so it has no opponents: leave --agent out.")
    if EARLIER in names and config.train.max_staleness:
        raise ConfigError(
            f"The opponent {EARLIER!r} is one checkpoint for all episodes of a step, and with train.max_staleness = "
            f"{config.train.max_staleness} those of several steps are played at once: set it to 0."
        )
    found: dict[str, ModelSpec | None] = {}
    for name in names:
        if PLAIN_FUNCTION.fullmatch(name):
            check_function(name, "opponent")
        ours = name in (POLICY, EARLIER) or PLAIN_FUNCTION.fullmatch(name)
        found[name] = None if ours else find_model(name, runs)
    return found


def check_seats(scenarios: Sequence[McpScenario], config: RunConfig, *, seats: bool, judged: bool) -> None:
    """Check that scenarios with seats can be played. `seats` is True if the server declares its own, `judged` if a
    judge scores groups. Raises ConfigError with what to change."""
    seated = [scenario for scenario in scenarios if scenario.seats]
    if not seated:
        return
    if not seats:
        raise ConfigError(
            f"{seated[0].label} has seats, and its server declares none: give its ToolServer seats, or remove them."
        )
    if config.rollout.agent is not None:
        raise ConfigError(f"{seated[0].label} has seats, which an agent program cannot play: leave --agent out.")
    if judged:
        raise ConfigError(f"{seated[0].label} has seats, which no judge scores: leave --judge-model out.")
    names = config.rollout.opponents or (POLICY,)
    for scenario in seated:
        for seat in scenario.seats[1:]:
            if seat.played_by is not None and seat.played_by not in names:
                raise ConfigError(
                    f"{scenario.label} has the seat {seat.name} played by {seat.played_by!r}, which is not among the "
                    f"opponents ({', '.join(names)}); add it to rollout.opponents."
                )


@dataclass
class OpenedOpponents:
    """Opponents that are ready to speak. Calling it draws one for a seat."""

    by_name: Mapping[str, Opponent]
    config: RunConfig
    checkpoints: Path | None = None
    """The run's checkpoints, of which `earlier` is one; None: there is no run, and `earlier` is the base model."""
    earlier: LocalPolicies | None = field(default=None, repr=False)

    def __call__(self, named: str | None, seed: int) -> Opponent:
        names = list(self.by_name)
        name = named or names[derive_seed("opponent", seed) % len(names)]
        if name not in self.by_name:
            raise ServerFault(f"There is no opponent {name!r}; add it to rollout.opponents.")
        return self.by_name[name]

    async def prepare(self, number: int) -> None:
        """Choose the older checkpoint for the batch of this step, from the seed; for 0, an evaluation, the run's first.

        Raises CheckpointError if it is missing or damaged.
        """
        if self.earlier is None:
            return
        if self.checkpoints is None:
            await self.earlier.use(None, 0)
            return
        from mcp_rl.learning.disk.checkpoint import find_damage

        steps = earlier_steps(self.config, max(number, 1))
        step = steps[derive_seed("earlier", self.config.seed, number) % len(steps)]
        folder = self.checkpoints / f"{step:04d}"
        if damage := find_damage(folder):
            raise CheckpointError(
                f"The opponent {EARLIER!r} is drawn from the checkpoint {folder}, which cannot be read ({damage}): "
                "restore it, or start over with --fresh."
            )
        await self.earlier.use(folder, step)


@asynccontextmanager
async def opened_opponents(
    config: RunConfig, *, system_prompt: str | None = None, checkpoints: Path | None = None
) -> AsyncIterator[OpenedOpponents]:
    """Open the opponents of a run; each frozen model is loaded once, beside the policy.

    Raises what `find_opponents` raises, and ConfigError or CheckpointError for a model that cannot be loaded or asked.
    """
    async with AsyncExitStack() as stack:
        ready: dict[str, Opponent] = {}
        earlier: LocalPolicies | None = None
        for name, model in find_opponents(config).items():
            if name == POLICY:
                ready[name] = Opponent()
            elif PLAIN_FUNCTION.fullmatch(name):
                ready[name] = Opponent(
                    name, partial(_function, load_function(name, "opponent"), name, prompt=system_prompt)
                )
            elif model is None:
                earlier = await _opened(stack, config.base_model)
                ready[name] = Opponent(name, partial(_policy, earlier, prompt=system_prompt))
            else:
                ready[name] = await _opponent(stack, name, model, system_prompt)
        opened = OpenedOpponents(ready, config, checkpoints, earlier)
        await opened.prepare(0)
        yield opened


@asynccontextmanager
async def opened_models(models: Sequence[ModelSpec], prompt: str | None) -> AsyncIterator[dict[str, Opponent]]:
    """Open models side by side, by their labels. Raises ConfigError or CheckpointError if one cannot be loaded."""
    async with AsyncExitStack() as stack:
        yield {model.label: await _opponent(stack, model.label, model, prompt) for model in models}


async def _opponent(stack: AsyncExitStack, name: str, model: ModelSpec, prompt: str | None) -> Opponent:
    if model.kind == "chat":
        remote = ChatModel(model.name, model.base_url)
        stack.push_async_callback(remote.aclose)
        return Opponent(name, lambda session: ChatSetting(remote, session, prompt))
    if model.kind == "scripted":
        script = SCRIPTS[model.name]
        return Opponent(name, lambda session: ScriptedSetting(script, session, prompt))
    policies = await _opened(stack, model.name, model.place)
    await policies.use(model.checkpoint, model.step)
    return Opponent(name, partial(_policy, policies, prompt=prompt))


async def _opened(stack: AsyncExitStack, base: str, place: Path | None = None) -> LocalPolicies:
    from mcp_rl.backends.base.options import trained_options
    from mcp_rl.backends.samplers.policies import LocalPolicies  # imports torch

    return await stack.enter_async_context(LocalPolicies(base, trained_options(base, place)))


def _function(function: Callable[[AskedTurn], Any], name: str, session: Session, *, prompt: str | None) -> Setting:
    return FunctionSetting(function, name, session, prompt)


def _policy(policies: LocalPolicies, session: Session, *, prompt: str | None) -> Setting:
    return PolicySetting(policies.engine, policies.chat, session, prompt)
