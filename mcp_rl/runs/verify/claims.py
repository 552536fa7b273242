"""The claims of a run that its own files prove or contradict."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.config import RewardConfig
from mcp_rl.errors import McpRlError, RunDirectoryError, UserError
from mcp_rl.evaluation.evaluate import summarize
from mcp_rl.evaluation.measure import shown
from mcp_rl.evaluation.page.page import PAGE, read_mark
from mcp_rl.learning.disk.checkpoint import find_damage
from mcp_rl.model import group_metrics
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.run_directory import RunDirectory, RunState, read_groups
from mcp_rl.scenarios.split import overlap
from mcp_rl.system.seals import HISTORY, SEAL, Sealed, check_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.manager import Plugins
    from mcp_rl.runs.settings import Origin
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

Standing = Literal["proven", "not proven", "contradicted"]
_RECOUNTED = ("rollouts", "groups", "success", "reward", "turns", "sampled_tokens")
"""Metrics of a line that follow from its episodes alone."""
_ELSEWHERE = {"server_params", "difficulty", "split"}
"""Fields of a scenario that may differ between a split and an episode."""


@dataclass(frozen=True)
class Claim:
    """A claim, and what was found about it."""

    name: str
    standing: Standing
    said: str
    """The evidence, in a sentence."""


def proven(name: str, said: str) -> Claim:
    """Return a claim that holds."""
    return Claim(name, "proven", said)


def unproven(name: str, said: str) -> Claim:
    """Return a claim that may hold."""
    return Claim(name, "not proven", said)


def refuted(name: str, said: str) -> Claim:
    """Return a claim that does not hold."""
    return Claim(name, "contradicted", said)


@dataclass
class RecordedRun:
    """The files of a run of `mcp-rl train`, each read once."""

    folder: Path
    config: RunConfig
    plugins: Plugins
    origin: Origin

    @cached_property
    def run(self) -> RunDirectory:
        return RunDirectory(self.folder)

    @cached_property
    def sealed(self) -> Sealed:
        """The run's digests. Raises RunDirectoryError for a file that has changed, and for a run without digests."""
        sealed = check_sealed(self.folder)
        if sealed is None:
            raise RunDirectoryError(f"{self.folder} has no {SEAL}, so nothing shows whether its files have changed.")
        return sealed

    @cached_property
    def state(self) -> RunState:
        return self.run.state()

    @cached_property
    def greedy(self) -> bool:
        """True if the first held-out episode of each task was played greedily."""
        return self.config.evaluation.greedy

    @cached_property
    def splits(self) -> dict[str, list[McpScenario]]:
        return {split: self.run.scenarios(split) or [] for split in ("train", "val")}

    @cached_property
    def scoring(self) -> Scoring:
        """Scores episodes as the run did, but for its judges."""
        judged = self.config.judge.model is not None
        plain = self.config.judge.model_copy(update={"model": None})
        reward = RewardConfig() if judged else self.config.reward
        return Scoring(plain, self.plugins.verifiers, reward, self.plugins.rewards, seed=self.config.seed)

    def evaluation(self, step: int) -> list[TrajectoryGroup]:
        """Return the recorded held-out episodes of a step. Raises RunDirectoryError if there are none."""
        if step not in self._evaluations:
            path = self.folder / "trajectories" / "val" / f"{step:04d}.jsonl"
            self._evaluations[step] = list(read_groups(path))
        return self._evaluations[step]

    @cached_property
    def _evaluations(self) -> dict[int, list[TrajectoryGroup]]:
        return {}

    @property
    def evaluated(self) -> list[int]:
        """The steps before and after training that the run's table compares."""
        steps = [0] if self.state.before else []
        return steps + ([self.state.after_step] if self.state.after and self.state.after_step else [])


def files_whole(evidence: RecordedRun) -> Claim:
    """Claim that every file is as the run wrote it, and every checkpoint one that it wrote."""
    sealed = evidence.sealed
    missing = [name for name in sealed.seal.names if not (evidence.folder / name).exists()]
    if lost := [name for name in missing if not name.startswith("checkpoints/")]:
        return refuted("files", f"{lost[0]} is missing, which the run wrote.")
    checkpoints = [path for path in sorted(evidence.run.checkpoints.glob("*[0-9]")) if path.name.isdigit()]
    for path in checkpoints:
        if damage := find_damage(path):
            return refuted("files", f"The checkpoint {path} is not whole: {damage}.")
    if (page := evidence.folder / PAGE).exists() and read_mark(page) not in {line.digest for line in sealed.lines}:
        return refuted("files", f"{page} is not as it was written for this run: `mcp-rl report` writes it again.")
    size = sum((evidence.folder / name).stat().st_size for name in sealed.files)
    size += sum(file.stat().st_size for path in checkpoints for file in path.iterdir())
    said = (
        f"{len(sealed.files)} files and {len(checkpoints)} checkpoints ({size / 1e6:.1f} MB) are as they were written."
    )
    return proven("files", said)


