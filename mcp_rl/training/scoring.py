"""How a finished group gets its rewards: by the scenario's verifier, by a judge, or by both."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from mcp_rl.config import JudgeConfig
from mcp_rl.errors import JudgeError
from mcp_rl.rewards.mix import mix_rewards
from mcp_rl.rewards.ruler import ruler_score_group
from mcp_rl.rewards.verifier import VerifierFunction, check_verifiers, verify
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import TrajectoryGroup

Score = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup]]


def make_score(
    judge: JudgeConfig, verifiers: Mapping[str, VerifierFunction], scenarios: Sequence[McpScenario]
) -> Score:
    """The scoring of a run: the verifier's alone, or the judge's too where one is named.

    Raises ScenarioError, before anything is played, where a scenario could not be scored.
    """
    needed = judge.model is None or judge.weight < 1
    check_verifiers([s for s in scenarios if needed or s.verifier is not None], verifiers)

    async def by_verifier(group: TrajectoryGroup) -> TrajectoryGroup:
        if group.scenario.verifier is not None:
            for trajectory in group:
                verify(trajectory, group.scenario, verifiers)
        return group

    return by_verifier if judge.model is None else _judged(by_verifier, judge.model, judge)


def _judged(by_verifier: Score, model: str, judge: JudgeConfig) -> Score:
    in_flight = anyio.Semaphore(judge.concurrency)

    async def by_judge(group: TrajectoryGroup) -> TrajectoryGroup:
        await by_verifier(group)
        try:
            async with in_flight:
                await ruler_score_group(
                    group,
                    model,
                    rubric=judge.rubric,
                    base_url=judge.base_url,
                    deadline=judge.deadline,
                    retries=judge.retries,
                )
        except JudgeError:
            for trajectory in group:  # the verifier's rewards must not pass for the judge's
                trajectory.reward = None
            raise
        return mix_rewards(group, {"verifier": 1 - judge.weight, "ruler": judge.weight}) if judge.weight < 1 else group

    return by_judge
