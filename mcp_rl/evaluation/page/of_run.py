"""Read a training run, finished or not, as findings. Only reads; the run may be going on."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from mcp_rl.config import TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.agreement import judge_agreement
from mcp_rl.evaluation.comparison import compare
from mcp_rl.evaluation.evaluate import EvaluationResult
from mcp_rl.evaluation.page.findings import EpisodeSource, Findings
from mcp_rl.evaluation.page.tokens import Spelling, find_spelling
from mcp_rl.evaluation.result import REPORTED_LIMITS, EvaluationReport, JudgedPair, ModelReport
from mcp_rl.run_directory import RunDirectory, RunState, read_groups, read_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config.identity import RunIdentity
    from mcp_rl.trajectory import TrajectoryGroup

BEFORE = "before"
_STEPS_READ = 12
"""Training steps whose episodes are read, spread over the run; a page has room for no more."""
_EVALUATIONS_READ = 4
_BYTES_READ = 2_000_000
"""Bytes read of a file that need not be read whole."""


class KeptEpisodes:
    """Reads files of episodes, and keeps what it read until it is not wanted any more, since each file is written once.

    For a page that is made again and again.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], list[TrajectoryGroup]] = {}
        self._wanted: set[tuple[Any, ...]] = set()

    def read(self, path: Path, most_bytes: int | None = None) -> list[TrajectoryGroup]:
        """Return the groups of a file, as `read_groups` does."""
        found = path.stat()
        key = path, most_bytes, found.st_mtime_ns, found.st_size
        self._wanted.add(key)
        if key not in self._kept:
            self._kept[key] = list(read_groups(path, most_bytes))
        return self._kept[key]

    def forget(self) -> None:
        """Forget the files that were not read since the last call."""
        self._kept = {key: groups for key, groups in self._kept.items() if key in self._wanted}
        self._wanted = set()


def training_findings(folder: Path, kept: KeptEpisodes | None = None) -> Findings:
    """Read a run. With `kept` it may be at its very beginning, and its episodes are not compared with their digests.

    Raises ConfigError if nothing was played yet, RunDirectoryError for files of another version, and for files that are
    not as the run wrote them.
    """
    run = RunDirectory(folder)
    unchecked, recorded = run.check_whole(episodes=kept is None), run.recorded_episodes()
    if kept is not None and run.read_json("model.json") is None:
        return _beginning(folder)
    if "sft" in (run.read_json("model.json") or {}):
        raise ConfigError(
            f"The run in {folder} is of supervised fine-tuning and has no episodes to show; use `mcp-rl history`."
        )
    identity, state, history = run.identity(), run.state(), read_history(folder)
    if identity is None:
        raise ConfigError(f"The run in {folder} has not begun: its model.json holds no identity.")
    if kept is None and state.before is None and not history:
        raise ConfigError(
            f"Nothing has been measured in {folder} yet; try again when the base model has been evaluated."
        )
    about, written = run.read_json("model.json") or {}, run.read_json("report.json") or {}
    taken = max((line["step"] for line in history), default=state.step)
    finished = bool(written) and written.get("step") == state.step
    read = read_groups if kept is None else kept.read
    files = {step: folder / "trajectories" / "val" / f"{step:04d}.jsonl" for step in _compared(state)}
    played = {step: list(read(path)) if path.exists() else [] for step, path in files.items()}
    sources = [
        source
        for source in _sources(folder, identity, state, history, played, read)
        if recorded is None or f"trajectories/{source.split}/{source.step:04d}.jsonl" in recorded
    ]
    measured = _measured(folder, identity, state, played, written)
    return Findings(
        folder=folder,
        title=f"{identity.server}: {identity.base_model}, {_trained(state.step if kept is None else taken)}",
        subtitle=f"Run {about.get('name', folder.name)}, project {about.get('project', '')}",
        measured=measured,
        sources=sources,
        unread=_unread(history, sources),
        history=history,
        pass_rates=_pass_rates(state.progress.curriculum),
        facts=list(_facts(identity, state, written)),
        unfinished=None if finished or kept is not None else _unfinished(state, taken),
        notes=[*unchecked, *_notes(measured, written)],
    )


