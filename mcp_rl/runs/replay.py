"""`mcp-rl replay`: retrain from the episodes that a run recorded, without server or engine.

The same settings give the same weights, bit for bit on a CPU: they follow from the episodes, the seed and the settings
only. Other settings give other weights, so that the episodes become off-policy: the sampler's log-probabilities are
then corrected (truncated importance sampling), and the check that sampler and learner agree is skipped.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.base.base_name import base_revision, check_base_model
from mcp_rl.backends.base.first import import_first
from mcp_rl.backends.base.options import base_location, loaded_before, plan_loading
from mcp_rl.backends.initial import initial_hash
from mcp_rl.config import role_of
from mcp_rl.errors import CheckpointError, ConfigError, RunDirectoryError
from mcp_rl.evaluation.progress import Progress
from mcp_rl.learning.disk.checkpoint import find_damage, newest_checkpoint
from mcp_rl.rollouts.seated import with_seats
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, open_run, read_groups, read_history
from mcp_rl.runs.find import beside
from mcp_rl.runs.fork import FORKED_FROM, checkpoint_steps
from mcp_rl.runs.live import Live
from mcp_rl.runs.settings import Origin, changed_settings, evaluate_command, with_settings
from mcp_rl.runs.steps.metrics import faults, rollout_metrics, shown_metrics
from mcp_rl.runs.trained_tools import TrainedTools
from mcp_rl.system.threads import prepare_torch_threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from mcp_rl.config import RunConfig, TrainConfig
    from mcp_rl.learning.learner import Learner

REPLAY_OF = "replay.of"
"""Setting in a replay's identity: the path of the replayed run."""
OFF_POLICY_CAP = 2.0
"""Cap of importance weights if the run had none, equal to the default with `train.max_staleness`."""
_FOREIGN_CODE = "unsloth.trust_remote_code"
_RECORDED = {"reward": "recorded reward", "success": "recorded success"}
"""Names in the line of a step: the run's episodes got them, not the policy that learns here."""
_COMPARED = ("loss", "grad_norm", "entropy", "trained_tokens", "logprob_difference_mean")


@dataclass(frozen=True)
class ReplayReport:
    """The outcome of a replay."""

    path: str
    of: str
    steps: int
    same_settings: bool
    identical: list[int] = field(default_factory=list)
    """Steps at which both have a checkpoint, with the same weights to the last bit."""
    differing: list[int] = field(default_factory=list)
    """Steps at which both have a checkpoint, with different weights."""
    first_other_step: int | None = None
    """The first step whose loss, gradient or entropy differs from the run's in any bit."""
    seconds: float = 0.0
    evaluation: str = ""
    """Command that compares the run and its replay on held-out scenarios."""

    def json_line(self) -> str:
        return json.dumps(asdict(self))

    def sentences(self) -> Iterator[str]:
        """Yield the outcome in sentences."""
        yield f"{self.steps} steps of {self.of} replayed into {self.path} in {self.seconds:.1f} s."
        if self.identical and not self.differing:
            yield f"The weights are identical to the run's, bit for bit, at {_list(self.identical)}."
        elif self.differing:
            same = f"identical at {_list(self.identical)} and " if self.identical else ""
            yield f"The weights are {same}not the run's at {_list(self.differing)}."
        else:
            yield "The run and its replay have no checkpoint of the same step, so weights are not compared."
        if self.first_other_step is not None:
            yield f"The first step that went another way is {self.first_other_step}."
        elif self.same_settings:
            yield "Every step's loss, gradient and entropy are the run's."
        yield "The rewards above are those that the run recorded. To measure what the replay has learned, type:"
        yield f"    {self.evaluation}"


@dataclass(frozen=True)
class _Phase:
    """The steps up to `until` that were taken with one configuration, which a fork changes."""

    until: int
    config: RunConfig


