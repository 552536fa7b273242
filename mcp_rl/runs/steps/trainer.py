"""The steps of a run: play a batch, learn from it, save it; and evaluate before, between and after them.

A step is whole when its checkpoint is on disk; the state of the run is written after that. A step depends on nothing
but the seed, the weights and the checkpoint's content, so a run that was killed continues as if it had not been.
"""

from __future__ import annotations

import shlex
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ConfigError, NothingLearned, RunDirectoryError
from mcp_rl.evaluation.difficulty import DIFFICULTY
from mcp_rl.evaluation.evaluate import EvaluationPlan, EvaluationResult, evaluate, summarize
from mcp_rl.evaluation.opponents import earlier_steps
from mcp_rl.rewards.references import refused_references
from mcp_rl.rollouts.seated import with_seats
from mcp_rl.runs.learned import Evidence, first_reason, warning
from mcp_rl.runs.steps.alike import alike_metrics, barren_streak
from mcp_rl.runs.steps.collect import Collector, RolloutBatch
from mcp_rl.runs.steps.curriculum import Curriculum
from mcp_rl.runs.steps.demonstrations import Demonstrations, steps_of_imitation
from mcp_rl.runs.steps.ending import Ending, pool_metrics
from mcp_rl.runs.steps.metrics import (
    CachedTokens,
    best_step,
    comparison_sentence,
    episode_tokens,
    evaluation_metrics,
    faults,
    rollout_metrics,
    shown_metrics,
    time_sentence,
)
from mcp_rl.runs.steps.pace import CheckpointPace
from mcp_rl.runs.steps.pipeline import PENDING, Pipeline
from mcp_rl.runs.steps.small_evaluation import SPLIT, choose_subset, samples_of, steps_between, subset_metrics
from mcp_rl.runs.trackers.trackers import Trackers
from mcp_rl.system.activity import Activity, Clock, Times, during, timed_by
from mcp_rl.system.periods import timed
from mcp_rl.system.processes.memory import peak_rss_mb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.config import RunConfig
    from mcp_rl.evaluation.opponents import OpenedOpponents
    from mcp_rl.evaluation.progress import Progress
    from mcp_rl.model import Backend, TrainableModel
    from mcp_rl.plugins.manager import Plugins
    from mcp_rl.rewards.scoring import Scoring
    from mcp_rl.rollouts.player import SettingPlayer
    from mcp_rl.run_directory import RunDirectory, RunState, StepProgress
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import TrajectoryGroup


