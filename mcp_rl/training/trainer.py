"""The steps of a run: a batch is played, learned from and saved; and the evaluations around them.

A step is whole when its checkpoint is on disk; the state of the run is written after it. Nothing of a step depends on
anything but the seed, the weights and what the checkpoint keeps, so a run that was killed goes on as if it never was.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcp_rl.activity import Activity, Clock, Times, during, timed_by
from mcp_rl.config import RunConfig
from mcp_rl.errors import RunDirectoryError
from mcp_rl.evaluate import EvaluationResult, evaluate, summarize
from mcp_rl.model import Backend, TrainableModel
from mcp_rl.player import Player
from mcp_rl.plugins.manager import Plugins
from mcp_rl.processes.memory import peak_rss_mb
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress
from mcp_rl.scenario import McpScenario
from mcp_rl.tracking.progress import Progress
from mcp_rl.tracking.trackers import Trackers
from mcp_rl.training.collect import Batch, Collector
from mcp_rl.training.curriculum import Curriculum
from mcp_rl.training.difficulty import DIFFICULTY, measured_difficulty
from mcp_rl.training.metrics import (
    CachedTokens,
    best_step,
    comparison_sentence,
    evaluation_metrics,
    evaluation_sentence,
    faults,
    rollout_metrics,
    shown_metrics,
    time_sentence,
)
from mcp_rl.training.pipeline import PENDING, Pipeline
from mcp_rl.trajectory import TrajectoryGroup


@dataclass
class Trainer:
    """One session of a run, everything in place. `state` is as on disk; `done` may be ahead of it."""

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
        config = self.config
        self.step = self.state.step
        self.done = self.state.progress.model_copy(deep=True)
        self.curriculum = Curriculum(self.train, config.seed, self.done.curriculum or None, config.curriculum)
        collector = Collector(config, self.curriculum, self.player, self.scoring, self.progress)
        self.pipeline = Pipeline(collector, staleness=config.train.max_staleness, last=config.steps)
        self.pipeline.restore(self.backend.kept(PENDING), {scenario.id: scenario for scenario in self.train})
        self._metrics: dict[str, float] = {}
        self._clock = Clock()
        self._cached = CachedTokens(self.backend.engine)
        self._started = time.monotonic() - self.done.seconds
        self._protect_best()

    @property
    def seconds(self) -> float:
        """Wall-clock time of the run so far, all sessions together."""
        return time.monotonic() - self._started

    async def measure_before(self) -> None:
        """Evaluate what the run begins with, once in its life."""
        if self.state.before is not None:
            return
        if self.step == 0:
            result = await self._evaluate("base model" if self.config.init is None else "before training", 0)
        elif played := self.run.trajectories("val", 0):  # the state was lost, and the policy has moved
            result = summarize(played, step=0, greedy=self.config.evaluation.greedy)
        else:
            raise RunDirectoryError(
                f"The run in {self.run.path} is at step {self.step}, but its state.json and the episodes of its first "
                "evaluation are gone: put a copy of either there, or start over with --fresh."
            )
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
            self._forget_times()
            async with self.pipeline.open():
                while self.step < self.config.steps:
                    await self._measure_between()
                    self.pipeline.begin(self.step)
                    await self._take_step(await self.pipeline.next())
                    if self.step == self.config.steps or self.step % self.config.train.checkpoint_every == 0:
                        await self.save()

    async def _measure_between(self) -> None:
        """Evaluate where that is due, also where a kill came before it; nothing is learned meanwhile, so it is of one
        policy, whatever is in flight."""
        every = self.config.evaluation.every
        if every and self.step and self.step % every == 0 and self.state.after_step != self.step:
            await self.save()
            await self.measure_after()
            self._forget_times()

    async def rescue(self) -> None:
        """When a run is interrupted: keep the last step, unless the weights have gone on without the books."""
        if self.backend.step == self.step:
            with anyio.CancelScope(shield=True):
                await self.save()

    async def save(self) -> None:
        """Make the current step whole: its checkpoint, with what is in flight, then the state."""
        if self.state.step == self.step and self.step > 0:
            return
        files: dict[str, bytes] = {}
        with during(Activity.SAVING):
            if self.pipeline.overlaps(self.step):  # else what is in flight is played again just as it was
                self.done.curriculum, files = self.curriculum.state, self.pipeline.pending()
            path = await self.backend.save(
                self.model, metrics=self._metrics, frontier=self.done.model_dump(mode="json"), files=files
            )
            self.state.step, self.state.progress = self.step, self.done.model_copy(deep=True)
            self._save_state()
        self._notify("checkpoint_saved", step=self.step, path=path)

    def _save_state(self) -> None:
        self.state.progress.seconds = self.seconds
        self.run.save_state(self.state)
        kept = Curriculum(self.train, self.config.seed, self.state.progress.curriculum or None, self.config.curriculum)
        self.run.save_lines(DIFFICULTY, measured_difficulty(kept, self.train, self.state.before))

    async def _take_step(self, batch: Batch) -> None:
        groups = batch.groups()
        for group in groups:
            for trajectory in group:
                self._notify("rollout_finished", scenario=group.scenario, trajectory=trajectory)
        with anyio.CancelScope(shield=True):  # an update is taken with its books, or not at all
            with during(Activity.UPDATING):
                result = await self.backend.train(self.model, groups, self.config.train, save=False)
            with during(Activity.SAVING):
                self.run.save_trajectories("train", result.step, groups)
            self.curriculum.learned(groups, batch.number)
            self.pipeline.learned()
            self._account(groups, result.metrics)
            self._metrics = self._measured(batch, groups, result.metrics, self._clock.take())
            self.run.append_history({"step": result.step, "split": "train", **self._metrics})
            self.step = result.step
        self.trackers.log("train", self.step, self._metrics)
        self._notify("step_finished", step=self.step, metrics=dict(self._metrics))
        self.progress.step_done(
            self.step,
            shown_metrics(self._metrics),
            seconds=self._metrics["step_seconds"],
            spent_on=time_sentence(self._metrics),
        )

    def _measured(
        self, batch: Batch, groups: Sequence[TrajectoryGroup], learner: dict[str, float], times: Times
    ) -> dict[str, float]:
        """The line of a step, whose time begins where that of the one before ended."""
        return {
            **rollout_metrics(groups, self.config.reward.weights),
            **batch.metrics(refills=self.config.rollout.refills > 0),
            **{f"pool_{pool.value}": float(count) for pool, count in self.curriculum.pools().items()},
            **self.scoring.take_metrics(),
            **learner,
            **self._cached.take(),
            "peak_rss_mb": round(peak_rss_mb(), 1),
            **times.metrics(),
            "rollout_seconds": batch.seconds,
            "step_seconds": times.total,
        }

    def _forget_times(self) -> None:
        """What was before is no part of the next step."""
        self._clock.take()
        self._cached.take()

    def _notify(self, hook: str, **what: Any) -> None:
        """Tell the plugins that observe. One that fails is named, once, and changes nothing."""
        for sentence in self.plugins.notify(hook, **what):
            self.progress.say(sentence)

    def _account(self, groups: Sequence[TrajectoryGroup], metrics: dict[str, float]) -> None:
        """Add a step to the run's totals."""
        done: StepProgress = self.done
        done.rollouts += sum(map(len, groups))
        done.sampled_tokens += sum(t.sampled_tokens for group in groups for t in group)
        done.trained_tokens += int(metrics.get("trained_tokens", 0))
        done.faults += sum(faults(group) for group in groups)
        done.curriculum = self.curriculum.state
        done.seconds = self.seconds

    def _protect_best(self) -> None:
        """The best checkpoint so far stays on disk, where that is wanted and the backend can do it."""
        if self.config.train.keep_best and (protect := getattr(self.backend, "protect", None)) is not None:
            protect(best_step(self.run.history()))

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
        metrics = {**rollout_metrics(groups, self.config.reward.weights), **evaluation_metrics(result), **judged}
        self.run.append_history({"step": step, "split": "val", **metrics})
        self._protect_best()
        self.trackers.log("val", step, metrics)
        self.progress.say(f"{title}: {evaluation_sentence(result)}")
        if compared.get("judge_compared"):
            self.progress.say(comparison_sentence(compared))
        return result