def history_unbroken(evidence: RecordedRun) -> Claim:
    """Claim that no line of the history is missing, changed or moved, and that every step is there once."""
    lines = evidence.sealed.lines
    steps = [line.fields["step"] for line in lines if line.fields.get("split") == "train"]
    if steps != list(range(1, len(steps) + 1)):
        odd = next((n for n, step in enumerate(steps, 1) if n != step), len(steps))
        return refuted("history", f"{HISTORY} does not have every step once: step {odd} is not in its place.")
    if len(steps) < evidence.state.step:
        return refuted("history", f"The run is at step {evidence.state.step}, its history at {len(steps)}.")
    said = f"{len(lines)} lines, each bound to the one before it; steps 1 to {len(steps)} are there once each."
    return proven("history", said)


def held_out(evidence: RecordedRun) -> Claim:
    """Claim that no held-out task was trained on."""
    train, val = evidence.splits["train"], evidence.splits["val"]
    if shared := {s.id for s in train} & {s.id for s in val} or overlap(train, val):
        return refuted("held out", f"{len(shared)} tasks or calls are in both splits, such as {min(shared)}.")
    known, episodes, files = {s.id: _content(s) for s in train}, 0, 0
    for line in evidence.sealed.lines:
        for name in line.wrote if line.fields.get("split") == "train" else ():
            files += 1
            for group in read_groups(evidence.folder / name):
                episodes += len(group)
                if known.get(group.scenario.id) != _content(group.scenario):
                    said = f"{name} trains on task {group.scenario.id}, which is not so in train.jsonl."
                    return refuted("held out", said)
    said = (
        f"None of {len(val)} held-out tasks shares a call or a request with the {len(train)} for training, and all "
        f"{episodes} training episodes are of these."
    )
    return proven("held out", said)


def numbers_follow(evidence: RecordedRun) -> Claim:
    """Claim that the report, the state and the history say what the recorded episodes say."""
    if not evidence.evaluated:
        return unproven("numbers", "No held-out task has been played yet.")
    report = evidence.run.read_json("report.json")
    if report is not None and report.get("step") != evidence.state.step:
        report = None  # the run has gone on
    told = []
    for when, step in zip(("before", "after"), evidence.evaluated, strict=False):
        found = summarize(evidence.evaluation(step), step=step, greedy=evidence.greedy).model_dump(mode="json")
        sources = {"state.json": getattr(evidence.state, when)}
        if report is not None:
            sources["report.json"] = (report.get("details") or {}).get(when)
            headline = found["greedy"] or found["sampled"]
            table = (report.get("val") or {}).get(when) or {}
            if not all(_same(table.get(name), headline[name]) for name in ("success", "ci95", "reward")):
                return refuted("numbers", f"The table of report.json does not follow from the episodes {when}.")
        for name, said in sources.items():
            if not _same(said, found):
                where = f"{when} training: {_first_difference(said, found)}"
                return refuted("numbers", f"{name} does not follow from the recorded episodes {where}.")
        headline = found["greedy"] or found["sampled"]
        kind = "reward" if headline["success"] is None else "success"
        told.append(f"{kind} {shown(headline[kind])} {when}")
    recounted = 0
    for line in evidence.sealed.lines:
        for name in line.wrote:
            found = group_metrics(read_groups(evidence.folder / name))
            recounted += 1
            if odd := [key for key in _RECOUNTED if key in line.fields and not _same(line.fields[key], found.get(key))]:
                said = f"{HISTORY}, line {line.number}: {odd[0]} does not follow from {name}."
                return refuted("numbers", said)
    said = f"{', '.join(told)}, computed again from the recorded episodes; so are {recounted} lines of the history."
    return proven("numbers", said)