def _beginning(folder: Path) -> Findings:
    """Return the findings about a run that has not written anything about itself yet."""
    nothing: dict[str, Any] = {"schema_hash": "", "samples": 0, "temperature": 1.0, "seed": 0, "limits": {}}
    report = EvaluationReport(
        path=str(folder), server="", scenarios=0, scenarios_from="", seconds=0.0, models=[], **nothing
    )
    return Findings(folder, folder.name, "A run that begins", report, [])


def _measured(
    folder: Path,
    identity: RunIdentity,
    state: RunState,
    played: Mapping[int, Sequence[TrajectoryGroup]],
    written: Mapping[str, Any],
) -> EvaluationReport:
    """Return the base model and the newest evaluated step as an evaluation of two models."""
    settings = identity.settings
    models = [
        ModelReport(
            model=_label(result.step),
            kind="checkpoint" if result.step else "base",
            base_model=identity.base_model,
            result=result,
            episodes=f"trajectories/val/{result.step:04d}.jsonl",
            seconds=0.0,
        )
        for result in _results(state)
    ]
    ordered = {_label(step): groups for step, groups in played.items()}
    greedy = {model.model: model.result.greedy is not None for model in models}
    return EvaluationReport(
        path=str(folder),
        server=identity.server,
        schema_hash=identity.schema_hash,
        scenarios=models[-1].result.scenarios if models else 0,
        scenarios_from="held out: none of their calls or requests was trained on",
        samples=int(settings.get("evaluation.samples", 0)),
        temperature=float(settings.get("rollout.temperature", 1.0)),
        seed=identity.seed,
        limits={name: settings.get(f"rollout.{name}") for name in REPORTED_LIMITS},
        seconds=state.progress.seconds,
        models=models,
        comparisons=compare(ordered, greedy) if len(ordered) == 2 else [],
        judged=_judged(written, models),
        judge=judge_agreement(group for groups in played.values() for group in groups),
    )


def _compared(state: RunState) -> list[int]:
    """Return the steps that the page compares: the base model and the newest evaluated one."""
    return [result.step for result in _results(state)]


def _results(state: RunState) -> list[EvaluationResult]:
    found = [EvaluationResult.model_validate(result) for result in (state.before, state.after) if result]
    return found if len({result.step for result in found}) == len(found) else found[:1]


def source_label(split: str, step: int) -> str:
    """Return what the page calls the episodes of a training step or of an evaluation."""
    return _label(step) if split == "val" else f"training step {step}"


def _label(step: int) -> str:
    return f"after step {step}" if step else BEFORE


def _judged(written: Mapping[str, Any], models: Sequence[ModelReport]) -> list[JudgedPair]:
    """Return the judge's comparison of the first episodes side by side, if it was asked."""
    scores = (written.get("details") or {}).get("judge") or {}
    pair = JudgedPair.from_scores(models[1].model, models[0].model, scores) if len(models) > 1 else None
    return [pair] if pair else []


_ADVANTAGE = ("loss", "scale_by_std", "leave_one_out")
"""Settings that decide how a group's rewards become advantages."""


