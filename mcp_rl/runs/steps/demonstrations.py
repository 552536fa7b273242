"""Demonstrations: reference solutions of training scenarios, played on the live server for the policy to imitate.

Reinforcement learning finds nothing that the policy never samples. A run may therefore begin with some steps of
supervised fine-tuning (`train.sft_steps`), and its later steps imitate what none of their rollouts solved. A
demonstration has the tokens that the policy would have sampled, had it said the same; one that the verifier does not
call a success is left out. Each is played once, and imitated again in later passes over the scenarios.
"""

from __future__ import annotations

import functools
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Unpack

from anyio.lowlevel import checkpoint

from mcp_rl.config import TINY
from mcp_rl.errors import ConfigError, EngineError
from mcp_rl.evaluation.scripted import reference
from mcp_rl.inference.engine import Completion, room_left
from mcp_rl.rollouts.agents.player import opened_player
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import SettingPlayer
from mcp_rl.rollouts.rollout import derive_seed
from mcp_rl.rollouts.speaker import PolicySetting, PolicySpeaker
from mcp_rl.scenario import ServerGroup
from mcp_rl.trajectory import DEMONSTRATION, PLAYED_IN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence

    from mcp_rl.config import RunConfig
    from mcp_rl.evaluation.evaluate import EvaluationResult
    from mcp_rl.evaluation.progress import Progress
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine, Sampling
    from mcp_rl.rewards.scoring import Scoring
    from mcp_rl.rollouts.agents.demonstrating import Said
    from mcp_rl.rollouts.agents.player import AgentOptions
    from mcp_rl.rollouts.player import PlayerOptions
    from mcp_rl.rollouts.speaker import Limits
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

IN_STEP = 64
"""Demonstrations that a step imitates."""
BESIDE = 16
"""Most demonstrations that a step of rewards imitates, of scenarios that none of its rollouts solved."""
_STEPS, _MORE, _SHARE = 20, 30, 1 / 2
"""Steps of imitation where the settings leave them open: so many, or more where a level is hardly ever solved, and at
most this share of the run's."""
_SELDOM, _HARDLY = 0.7, 0.1
"""Success on held-out scenarios below which sampling finds too little to learn from, and next to nothing."""
_FEWEST = 10
"""Held-out scenarios of a level by which it is judged."""


class DemonstratingSetting(PolicySetting):
    """The setting of a demonstration: the reference solution speaks, in the policy's tokens."""

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator[PolicySpeaker]:
        episode = DemonstratedEpisode(self, reference(scenario, self.session))
        yield PolicySpeaker(episode, self.chat, self.session, trajectory, temperature, limits)


class DemonstratedEpisode:
    """An engine's episode in which every turn is given. Its tokens have the log-probability 0."""

    def __init__(self, setting: DemonstratingSetting, turns: Sequence[Said]) -> None:
        self._setting, self._turns = setting, list(turns)
        self._said = self._held = 0

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Return the next turn. Raises EngineError for one that no policy could sample, ContextOverflow where it has no
        room."""
        await checkpoint()
        room = room_left(self._setting.engine.max_context, self._held, len(new_ids))
        text, calls = self._turns[min(self._said, len(self._turns) - 1)]
        try:
            whole = self._setting.chat.said(text, calls, self._setting.session.schemas.openai)
        except ValueError as error:
            raise EngineError(f"The reference solution cannot be said by a model: {error}.") from error
        ids = whole[: min(room, sampling.max_tokens)]
        self._said += 1
        self._held += len(new_ids) + len(ids)
        finish = "stop" if len(ids) == len(whole) else "length"
        return Completion(ids, [0.0] * len(ids), self._setting.engine.version, finish)


@asynccontextmanager
async def opened_demonstrator(
    agent: AgentOptions | None,
    engine: Engine,
    chat: ChatFormat,
    sessions: Sessions,
    *,
    system_prompt: str | None = None,
    **options: Unpack[PlayerOptions],
) -> AsyncIterator[SettingPlayer]:
    """Open a player of reference solutions: by our own loop, or through the user's agent program."""
    if agent is not None:
        opening = opened_player(agent, engine, chat, sessions, system_prompt=system_prompt, script=reference, **options)
        async with opening as player:
            yield player
    else:
        setting = functools.partial(DemonstratingSetting, engine, chat, system_prompt=system_prompt)
        yield SettingPlayer(setting, sessions, **options)