async def verdicts_hold(evidence: RecordedRun) -> Claim:
    """Claim that the verifiers give the recorded episodes the recorded rewards."""
    expected = {scenario.id: _content(scenario) for scenario in evidence.splits["val"]}
    judged, checked, unknown = evidence.config.judge.model is not None, 0, set()
    for name in sorted(evidence.sealed.episodes):
        for group in read_groups(evidence.folder / name):
            scenario = group.scenario
            if "/val" in name and expected.get(scenario.id) != _content(scenario):
                said = f"{name} holds episodes of task {scenario.id}, which is not so in val.jsonl."
                return refuted("verdicts", said)
            if scenario.verifier is None or scenario.verifier.kind not in evidence.plugins.verifiers:
                unknown.add(scenario.verifier.kind if scenario.verifier else "none of its own")
                continue
            for trajectory in group:
                if trajectory.stop_reason.trainable and trajectory.success is not None:
                    checked += 1
                    if odd := await _other_verdict(evidence, scenario, trajectory, judged):
                        return refuted("verdicts", f"{name}: an episode of task {scenario.id} {odd}.")
    if unknown:
        said = f"{checked} verdicts hold; others need the verifier {min(unknown)!r} of a plugin: add --plugin FILE."
        return unproven("verdicts", said)
    besides = "; the judges' scores are as recorded, and cannot be computed again" if judged else ""
    return proven("verdicts", f"The verifiers give {checked} recorded episodes their verdicts again{besides}.")


async def _other_verdict(
    evidence: RecordedRun, scenario: McpScenario, recorded: Trajectory, judged: bool
) -> str | None:
    again = recorded.model_copy(update={"reward": None, "success": None, "metrics": {}, "explanation": None})
    try:
        if (waiting := evidence.scoring.rollout(scenario, again)) is not None:
            await waiting
    except UserError:
        raise
    except McpRlError as error:
        return f"cannot be scored again ({error})"
    if again.success != recorded.success:
        return f"was recorded with success {recorded.success}, and the verifier says {again.success}"
    if not judged and not _same(again.reward, recorded.reward):
        return f"was recorded with the reward {recorded.reward}, and scores {again.reward}"
    return None


def checkpoint_evaluated(evidence: RecordedRun) -> Claim:
    """Claim that the evaluated policies are the base model and the checkpoint that the report names."""
    state, run = evidence.state, evidence.run
    for step in evidence.evaluated:
        segments = (s for group in evidence.evaluation(step) for t in group for s in t.segments)
        versions = {version for segment in segments for version in segment.versions if version >= 0}
        if versions - {step}:
            said = f"Held-out episodes of step {step} hold tokens that step {min(versions - {step})} sampled."
            return refuted("checkpoint", said)
    if not state.after_step:
        return unproven("checkpoint", "Nothing has been evaluated after training yet.")
    checkpoint = run.checkpoints / f"{state.after_step:04d}"
    if not checkpoint.is_dir():
        return unproven("checkpoint", f"The evaluated step {state.after_step} has no checkpoint any more.")
    if damage := find_damage(checkpoint):
        return refuted("checkpoint", f"The checkpoint {checkpoint} is not the evaluated one: {damage}.")
    said = f"The held-out episodes were recorded as sampled by step {state.after_step}, whose checkpoint the run wrote."
    return proven("checkpoint", said)


def _content(scenario: McpScenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", exclude=_ELSEWHERE)


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, numbers but for rounding."""
    return _first_difference(one, other) is None


def _first_difference(one: Any, other: Any, place: str = "") -> str | None:
    """Return where two JSON values differ, as `greedy.success is 1.0, not 0.5`; None if they are equal."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers and not isinstance(one, bool) and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12):
        return None
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        pairs = [(str(key), one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(str(index), *pair) for index, pair in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other else f"{place} is {one!r:.40}, not {other!r:.40}"
    for key, mine, theirs in pairs:
        if found := _first_difference(mine, theirs, f"{place}.{key}" if place else key):
            return found
    return None


Check = Callable[[RecordedRun], Claim | Awaitable[Claim]]
CHECKS: Mapping[str, Check] = {
    "files": files_whole,
    "history": history_unbroken,
    "held out": held_out,
    "numbers": numbers_follow,
    "verdicts": verdicts_hold,
    "checkpoint": checkpoint_evaluated,
}
"""The checks that need nothing but the files and the plugins, by the names of their claims."""
