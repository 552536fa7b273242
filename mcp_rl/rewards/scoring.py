"""Rewards in a run: from the scenario's verifier, from judges, and from functions that plugins offer."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

import anyio

from mcp_rl.config import JudgeConfig, RewardConfig
from mcp_rl.errors import ConfigError, JudgeError, JudgeStop
from mcp_rl.rewards.efficiency import shape
from mcp_rl.rewards.judge import Judge, check_judge
from mcp_rl.rewards.ledger import Ledger
from mcp_rl.rewards.mix import mix_rewards
from mcp_rl.rewards.panel import Panel
from mcp_rl.rewards.patience import Patience
from mcp_rl.rewards.ruler import ruler_prompt
from mcp_rl.rewards.verifier import check_verifiers, verdict_of, verify
from mcp_rl.system.tasks import run_all
from mcp_rl.trajectory import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from mcp_rl.inference.apis.language_model import Spent
    from mcp_rl.rewards.verdict import RewardFunction, Verdict, VerifierFunction
    from mcp_rl.scenario import McpScenario

CALLS, VERDICTS = "calls.jsonl", "verdicts"
"""Names in the folder of a run's judges: the file of requests, and the folder of cached verdicts."""


class Scoring:
    """Scores each rollout by its verifier as it ends, and each complete group by the judges, if any.

    `folder` keeps requests and verdicts, or None keeps nothing; `say` prints news of a judge that is down.
    """

    def __init__(
        self,
        judge: JudgeConfig,
        verifiers: Mapping[str, VerifierFunction],
        reward: RewardConfig | None = None,
        rewards: Mapping[str, RewardFunction] | None = None,
        *,
        seed: int = 0,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._verifiers = verifiers
        self._reward = reward or RewardConfig()
        self._weights = weights_of(judge, self._reward)
        self._parts = {name: function for name, function in (rewards or {}).items() if name in self._weights}
        self._shaped = self._reward.shapes
        self._panel: Panel | None = None
        if judge.model is not None:
            self._ledger = Ledger(folder / CALLS if folder else None)
            self._patience = Patience(judge.patience, say)
            self._verdicts = anyio.Semaphore(judge.concurrency)
            self._panel = _panel(judge, self._ledger, seed, folder)

    @property
    def at_once(self) -> bool:
        """True if a rollout has its reward as soon as it ends, before its group is complete."""
        return self._panel is None

    @property
    def spent(self) -> Spent | None:
        """Usage of the run's judges in all sessions, or None without a judge."""
        return None if self._panel is None else self._ledger.spent

    def check(self, scenarios: Sequence[McpScenario]) -> None:
        """Check before any rollout that all scenarios can be scored. Raises ScenarioError for one that cannot."""
        needed = "verifier" in self._weights
        check_verifiers([s for s in scenarios if needed or s.verifier is not None], self._verifiers)

    def rollout(self, scenario: McpScenario, trajectory: Trajectory) -> Awaitable[None] | None:
        """Score one rollout by the scenario's verifier, if any, and by the functions that have a weight.

        Returns an awaitable to be awaited, or None when done. Raises VerifierError where a function failed.
        """
        pending = [verify(trajectory, scenario, self._verifiers)] if scenario.verifier is not None else []
        if trajectory.stop_reason.trainable:
            pending += [self._part(name, trajectory, scenario) for name in self._parts]
        if waiting := [scoring for scoring in pending if scoring is not None]:
            return self._finish_later(waiting, scenario, trajectory)
        self._finish(scenario, trajectory)
        return None

    async def group(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """Score a group by the judges, if any, and mix the parts of its rewards.

        Waits while a judge is down. Raises JudgeError where no verdict comes, JudgeStop where none will come; the
        rewards are then None, so that the verifier's do not pass for the judge's.
        """
        panel = self._panel
        if panel is None:
            return group
        try:
            async with self._verdicts:
                await self._patience.until_answered(lambda: panel.score(group))
        except JudgeError:
            for trajectory in group:
                trajectory.reward = None
            raise
        if about := group.metadata.get("judge"):
            self._ledger.judged(about)
        if self._weights != {"ruler": 1.0}:
            mix_rewards(group, self._weights)
        if self._shaped:
            for trajectory in group:
                shape(trajectory, group.scenario, self._reward)
        return group

    def take_metrics(self) -> dict[str, float]:
        """Return the judges' metrics since the last call; empty without a judge."""
        return {} if self._panel is None else self._ledger.take()

    async def compare(self, before: Sequence[TrajectoryGroup], after: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Judge each scenario's first rollouts before and after together, each pair in one verdict.

        Scores of different verdicts do not compare, so an evaluation's means do not measure progress; these scores do.
        Returns `judge_before`, `judge_after` (means, 0 to 1), `judge_better`, `judge_worse` (shares of the scenarios)
        and `judge_compared` (their number); nothing without a judge. Raises JudgeStop.
        """
        if self._panel is None:
            return {}
        earlier = {group.scenario.id: rollout for group in before if (rollout := _first(group))}
        pairs = [
            TrajectoryGroup(scenario=group.scenario, trajectories=[earlier[group.scenario.id], rollout])
            for group in after
            if group.scenario.id in earlier and (rollout := _first(group))
        ]
        await run_all([partial(self._compare, pair) for pair in pairs])
        scores = [(one.metrics["ruler"], two.metrics["ruler"]) for one, two in pairs if "ruler" in two.metrics]
        if not scores:
            return {"judge_compared": 0.0}
        return {
            "judge_before": fmean(one for one, _ in scores),
            "judge_after": fmean(two for _, two in scores),
            "judge_better": fmean(two > one for one, two in scores),
            "judge_worse": fmean(two < one for one, two in scores),
            "judge_compared": float(len(scores)),
        }

    async def _compare(self, pair: TrajectoryGroup) -> None:
        assert self._panel is not None
        try:
            async with self._verdicts:
                await self._patience.until_answered(partial(self._panel.score, pair))
        except JudgeStop:
            raise
        except JudgeError:  # leave this pair out
            return

    def _part(self, name: str, trajectory: Trajectory, scenario: McpScenario) -> Awaitable[None] | None:
        def keep(verdict: Verdict) -> None:
            trajectory.metrics |= {**verdict.metrics, name: float(verdict.score)}

        return verdict_of(name, self._parts[name], trajectory, scenario, then=keep, what="reward")

    async def _finish_later(
        self, waiting: Sequence[Awaitable[None]], scenario: McpScenario, trajectory: Trajectory
    ) -> None:
        for scoring in waiting:
            await scoring
        self._finish(scenario, trajectory)

    def _finish(self, scenario: McpScenario, trajectory: Trajectory) -> None:
        """Mix and shape the reward of a rollout that no judge will score."""
        if self._panel is not None or not trajectory.stop_reason.trainable:
            return
        if self._weights != {"verifier": 1.0}:
            mix_rewards(TrajectoryGroup(scenario=scenario, trajectories=[trajectory]), self._weights)
        if self._shaped:
            shape(trajectory, scenario, self._reward)


def weights_of(judge: JudgeConfig, reward: RewardConfig) -> dict[str, float]:
    """Return the weights of a reward's parts: as configured, else the judge if there is one, else the verifier."""
    return dict(reward.weights) or {"verifier" if judge.model is None else "ruler": 1.0}


def check_rewards(judge: JudgeConfig, reward: RewardConfig, rewards: Mapping[str, RewardFunction]) -> None:
    """Check that the reward's parts, the judges and the rubric can be used. Raises ConfigError otherwise."""
    known = {"verifier", "ruler", *rewards}
    for name in weights_of(judge, reward):
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(sorted(known))}."
            raise ConfigError(f"reward.weights names {name!r}, which no plugin registers as a reward; {hint}")
    judge.rubric_text()
    for model in judge.models:
        check_judge(model, judge.base_url, max_cost=judge.max_cost, price=judge.price)


def _panel(judge: JudgeConfig, ledger: Ledger, seed: int, folder: Path | None) -> Panel:
    judges = [
        Judge(
            model,
            judge.base_url,
            judge.deadline,
            judge.retries,
            max_cost=judge.max_cost,
            spent=ledger.spent,
            on_call=ledger.add,
        )
        for model in judge.models
    ]
    prompt = ruler_prompt(judge.rubric_text(), judge.token_budget)
    cache = folder / VERDICTS if folder and judge.cache else None
    return Panel(judges, prompt, seed, judge.repeat, cache, ledger.recall)


def _first(group: TrajectoryGroup) -> Trajectory | None:
    """Return a copy of the group's first rollout (greedy in an evaluation), or None if a fault ended it."""
    first = group.trajectories[0] if group.trajectories else None
    if first is None or not first.stop_reason.trainable:
        return None
    return first.model_copy(update={"metrics": {}, "reward": None, "explanation": None})