def replay(
    folder: Path,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    fresh: bool = False,
    console: Console | None = None,
) -> ReplayReport:
    """Retrain the run in `folder` into a run beside it, or go on where an earlier session stopped.

    `name` defaults to the run's name followed by `-replay`. `overrides` holds dotted settings: those of `train.*`,
    `seed`, `steps` and `init`. Raises ConfigError for others, RunDirectoryError if episodes are missing or unreadable
    or the target is another run, CheckpointError if a checkpoint of the replay cannot be continued.
    """
    began = time.monotonic()
    origin, overrides = Origin.of(folder), dict(overrides or {})
    _check(origin, overrides)
    was = origin.config()
    now = origin.config(overrides)
    changed = {key: pair for key, pair in changed_settings(was, now).items() if key != "init"}
    init = _initial(origin, overrides)
    steps = _steps(origin, now if "steps" in overrides else None)
    off_policy = any(not role_of(key).same_policy for key in changed) or init.other
    phases = list(_phases(origin, overrides, off_policy))
    target = beside(folder, name or f"{folder.resolve().name}-replay")
    with (
        open_run(target, fresh=fresh, needed=[folder, init.path]) as run,
        Progress(steps=steps, console=console) as progress,
        Live(run.path, progress),
    ):
        for sentence in (*origin.run.check_whole(), *run.take_up()):
            progress.say(sentence)
        state = run.state()
        _identify(run, origin, {k: v for k, v in changed.items() if k != "steps"}, init, target)
        same = state if state.threads else origin.run.state()
        state.threads, state.update_threads = prepare_torch_threads(same.threads, same.update_threads)
        if off_policy:
            progress.say(_off_policy(phases[-1].config.train))
        retraining = _Retraining(origin, run, state, phases, now, init.path, steps, off_policy, progress)
        try:
            retraining.go()
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"Interrupted; step {state.step} is kept in {target}, and the same command continues from there."
            ) from error
    report = _compare(origin.run, run, steps, not changed and not init.other, time.monotonic() - began)
    return replace(report, evaluation=evaluate_command(origin, run.path))


def _check(origin: Origin, overrides: Mapping[str, Any]) -> None:
    if REPLAY_OF in origin.identity.settings:
        raise RunDirectoryError(
            f"The run in {origin.run.path} is a replay itself; replay {origin.identity.settings[REPLAY_OF]}, whose "
            "episodes it used."
        )
    for key in overrides:
        if not role_of(key).replay:
            raise ConfigError(
                f"A replay cannot change {key}: its episodes are already played. It can change train.*, seed, "
                "steps and init."
            )
    name = origin.identity.base_model
    if origin.command.get(_FOREIGN_CODE) and _FOREIGN_CODE not in overrides:
        raise ConfigError(
            f"The run was made with code from its model's repository: add {_FOREIGN_CODE}=true to run it again."
        )
    check_base_model(name)
    if (revision := base_revision(name)) != origin.identity.base_revision:
        raise ConfigError(
            f"The base model {name!r} has other weights now ({revision or 'unknown'}) than those that the run was made "
            f"with ({origin.identity.base_revision}), so nothing could be the same."
        )


@dataclass(frozen=True)
class _Start:
    """The weights at step 0."""

    path: Path | None
    hash: str | None
    other: bool
    """True if the run began with other weights."""


def _initial(origin: Origin, overrides: Mapping[str, Any]) -> _Start:
    """Return the weights to begin with: those of the run, or of `init`. Raises ConfigError if they are gone."""
    known = origin.identity.settings.get("init")
    given = overrides.get("init")
    path = given or origin.about.get("init") or origin.command.get("init")
    if path is None:
        if known:
            raise ConfigError(
                "The run began with the weights of another run, whose place is not recorded: add init=PATH."
            )
        return _Start(None, None, other=False)
    found = initial_hash(Path(path))
    if given is None and found != known:
        raise ConfigError(
            f"The run began with {path}, which holds other weights now; if they are elsewhere, add init=PATH."
        )
    return _Start(Path(path), found, other=found != known)


def _steps(origin: Origin, config: RunConfig | None) -> int:
    """Return the number of steps to replay: completed ones whose episodes are recorded."""
    folder = origin.run.path / "trajectories" / "train"
    there = {int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit()}
    whole = origin.run.state().step
    if not whole:
        raise RunDirectoryError(
            f"The run in {origin.run.path} has no whole training step yet, so there is nothing to replay."
        )
    wanted = min(config.steps, whole) if config is not None else whole
    for step in range(1, wanted + 1):
        if step not in there:
            raise RunDirectoryError(
                f"The episodes of step {step} are missing: there is no {folder / f'{step:04d}.jsonl'}."
            )
    return wanted


def _phases(origin: Origin, overrides: Mapping[str, Any], off_policy: bool) -> Iterator[_Phase]:
    """Yield the configurations with which steps were taken, in order; only a fork has several."""
    forks = origin.about.get(FORKED_FROM, [])
    kept = _kept_arguments(origin.run)
    earlier: dict[str, Any] = {}
    found: list[_Phase] = []
    for until, was in [(10**9, {}), *((entry["step"], entry["was"]) for entry in reversed(forks))]:
        earlier |= {key: value for key, value in was.items() if not key.startswith("reward.")}  # rewards are recorded
        config = origin.config({**kept, **earlier, **overrides})
        if off_policy and not config.train.cap and "train.importance_cap" not in overrides:
            corrected = config.train.model_copy(update={"importance_cap": OFF_POLICY_CAP})
            config = config.model_copy(update={"train": corrected})
        found.append(_Phase(until, config))
    yield from reversed(found)