def _sources(
    folder: Path,
    identity: RunIdentity,
    state: RunState,
    history: Sequence[dict[str, Any]],
    played: Mapping[int, Sequence[TrajectoryGroup]],
    read: Callable[[Path, int], Iterable[TrajectoryGroup]],
) -> list[EpisodeSource]:
    """List the newest and the base's evaluation first, to be compared; then other evaluations and training steps."""
    rollouts = {(line["split"], line["step"]): int(line.get("rollouts", 0)) for line in history}
    greedy = bool(identity.settings.get("evaluation.greedy", True))
    learning = TrainConfig.model_validate(
        {name: identity.settings[f"train.{name}"] for name in _ADVANTAGE if f"train.{name}" in identity.settings}
    )
    how = {"scale_by_std": learning.scales_by_std, "leave_one_out": learning.leave_one_out}
    newest = [step for step in (state.after_step, 0) if step is not None]
    val = sorted(_steps(folder / "trajectories" / "val"), key=lambda step: (step not in newest, -step))
    order = [*val[:2], *_spread(sorted(val[2:], reverse=True), _EVALUATIONS_READ - 2)]
    train = _spread(sorted(_steps(folder / "trajectories" / "train"), reverse=True), _STEPS_READ)

    @cache
    def spelling() -> Spelling | None:
        checkpoints = sorted((folder / "checkpoints").glob("[0-9]*"), reverse=True)
        return find_spelling(identity.base_model, checkpoints)

    def source(split: str, step: int) -> EpisodeSource:
        path = folder / "trajectories" / split / f"{step:04d}.jsonl"
        return EpisodeSource(
            label=source_label(split, step),
            split=split,
            step=step,
            groups=lambda: played[step] if split == "val" and step in played else read(path, _BYTES_READ),
            episodes=rollouts.get((split, step)) or _count(path),
            spelling=spelling,
            greedy=greedy and split == "val",
            advantage=how if split == "train" else None,
        )

    return [source(split, step) for split, steps in (("val", order), ("train", train)) for step in steps]


def _steps(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit()]


def _spread(steps: Sequence[int], most: int) -> list[int]:
    """Select at most `most` steps, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (most - 1))] for index in range(most)] if most > 1 else [*steps[:1]]


def _count(path: Path) -> int:
    """Count the episodes of a file that is not in the history yet."""
    return sum(len(json.loads(line)["trajectories"]) for line in path.read_bytes().splitlines())


def _unread(history: Iterable[dict[str, Any]], sources: Iterable[EpisodeSource]) -> int:
    read = {(source.split, source.step) for source in sources}
    lines = {(line["split"], line["step"]): int(line.get("rollouts", 0)) for line in history}
    return sum(count for key, count in lines.items() if key not in read)


def _pass_rates(curriculum: Mapping[str, Any]) -> dict[str, float]:
    measured = curriculum.get("measured")
    return {str(id): found["passed"] / found["of"] for id, found in measured.items()} if measured else {}


def _trained(step: int) -> str:
    return f"{step} training {'step' if step == 1 else 'steps'}" if step else "before training"


def _unfinished(state: RunState, taken: int) -> str:
    return f"This run was not finished when the page was made: {taken} steps taken, {state.step} of them kept."


def _notes(measured: EvaluationReport, written: Mapping[str, Any]) -> Iterator[str]:
    if measured.models:
        yield (
            f"{measured.scenarios} scenarios of {measured.server}, {measured.scenarios_from}; each played greedily and "
            f"{measured.samples} times at temperature {measured.temperature:g}, with the same random numbers each "
            "time. In brackets: the 95 % interval over scenarios."
        )
    spent = ((written.get("details") or {}).get("judge") or {}).get("spent") or {}
    if spent:
        words = ", ".join(
            f"{name.replace('_', ' ')} {value:{',.0f' if value >= 100 else '.3g'}}"
            for name, value in spent.items()
            if value
        )
        yield f"The judges took: {words}."


def _facts(identity: RunIdentity, state: RunState, written: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    done = state.progress
    yield "server", identity.server
    yield "base model", f"{identity.base_model} {identity.base_revision}".strip()
    yield "tool schemas", identity.schema_hash
    yield "training time", f"{done.seconds:,.0f} s"
    if peak := written.get("peak_rss_mb"):
        yield "memory at most", f"{peak:,.0f} MB"
    forecast = (written.get("details") or {}).get("forecast") or {}
    if was := forecast.get("steps_per_hour_was"):
        yield "steps an hour", f"{was:,.1f} (forecast: {forecast.get('steps_per_hour', 0):,.1f})"
    yield "training rollouts", f"{done.rollouts:,}"
    yield "tokens sampled in training", f"{done.sampled_tokens:,}"
    yield "tokens trained on", f"{done.trained_tokens:,}"
    yield "faults", f"{done.faults:,}"
    yield "seed", str(identity.seed)
    for name, value in identity.settings.items():
        yield name, json.dumps(value, ensure_ascii=False)
