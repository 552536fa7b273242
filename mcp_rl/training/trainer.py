"""The steps of a run: choose scenarios, play them, score, learn, save; and the evaluations around them.

A step is whole when its checkpoint is on disk; the state of the run is written after it. Nothing of a step depends on
anything but the seed, the weights and what the checkpoint keeps, so a run that was killed goes on as if it never was.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import anyio

from mcp_rl.activity import Activity, Clock, during, timed_by
from mcp_rl.config import RunConfig
from mcp_rl.evaluate import EvaluationResult, evaluate
from mcp_rl.gather import GroupPlan, gather_groups
from mcp_rl.learning.canaries import check_prompts
from mcp_rl.model import Backend, TrainableModel, group_metrics
from mcp_rl.player import Player
from mcp_rl.plugins.manager import Plugins
from mcp_rl.rewards.agreement import agreement_metrics
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rollout import derive_seed
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress
from mcp_rl.scenario import McpScenario
from mcp_rl.tracking.progress import Progress, RolloutBar
from mcp_rl.tracking.trackers import Trackers
from mcp_rl.training.curriculum import Curriculum
from mcp_rl.training.difficulty import DIFFICULTY, measured_difficulty
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

_SHOWN = {
    "reward": "reward",
    "success": "success",
    "sampled_tokens_mean": "tokens",
    "turns": "turns",
    "groups_useful": "useful groups",
    "entropy": "entropy",
    "grad_norm": "gradient",
}
"""Metrics in the line of a step, and how they are called there."""


@dataclass
class Trainer:
    """One session of a run, everything in place. `state` is as on disk; `progress_of_step` may be ahead of it."""

    config: RunConfig
    run: RunDirectory
    state: RunState
    plugins: Plugins
    model: TrainableModel[None]
    backend: Backend
    player: Player
    scoring: Scoring
    train: Sequence[McpScenario]
    val: Sequence[McpScenario]
    progress: Progress
    trackers: Trackers = field(default_factory=Trackers)

    def __post_init__(self) -> None:
        self.step = self.state.step
        self.done = self.state.progress.model_copy(deep=True)
        self.curriculum = Curriculum(self.train, self.config.seed, self.done.curriculum or None, self.config.curriculum)
        self._metrics: dict[str, float] = {}
        self._clock = Clock()
        self._started = time.monotonic() - self.done.seconds

    @property
    def seconds(self) -> float:
        """Wall-clock time of the run so far, all sessions together."""
        return time.monotonic() - self._started

    async def measure_before(self) -> None:
        """Evaluate the base model, once in the life of a run."""
        if self.state.before is None:
            result = await self._evaluate("base model", 0)
            self.state.before = result.model_dump(mode="json")
            self._save_state()

    async def measure_after(self) -> None:
        """Evaluate the policy as it is now, unless that was done."""
        if self.state.after_step == self.step:
            return
        if self.step == 0:
            self.state.after = self.state.before
        else:
            result = await self._evaluate(f"after step {self.step}", self.step)
            self.state.after = result.model_dump(mode="json")
        self.state.after_step = self.step
        self._save_state()
        pools = ", ".join(f"{count} {pool.value.replace('_', ' ')}" for pool, count in self.curriculum.pools().items())
        self.progress.say(f"Training scenarios now: {pools}.")

    async def take_steps(self) -> None:
        """All steps that are left. The last whole one is kept whatever ends this."""
        with timed_by(self._clock):
            self._clock.take()
            while self.step < self.config.steps:
                await self._take_step()
                if self.step % self.config.train.checkpoint_every == 0 or self.step == self.config.steps:
                    await self.save()
                every = self.config.evaluation.every
                if every and self.step % every == 0 and self.step < self.config.steps:
                    await self.save()
                    await self.measure_after()
                    self._clock.take()

    async def rescue(self) -> None:
        """When a run is interrupted: keep the last step, unless the weights have gone on without the books."""
        if self.backend.step == self.step:
            with anyio.CancelScope(shield=True):
                await self.save()

    async def save(self) -> None:
        """Make the current step whole: its checkpoint, then the state."""
        if self.state.step == self.step and self.step > 0:
            return
        with during(Activity.SAVING):
            frontier = self.done.model_dump(mode="json")
            path = await self.backend.save(self.model, metrics=self._metrics, frontier=frontier)
            self.state.step, self.state.progress = self.step, self.done.model_copy(deep=True)
            self._save_state()
        self._notify("checkpoint_saved", step=self.step, path=path)

    def _save_state(self) -> None:
        self.state.progress.seconds = self.seconds
        self.run.save_state(self.state)
        kept = Curriculum(self.train, self.config.seed, self.state.progress.curriculum or None, self.config.curriculum)
        self.run.save_lines(DIFFICULTY, measured_difficulty(kept, self.train, self.state.before))

    async def _take_step(self) -> None:
        began = time.monotonic()
        groups = await self._collect(self.step + 1)
        rollout_seconds = time.monotonic() - began
        with anyio.CancelScope(shield=True):  # an update is taken with its books, or not at all
            with during(Activity.UPDATING):
                result = await self.backend.train(self.model, groups, self.config.train, save=False)
            with during(Activity.SAVING):
                self.run.save_trajectories("train", result.step, groups)
            self._account(groups, result.metrics)
            times = self._clock.take()
            pools = {f"pool_{pool.value}": float(count) for pool, count in self.curriculum.pools().items()}
            self._metrics = {
                **_means(groups, self.config.reward.weights),
                **pools,
                **self.scoring.take_metrics(),
                **result.metrics,
                **times.metrics(),
                "rollout_seconds": rollout_seconds,
                "step_seconds": times.total,
            }
            self.run.append_history({"step": result.step, "split": "train", **self._metrics})
            self.step = result.step
        self.trackers.log("train", self.step, self._metrics)
        self._notify("step_finished", step=self.step, metrics=dict(self._metrics))
        shown = {name: self._metrics[key] for key, name in _SHOWN.items() if key in self._metrics}
        self.progress.step_done(self.step, shown, seconds=self._metrics["step_seconds"])

    async def _collect(self, step: int) -> list[TrajectoryGroup]:
        """The groups of a step. Where a scenario's first rollouts all succeed, its group ends there: a larger one would
        have taught nothing, and the time goes to the scenarios that are hard."""
        scenarios = self.curriculum.take(self.config.rollout.groups_per_step)
        with self.progress.rollouts(f"step {step}", len(scenarios) * self._probes) as bar:
            groups = await gather_groups(
                [self._plan(scenario, step, bar) for scenario in scenarios],
                max_exceptions=self.config.rollout.max_exceptions,
                after_each=bar.around(self.scoring.group),
                on_rollout=bar.finished,
            )
        check_prompts([s.id for s in scenarios], [group.scenario.id for group in groups])
        self.curriculum.learned(groups, step)
        for group in groups:
            for trajectory in group:
                self._notify("rollout_finished", scenario=group.scenario, trajectory=trajectory)
        return groups

    def _notify(self, hook: str, **what: Any) -> None:
        """Tell the plugins that observe. One that fails is named, once, and changes nothing."""
        for sentence in self.plugins.notify(hook, **what):
            self.progress.say(sentence)

    @property
    def _probes(self) -> int:
        """Rollouts that decide whether a group goes on. A judge ranks whole groups, so there it is all of them."""
        rollout = self.config.rollout
        stops_early = self.scoring.at_once and 0 < rollout.probes < rollout.group_size
        return rollout.probes if stops_early else rollout.group_size

    def _plan(self, scenario: McpScenario, step: int, bar: RolloutBar) -> GroupPlan:
        def member(index: int) -> Callable[[int], Awaitable[Trajectory]]:
            def attempt(number: int) -> Awaitable[Trajectory]:
                return self.player.play(
                    scenario, derive_seed("train", self.config.seed, step, scenario.id, index, number)
                )

            return attempt

        members = [member(index) for index in range(self.config.rollout.group_size)]
        probes = self._probes

        def grow(group: TrajectoryGroup) -> Sequence[Callable[[int], Awaitable[Trajectory]]]:
            rest = [] if all(trajectory.success for trajectory in group) else members[probes:]
            bar.expect(len(rest))
            return rest

        return GroupPlan(scenario, members[:probes], grow=grow)

    def _account(self, groups: Sequence[TrajectoryGroup], metrics: dict[str, float]) -> None:
        """Add a step to the run's totals."""
        done: StepProgress = self.done
        done.rollouts += sum(map(len, groups))
        done.sampled_tokens += sum(t.sampled_tokens for group in groups for t in group)
        done.trained_tokens += int(metrics.get("trained_tokens", 0))
        done.faults += sum(_faults(group) for group in groups)
        done.curriculum = self.curriculum.state
        done.seconds = self.seconds

    async def _evaluate(self, title: str, step: int) -> EvaluationResult:
        config = self.config.evaluation
        total = len(self.val) * (config.greedy + config.samples)
        with self.progress.rollouts(f"evaluation, {title}", total) as bar:
            result, groups = await evaluate(
                self.player,
                self.val,
                score_group=bar.around(self.scoring.group),
                step=step,
                greedy=config.greedy,
                samples=config.samples,
                seed=self.config.seed,
                max_exceptions=self.config.rollout.max_exceptions,
                on_rollout=bar.finished,
            )
        self.run.save_trajectories("val", step, groups)
        compared = (
            await self.scoring.compare(self.run.trajectories("val", 0), groups)
            if step and not self.scoring.at_once
            else {}
        )
        judged = {**self.scoring.take_metrics(), **compared}
        metrics = {**_means(groups, self.config.reward.weights), **_flat_measures(result), **judged}
        self.run.append_history({"step": step, "split": "val", **metrics})
        self.trackers.log("val", step, metrics)
        self.progress.say(f"{title}: {_sentence(result)}")
        if compared.get("judge_compared"):
            self.progress.say(_comparison(compared))
        return result