def _kept_arguments(run: RunDirectory) -> dict[str, Any]:
    """Return the settings of `train` that the newest checkpoint holds and an identity does not, dotted."""
    try:
        checkpoint = newest_checkpoint(run.checkpoints)
        kept = checkpoint.read_json("trainer_state.json")["training_arguments"] if checkpoint else {}
    except (CheckpointError, KeyError, ValueError):
        return {}
    dotted = {f"train.{name}": value for name, value in kept.items()}
    return {key: value for key, value in dotted.items() if (role := role_of(key)).same_policy and not role.identity}


def _identify(
    run: RunDirectory, origin: Origin, changed: Mapping[str, tuple[Any, Any]], init: _Start, target: Path
) -> None:
    """Write model.json for a new replay, or check that an earlier one has the same identity."""
    identity = with_settings(origin.identity, {k: v for k, v in changed.items() if k != "seed"})
    own = {REPLAY_OF: str(origin.run.path), **({"init": init.hash} if init.hash else {})}
    seed = changed["seed"][1] if "seed" in changed else identity.seed
    identity = identity.model_copy(update={"settings": {**identity.settings, **own}, "seed": seed})
    if run.identity() is not None:
        run.check(identity)
        return
    project = target.parent.parent.name
    about: dict[str, Any] = {"name": target.name, "project": project, "base_model": identity.base_model}
    if loaded := loaded_before(origin.run.path):
        about["loaded"] = loaded
    run.begin(identity, about | ({"init": str(init.path)} if init.path else {}))
    TrainedTools.carry(origin.run.path, run)


def _off_policy(config: TrainConfig) -> str:
    corrected = (
        f"importance weights of at most {config.cap:g} correct for that" if config.cap else "nothing corrects that"
    )
    return (
        "The settings differ from the run's, so its episodes come from another policy than the one that learns here: "
        f"{corrected}, and sampler and learner need not agree."
    )