class Demonstrations:
    """The demonstrations of a run: each step takes the next ones of a shuffle."""

    def __init__(
        self, config: RunConfig, scenarios: Sequence[McpScenario], player: SettingPlayer, progress: Progress
    ) -> None:
        self._config, self._scenarios, self._player, self._progress = config, list(scenarios), player, progress
        rollout = config.rollout
        self._in_step = IN_STEP  # a program takes a second to start: no more than a step of rewards has
        if rollout.agent is not None:
            self._in_step = min(IN_STEP, rollout.groups_per_step * rollout.group_size)
        self._played: dict[str, TrajectoryGroup] = {}
        self.problem = ""
        """Why the first solution of the newest step that did not succeed did not, as a sentence."""

    async def play(self, step: int, scoring: Scoring) -> list[TrajectoryGroup]:
        """Return the demonstrations of a step, from 1, a group each: only those with a success."""
        taken = self._taken(step)
        new = [one for one in taken if one.id not in self._played]
        shown = await self._shown(new, step, scoring) if new else []
        self.remember(shown)
        known = self._played | {group.scenario.id: group for group in shown}
        return [known[one.id] for one in taken if one.id in known]

    def remember(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Take in demonstrations that were played, in order not to play them again, unless others act in them."""
        self._played |= {
            group.scenario.id: group for group in groups if group.demonstrates and not group.scenario.seats
        }

    def forget(self) -> None:
        """Free the memory of what was played."""
        self._played.clear()

    async def beside(self, groups: Sequence[TrajectoryGroup], step: int, scoring: Scoring) -> list[TrajectoryGroup]:
        """Return demonstrations of scenarios that no rollout of a step solved, from which rewards teach nothing."""
        possible = {one.id for one in self._scenarios}
        unsolved = [group.scenario for group in groups if group.scenario.id in possible and _is_unsolved(group)]
        return await self._shown(unsolved[:BESIDE], step, scoring) if unsolved else []

    async def _shown(self, taken: Sequence[McpScenario], step: int, scoring: Scoring) -> list[TrajectoryGroup]:
        with self._progress.rollouts(f"step {step}, reference solutions", len(taken), 1) as bar:
            groups = await gather_groups(
                [GroupPlan(scenario, [functools.partial(self._play, scenario, step)]) for scenario in taken],
                max_exceptions=1.0,
                after_each=bar.around(scoring.group),
                on_rollout=bar.finished,
            )
        for group in groups:
            group.metadata |= {DEMONSTRATION: True, PLAYED_IN: step}
        problems = (one.fault or one.explanation for group in groups for one in group if not one.success)
        self.problem = next(filter(None, problems), "")
        return [group for group in groups if any(one.trainable and one.success for one in group)]

    def _taken(self, step: int) -> list[McpScenario]:
        """Return the scenarios of a step: every pass over all of them has its own order."""
        count, size = len(self._scenarios), min(self._in_step, len(self._scenarios))
        places = range((step - 1) * size, step * size)
        orders: dict[int, list[McpScenario]] = {}
        for epoch in {place // count for place in places}:
            orders[epoch] = list(self._scenarios)
            random.Random(derive_seed("demonstrations", self._config.seed, epoch)).shuffle(orders[epoch])
        taken = {one.id: one for one in (orders[place // count][place % count] for place in places)}
        return list(taken.values())

    def _play(self, scenario: McpScenario, step: int, attempt: int) -> Awaitable[Trajectory]:
        seed = derive_seed("demonstration", self._config.seed, step, scenario.id, attempt)
        return self._player.play(scenario, seed)


def _is_unsolved(group: TrajectoryGroup) -> bool:
    """Return whether every rollout was a whole one, and none a success."""
    return len(group) > 0 and all(one.trainable and one.success is False for one in group)


def demonstrable(scenarios: Sequence[McpScenario]) -> list[McpScenario]:
    """Return the scenarios whose solution can be shown: by calls, by a refusal where that is right, or by an answer
    where there is no server."""
    return [one for one in scenarios if one.reference or _refused(one) or _answered(one)]


def _refused(scenario: McpScenario) -> bool:
    return scenario.verifier is not None and scenario.verifier.kind == "none"


def _answered(scenario: McpScenario) -> bool:
    toolless = isinstance(scenario.server_params, ServerGroup) and not scenario.server_params.servers
    return toolless and scenario.reference_answer is not None


def steps_of_imitation(
    config: RunConfig, before: EvaluationResult, train: Sequence[McpScenario], val: Sequence[McpScenario]
) -> tuple[int, list[McpScenario]]:
    """Return the number of a run's first steps that imitate, and the scenarios whose solutions they imitate.

    Where the settings leave it open, the built-in model imitates if there is a level that it seldom solves, and
    other models imitate nothing. Raises ConfigError if the settings ask for it and no scenario has a solution.
    """
    wanted, possible = config.train.sft_steps, demonstrable(train)
    if wanted == "auto":
        if config.base_model != TINY or config.init is not None:
            return 0, []
        success = _success(before, val)
        unsolved = [success[level] for level in {one.level for one in possible} if success.get(level, 1.0) < _SELDOM]
        if not unsolved:
            return 0, []
        steps = _MORE if min(unsolved) < _HARDLY else _STEPS
        return min(steps, int(_SHARE * config.steps)), possible  # of all levels, so that none is forgotten
    if wanted and not possible:
        raise ConfigError("No training scenario has a reference solution to imitate: set train.sft_steps=0.")
    return wanted, possible


def _success(before: EvaluationResult, val: Sequence[McpScenario]) -> dict[str, float]:
    """Return the base's success on the held-out scenarios of each level that has enough: greedily, if it played so."""
    of_level: dict[str, list[float]] = {}
    outcomes: Mapping[str, list[float]] = before.outcomes
    for one in val:
        found = outcomes.get(one.id) or []
        of_level.setdefault(one.level, []).extend(found[:1] if before.greedy else found)
    return {level: sum(found) / len(found) for level, found in of_level.items() if len(found) >= _FEWEST}
