"""How rollouts of a run get their rewards: by the scenario's verifier, by a judge, or by both."""

from collections.abc import Mapping, Sequence

import anyio

from mcp_rl.config import JudgeConfig
from mcp_rl.errors import JudgeError
from mcp_rl.rewards.mix import mix_rewards
from mcp_rl.rewards.ruler import ruler_score_group
from mcp_rl.rewards.verifier import VerifierFunction, check_verifiers, verify
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import Trajectory, TrajectoryGroup


class Scoring:
    """The verifier scores each rollout as it ends; a judge, where one is named, each group when it is complete."""

    def __init__(self, judge: JudgeConfig, verifiers: Mapping[str, VerifierFunction]) -> None:
        self._judge = judge
        self._verifiers = verifiers
        self._verdicts = anyio.Semaphore(judge.concurrency)

    @property
    def at_once(self) -> bool:
        """Whether a rollout's reward stands as soon as it ends, whatever else is in its group."""
        return self._judge.model is None

    def check(self, scenarios: Sequence[McpScenario]) -> None:
        """Before anything is played. Raises ScenarioError that names a scenario which could not be scored."""
        needed = self._judge.model is None or self._judge.weight < 1
        check_verifiers([s for s in scenarios if needed or s.verifier is not None], self._verifiers)

    def rollout(self, scenario: McpScenario, trajectory: Trajectory) -> None:
        """Score one rollout by the scenario's verifier, where it has one."""
        if scenario.verifier is not None:
            verify(trajectory, scenario, self._verifiers)

    async def group(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """Score a group by the judge, where one is named.

        Raises JudgeError where it gives no verdict; the rewards are then None, so that the verifier's do not pass for
        the judge's.
        """
        judge = self._judge
        if judge.model is None:
            return group
        try:
            async with self._verdicts:
                await ruler_score_group(
                    group,
                    judge.model,
                    rubric=judge.rubric,
                    base_url=judge.base_url,
                    deadline=judge.deadline,
                    retries=judge.retries,
                )
        except JudgeError:
            for trajectory in group:
                trajectory.reward = None
            raise
        return mix_rewards(group, {"verifier": 1 - judge.weight, "ruler": judge.weight}) if judge.weight < 1 else group