@dataclass
class _Retraining:
    """A session of a replay, after all checks."""

    origin: Origin
    run: RunDirectory
    state: RunState
    phases: Sequence[_Phase]
    config: RunConfig
    init: Path | None
    steps: int
    off_policy: bool
    progress: Progress
    drifting: bool = False
    """True once the warning about drift has been printed."""

    @property
    def loaded(self) -> Mapping[str, Any]:
        """Loading options of the run, used again; empty if an earlier version made it."""
        return loaded_before(self.origin.run.path)

    def go(self) -> None:
        """Take all steps that are left."""
        for phase in self.phases:
            newest = newest_checkpoint(self.run.checkpoints)
            done = newest.step if newest else 0
            if newest is None or done < min(phase.until, self.steps):
                self._take_phase(phase, done)

    def _take_phase(self, phase: _Phase, done: int) -> None:
        learner, files, base_name = self._learner(phase.config)
        self.run.discard_after(learner.step)
        if learner.step:
            self.progress.say(f"Continuing from step {learner.step} in {self.run.path}.")
        last = min(phase.until, self.steps)
        recorded = checkpoint_steps(self.origin.run)
        every = phase.config.train.checkpoint_every
        while learner.step < last:
            metrics = self._step(learner)
            if learner.step == last or learner.step % every == 0 or learner.step in recorded:
                self._save(learner, files, base_name, metrics, recorded)

    def _learner(self, config: RunConfig) -> tuple[Learner, dict[str, bytes], str]:
        """Return the learner at the newest checkpoint, else at the start, tokenizer files, and the base's name."""
        if by_unsloth := self.loaded.get("loader") == "unsloth":
            import_first()  # before transformers and PEFT
        from mcp_rl.backends.base.base_model import make_learner, open_base
        from mcp_rl.learning.disk.state import restore, tokenizer_files

        name = self.origin.identity.base_model
        plan = plan_loading(
            name,
            config.unsloth.model_copy(update={"use": None}),  # the loader of that time, if it is installed
            config.train,
            seed=self.config.seed,
            before=self.loaded,
            unsloth_allowed=by_unsloth,
        )
        opened = open_base(plan, self.loaded or None)
        newest = newest_checkpoint(self.run.checkpoints)
        learner = make_learner(
            opened.model,
            name,
            config.train,
            seed=self.config.seed,
            temperature=config.rollout.temperature,
            init=self.init if newest is None else None,
            plan=plan,
            say=self.progress.say,
        )
        if newest is not None:
            self.state.progress = StepProgress.model_validate(restore(learner, newest))
            for sentence in newest.skipped:
                self.progress.say(sentence)
        return learner, tokenizer_files(opened.tokenizer), base_location(name)

    def _step(self, learner: Learner) -> dict[str, float]:
        from mcp_rl.learning.step import update

        began = time.monotonic()
        step = learner.step + 1
        groups = list(read_groups(self.origin.run.path / "trajectories" / "train" / f"{step:04d}.jsonl"))
        metrics = update(learner, with_seats(groups), other_policy=self.off_policy)
        done = self.state.progress
        sampled = [trajectory for group in groups if not group.demonstrates for trajectory in group]
        done.rollouts += len(sampled)
        done.sampled_tokens += sum(trajectory.sampled_tokens for trajectory in sampled)
        done.trained_tokens += int(metrics["trained_tokens"])
        done.faults += sum(map(faults, groups))
        seconds = time.monotonic() - began
        done.seconds += seconds
        played = rollout_metrics(groups, self.config.reward.weights) if sampled else {}
        line = {**played, **metrics, "step_seconds": seconds}
        self.run.append_history({"step": step, "split": "train", **line})
        shown = {_RECORDED.get(name, name): value for name, value in shown_metrics(line).items()}
        self.progress.step_done(step, shown, seconds=seconds)
        if self.off_policy:
            self._warn_of_drift(line)
        return line

    def _warn_of_drift(self, line: Mapping[str, float]) -> None:
        """Say once in a session that the learner moves away from the policy that sampled the episodes."""
        from mcp_rl.learning.off_policy import DRIFTING

        overlap = line.get("overlap", 1.0)
        if overlap < DRIFTING and not self.drifting:
            self.drifting = True
            self.progress.say(
                f"Warning: the learner has drifted away from the policy that sampled these episodes: it would play "
                f"{overlap:.0%} of them, with an effective sample size of {line['ess']:.0%} of the tokens, and may be "
                "collapsing. A smaller train.learning_rate, train.kl=0.05 or fewer steps keep it near; the recorded "
                "rewards do not show what it can do."
            )

    def _save(
        self,
        learner: Learner,
        files: Mapping[str, bytes],
        base_name: str,
        metrics: Mapping[str, float],
        recorded: Sequence[int],
    ) -> None:
        from mcp_rl.learning.disk.state import ModelCard, save_learner

        save_learner(
            self.run.checkpoints,
            learner,
            files,
            ModelCard(
                title=f"{self.run.path.parent.parent.name}/{self.run.path.name}",
                base_name=base_name,
                metrics={name: value for name, value in metrics.items() if not name.endswith("_seconds")},
            ),
            frontier=self.state.progress.model_dump(mode="json"),
            keep=learner.config.keep_checkpoints,
            protect=recorded,
        )
        self.state.step = learner.step
        self.run.save_state(self.state, saved=True)


def _compare(
    original: RunDirectory, replayed: RunDirectory, steps: int, same_settings: bool, seconds: float
) -> ReplayReport:
    """Compare a replay with its run: the weights of common checkpoints, and the metrics of common steps."""
    both = [step for step in checkpoint_steps(replayed) if step in checkpoint_steps(original) and 0 < step <= steps]
    both = [step for step in both if find_damage(original.checkpoints / f"{step:04d}") is None]
    same = [step for step in both if _weights(original, step) == _weights(replayed, step)]
    return ReplayReport(
        path=str(replayed.path),
        of=str(original.path),
        steps=steps,
        same_settings=same_settings,
        identical=same,
        differing=[step for step in both if step not in same],
        first_other_step=_first_other_step(read_history(original.path), read_history(replayed.path)),
        seconds=round(seconds, 2),
    )


def _weights(run: RunDirectory, step: int) -> dict[str, str]:
    """Return the weight files of a checkpoint with their hashes, from its manifest."""
    manifest = json.loads((run.checkpoints / f"{step:04d}" / "manifest.json").read_bytes())
    names = [name for name in manifest["files"] if "model" in name and name.endswith(".safetensors")]
    return {name: manifest["files"][name]["sha256"] for name in names}


def _first_other_step(original: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]]) -> int | None:
    mine = {line["step"]: line for line in replayed if line["split"] == "train"}
    for line in original:
        own = mine.get(line["step"]) if line["split"] == "train" else None
        if own and any(line[key] != own[key] for key in _COMPARED if key in line and key in own):
            return int(line["step"])
    return None


def _list(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