def _faults(group: TrajectoryGroup) -> int:
    """Rollouts that the world ended, those that were played again included."""
    return len(group.exceptions) + sum(t.stop_reason is StopReason.FAULT for t in group)


def _means(groups: Sequence[TrajectoryGroup], parts: Iterable[str]) -> dict[str, float]:
    """Means over the rollouts, those of the parts of the reward among them."""
    metrics = group_metrics(groups) | agreement_metrics(groups)
    scores = {name: [t.metrics[name] for group in groups for t in group if name in t.metrics] for name in parts}
    metrics |= {f"part_{name}": fmean(values) for name, values in scores.items() if values}
    return metrics | {
        "groups_useful": float(sum(group.has_variance for group in groups)),
        "groups_useful_share": sum(group.has_variance for group in groups) / max(1, len(groups)),
        "sampled_tokens_mean": metrics["sampled_tokens"] / max(1.0, metrics["rollouts"]),
        "faults": float(sum(_faults(group) for group in groups)),
    }


def _flat_measures(result: EvaluationResult) -> dict[str, Any]:
    return {
        f"{kind}_{name}": getattr(measure, name)
        for kind, measure in (("greedy", result.greedy), ("sampled", result.sampled))
        if measure is not None
        for name in ("success", "ci95", "reward")
    }


def _comparison(compared: dict[str, float]) -> str:
    return (
        f"judged side by side with the base: {compared['judge_before']:.3f} before, {compared['judge_after']:.3f} now; "
        f"better on {compared['judge_better']:.0%}, worse on {compared['judge_worse']:.0%} of "
        f"{compared['judge_compared']:.0f} scenarios."
    )


def _sentence(result: EvaluationResult) -> str:
    parts = []
    for kind, measure in (("greedy", result.greedy), ("sampled", result.sampled)):
        if measure is None:
            continue
        if measure.success is None or measure.ci95 is None:
            parts.append(f"{kind} reward {measure.reward or 0.0:.3f}")
        else:
            low, high = measure.ci95
            parts.append(f"{kind} success {measure.success:.3f} [{low:.3f}, {high:.3f}]")
    return f"{', '.join(parts)} on {result.scenarios} val scenarios."