@dataclass(kw_only=True)
class Trainer:
    """A session of a run. `state` is what the disk holds; `done` may be ahead of it."""

    config: RunConfig
    run: RunDirectory
    state: RunState
    plugins: Plugins
    model: TrainableModel[None]
    backend: Backend
    player: SettingPlayer
    demonstrator: SettingPlayer
    """Plays reference solutions."""
    opponents: OpenedOpponents | None = None
    scoring: Scoring
    train: Sequence[McpScenario]
    val: Sequence[McpScenario]
    progress: Progress
    clock: Clock = field(default_factory=Clock)
    trackers: Trackers = field(default_factory=Trackers)

    def __post_init__(self) -> None:
        config = self.config
        self.step = self.state.step
        self.done = self.state.progress.model_copy(deep=True)
        self.curriculum = Curriculum(self.train, config.seed, self.done.curriculum or None, config.curriculum)
        prepare = self.opponents.prepare if self.opponents else None
        collector = Collector(config, self.curriculum, self.player, self.scoring, self.progress, prepare=prepare)
        self.pipeline = Pipeline(collector, staleness=config.train.max_staleness, last=config.steps)
        self.pipeline.restore(self.backend.kept(PENDING), {scenario.id: scenario for scenario in self.train})
        self.pace = CheckpointPace(config)
        self.demonstrations: Demonstrations | None = None
        self._metrics: dict[str, float] = {}
        self._episode_tokens = 0.0
        self._cached = CachedTokens(self.backend.engine)
        self._started = time.monotonic() - self.done.seconds
        self.ending = Ending(config, self.run.history())
        self._opponents_steps = earlier_steps(config, config.steps + 1)
        self._protect()
        self.subset = choose_subset(self.val, self.config.evaluation.subset if self.scoring.at_once else 0, config.seed)
        self.subset_every = steps_between(config, len(self.subset))

    @property
    def seconds(self) -> float:
        """Wall-clock time of the run so far, over all sessions."""
        return time.monotonic() - self._started

    async def measure_before(self) -> None:
        """Evaluate the initial policy, once per run."""
        if self.state.before is not None:
            return
        if self.step == 0:
            result = await self._evaluate("base model" if self.config.init is None else "before training", 0)
        elif played := self.run.trajectories("val", 0):  # the state was lost, and the policy has moved
            result = summarize(played, step=0, greedy=self.config.evaluation.greedy)
        else:
            raise RunDirectoryError(
                f"The run in {self.run.path} is at step {self.step}, but its state.json and the episodes of its first "
                "evaluation are gone: restore either of them, or start over with --fresh."
            )
        self.state.before = result.model_dump(mode="json")
        self._save_state()

    async def measure_after(self) -> None:
        """Evaluate the current policy, unless that is already done."""
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
        """Take all remaining steps. Whatever ends this, the last whole step is kept."""
        warnings.simplefilter("ignore", NothingLearned)  # said after some steps, with what would help
        with timed_by(self.clock):
            await self._imitate()
            self._forget_times()
            self._episode_tokens = episode_tokens(self.run.history(), self.step)
            async with self.pipeline.open():
                while not self.ending.over(self.step):
                    await self._measure_between()
                    self.pipeline.begin(self.step, self._episode_tokens)
                    await self._take_step(await self.pipeline.next())
                    if self._save_is_due():
                        await self.save()
                self.pipeline.cancel()
        if self.ending.reached is not None:
            self.progress.end_at(self.step)
            self.progress.say(self.ending.sentence)

    async def _imitate(self) -> None:
        """Take the first steps on demonstrations, as many as the run decided at its beginning."""
        if self.state.sft_steps is None and self.step:
            return  # a run of an earlier version
        before = EvaluationResult.model_validate(self.state.before)
        steps, scenarios = steps_of_imitation(self.config, before, self.train, self.val)
        if self.state.sft_steps is None:
            self.state.sft_steps = steps
            self._save_state()
            if steps:
                levels = ", ".join(sorted({one.level for one in scenarios}))
                self.progress.say(
                    f"The first {steps} steps imitate reference solutions (supervised fine-tuning) of "
                    f"{len(scenarios)} training scenarios, level {levels}; train.sft_steps=0 leaves that out."
                )
        self.demonstrations = demonstrations = Demonstrations(self.config, scenarios, self.demonstrator, self.progress)
        if self.step < self.state.sft_steps:
            for step in range(1, self.step + 1):
                with suppress(RunDirectoryError):  # what cannot be read is played again
                    demonstrations.remember(self.run.trajectories("train", step))
        while self.step < min(self.state.sft_steps, self.config.steps):
            await self._measure_between()
            self._forget_times()
            groups = await demonstrations.play(self.step + 1, self.scoring)
            if not groups:
                self._end_imitation(demonstrations.problem)
                break
            await self._learn(groups, None)
            if self._save_is_due():
                await self.save()
        demonstrations.forget()

    def _end_imitation(self, problem: str) -> None:
        """Leave the rest to rewards where no reference solution succeeds. Raises ConfigError if the settings ask for
        imitation."""
        why = "No reference solution of this step succeeds, so there is nothing to imitate"
        if problem:
            why += f" (the first: {' '.join(problem.split())[:200].rstrip('.')})"
        if self.config.train.sft_steps != "auto":
            raise ConfigError(
                f"{why}: set train.sft_steps={self.step}, or look at them with mcp-rl evaluate --model "
                "scripted:reference."
            )
        self.state.sft_steps = self.step
        self._save_state()
        self.progress.say(f"{why}; all further steps learn from rewards.")

    async def _measure_between(self) -> None:
        """Evaluate if that is due, also after a kill before it. Nothing is learned meanwhile, so all episodes are one
        policy's, whatever is in flight."""
        every = self.config.evaluation.every
        if every and self.step and self.step % every == 0 and self.state.after_step != self.step:
            await self.save()
            await self.measure_after()
            self._forget_times()
        elif self.subset_every and self.step and self.step % self.subset_every == 0:
            await self._measure_subset()
            self._forget_times()

    async def rescue(self) -> None:
        """Save the last step of an interrupted run, unless the weights are already ahead of it."""
        if self.backend.step == self.step:
            with anyio.CancelScope(shield=True):
                await self.save()

    async def save(self) -> None:
        """Make the current step whole: write its checkpoint, with the batches in flight, then the state."""
        if self.state.step == self.step and self.step > 0:
            return
        files: dict[str, bytes] = {}
        with during(Activity.SAVING):
            if self.pipeline.overlaps(self.step):  # else the batches in flight are played again just as they were
                self.done.curriculum, files = self.curriculum.state, self.pipeline.pending()
            began = time.perf_counter()
            path = await self.backend.save(
                self.model, metrics=self._metrics, frontier=self.done.model_dump(mode="json"), files=files
            )
            took = time.perf_counter() - began
            self.state.step, self.state.progress = self.step, self.done.model_copy(deep=True)
            self._save_state(saved=True)
        step_seconds = self._metrics.get("step_seconds", 0.0)
        if sentence := self.pace.saved(path, took, step_seconds):
            self.progress.say(sentence)
        self._notify("checkpoint_saved", step=self.step, path=path)

    def _save_state(self, *, saved: bool = False) -> None:
        self.state.progress.seconds = self.seconds
        kept = Curriculum(self.train, self.config.seed, self.state.progress.curriculum or None, self.config.curriculum)
        self.run.save_state(self.state, {DIFFICULTY: kept.difficulty(self.state.before)}, saved=saved)

    async def _take_step(self, batch: RolloutBatch) -> None:
        groups = batch.groups()
        for group in groups:
            for trajectory in group:
                self._notify("rollout_finished", scenario=group.scenario, trajectory=trajectory)
        shown: list[TrajectoryGroup] = []
        if self.demonstrations is not None and self.state.sft_steps:
            shown = await self.demonstrations.beside(groups, self.step + 1, self.scoring)
        await self._learn([*groups, *shown], batch)
        if not self._metrics["groups_useful"] and (streak := barren_streak(self.run.history())):
            self.progress.say(warning(streak, await self.evidence()))

    async def _learn(self, groups: Sequence[TrajectoryGroup], batch: RolloutBatch | None) -> None:
        """Learn from groups: those of a batch, or demonstrations."""
        with anyio.CancelScope(shield=True):  # an update is recorded with it, or not taken at all
            with during(Activity.UPDATING), timed() as update:
                result = await self.backend.train(self.model, with_seats(groups), self.config.train, save=False)
            with during(Activity.SAVING):
                episodes = self.run.save_trajectories("train", result.step, groups)
            weighed: dict[str, float] = {}
            if batch is not None:
                weighed = pool_metrics(groups, self.curriculum.weight)
                self.curriculum.learned([group for group in groups if not group.demonstrates], batch.number)
                self.pipeline.learned()
            self._account(groups, result.metrics)
            self._metrics = weighed | self._measured(batch, groups, result.metrics, self.clock.take())
            line = {"step": result.step, "split": "train", **self._metrics}
            self.run.append_history(line)
            self.ending.add(line)
            self.step, self._episode_tokens = result.step, episode_tokens([line], result.step)
        self.trackers.log("train", self.step, self._metrics, episodes, update())
        self._notify("step_finished", step=self.step, metrics=dict(self._metrics))
        self.progress.step_done(
            self.step,
            shown_metrics(self._metrics),
            seconds=self._metrics["step_seconds"],
            spent_on=time_sentence(self._metrics),
        )

    async def evidence(self) -> Evidence:
        """Return what else explains steps that taught nothing; empty if the newest step had a useful group."""
        found = Evidence(server=shlex.join(self.config.server))
        steps = [line for line in self.run.history() if line.get("split") == "train"]
        if steps and not steps[-1].get("groups_useful"):
            found.reason = first_reason(self.run.trajectories("train", steps[-1]["step"]))
        if not any(line.get("success") for line in steps):
            found.refused, found.checked = await refused_references(self.train, self.plugins.verifiers)
        return found

    def _measured(
        self, batch: RolloutBatch | None, groups: Sequence[TrajectoryGroup], learner: dict[str, float], times: Times
    ) -> dict[str, float]:
        """Return the metrics of a step, whose time begins where that of the previous one ended. Demonstrations say
        nothing of the policy's success."""
        played: dict[str, float] = {}
        if batch is not None:
            played |= {
                **rollout_metrics(groups, self.config.reward.weights),
                **alike_metrics(groups),
                **batch.metrics(refills=self.config.rollout.refills > 0),
                **{f"pool_{pool.value}": float(count) for pool, count in self.curriculum.pools().items()},
                "rollout_seconds": batch.seconds,
            }
        return {
            **played,
            **self.scoring.take_metrics(),
            **learner,
            **self._cached.take(),
            "peak_rss_mb": round(peak_rss_mb(), 1),
            **times.metrics(),
            "step_seconds": times.total,
        }

    def _forget_times(self) -> None:
        """Leave out of the next step the time and cached tokens up to now."""
        self.clock.take()
        self._cached.take()

    def _notify(self, hook: str, **what: Any) -> None:
        """Notify observing plugins. A plugin that fails is named once, and changes nothing."""
        for sentence in self.plugins.notify(hook, **what):
            self.progress.say(sentence)

    def _account(self, groups: Sequence[TrajectoryGroup], metrics: dict[str, float]) -> None:
        """Add a step to the run's totals."""
        done: StepProgress = self.done
        sampled = [trajectory for group in groups if not group.demonstrates for trajectory in group]
        done.rollouts += len(sampled)
        done.sampled_tokens += sum(trajectory.sampled_tokens for trajectory in sampled)
        done.trained_tokens += int(metrics.get("trained_tokens", 0))
        done.faults += sum(faults(group) for group in groups)
        done.curriculum = self.curriculum.state
        done.seconds = self.seconds

    def _protect(self) -> None:
        """Keep on disk the checkpoints that opponents are drawn from, and the best so far if the settings say so."""
        best = best_step(self.run.history()) if self.config.train.keep_best else None
        self.backend.protect([*self._opponents_steps, *([] if best is None else [best])])

    def _save_is_due(self) -> bool:
        return self.ending.over(self.step) or self.pace.due(self.step) or self.step in self._opponents_steps

    async def _measure_subset(self) -> None:
        """Play the small evaluation of this step, unless an earlier session did or a full evaluation covers it.

        Faults only cost it episodes: a run must not stop for what is only shown.
        """
        known = {(line["split"], line["step"]) for line in self.run.history()}
        if known & {(SPLIT, self.step), ("val", self.step)}:
            return
        began = time.monotonic()
        await self._face_the_first()
        plan = EvaluationPlan(greedy=True, samples=0, seed=self.config.seed, max_exceptions=1.0)
        with self.progress.rollouts(f"small evaluation, step {self.step}", len(self.subset), 1) as bar:
            _, groups = await evaluate(
                self.player,
                self.subset,
                plan,
                step=self.step,
                score_group=bar.around(self.scoring.group),
                on_rollout=bar.finished,
            )
        episodes = self.run.save_trajectories(SPLIT, self.step, groups)
        metrics = {**subset_metrics(groups), "subset_seconds": time.monotonic() - began}
        rollouts = float(sum(map(len, groups)))
        self.run.append_history({"step": self.step, "split": SPLIT, "rollouts": rollouts, **metrics})
        self.trackers.log("val", self.step, metrics, episodes)

    async def _face_the_first(self) -> None:
        """Make `earlier` the policy that the run began with, so that evaluations of all steps can be compared."""
        if self.opponents is not None:
            await self.opponents.prepare(0)

    async def _evaluate(self, title: str, step: int) -> EvaluationResult:
        config = self.config
        samples = samples_of(config.evaluation, between=step > 0 and not self.ending.over(step))
        await self._face_the_first()
        plan = EvaluationPlan(config.evaluation.greedy, samples, config.seed, config.rollout.max_exceptions)
        with self.progress.rollouts(f"evaluation, {title}", len(self.val), plan.episodes) as bar:
            result, groups = await evaluate(
                self.player,
                self.val,
                plan,
                step=step,
                score_group=bar.around(self.scoring.group),
                on_rollout=bar.finished,
            )
        episodes = self.run.save_trajectories("val", step, groups)
        compared = (
            await self.scoring.compare(self.run.trajectories("val", 0), groups)
            if step and not self.scoring.at_once
            else {}
        )
        judged = {**self.scoring.take_metrics(), **compared}
        metrics = {**rollout_metrics(groups, self.config.reward.weights), **evaluation_metrics(result), **judged}
        if plan.greedy:
            chosen = {scenario.id for scenario in self.subset}
            metrics |= subset_metrics(group for group in groups if group.scenario.id in chosen)
        self.run.append_history({"step": step, "split": "val", **metrics})
        self._protect()
        self.trackers.log("val", step, metrics, episodes)
        self.progress.say(f"{title}: {result.sentence('val scenarios')}")
        if compared.get("judge_compared"):
            self.progress.say(comparison_sentence(compared))
        return result
