"""`mcp-rl replay`: retrains from the episodes that a run recorded, with no server and no engine.

The same settings give the same weights, bit for bit on a CPU: what is learned follows from the episodes, the seed and
the settings alone. Other settings give other weights, of which the episodes are then no longer: the sampler's
log-probabilities are corrected (truncated importance sampling), and that sampler and learner agree is not asked for.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mcp_rl.backends.initial import initial_hash
from mcp_rl.backends.loading.first import import_first
from mcp_rl.backends.loading.options import loaded_before, plan_loading
from mcp_rl.config import RunConfig, TrainConfig
from mcp_rl.errors import CheckpointError, ConfigError, RunDirectoryError
from mcp_rl.learning.checkpoint import find_damage, newest_checkpoint
from mcp_rl.report.reading import groups_in, history_in
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, open_run
from mcp_rl.runs.find import beside
from mcp_rl.runs.fork import FORKED_FROM, checkpoint_steps
from mcp_rl.runs.settings import Origin, changed_settings, with_settings
from mcp_rl.threads import prepare_torch_threads
from mcp_rl.tracking.progress import Progress
from mcp_rl.training.metrics import faults, rollout_metrics, shown_metrics
from mcp_rl.training.preparation import base_revision, check_base_model

if TYPE_CHECKING:
    from mcp_rl.learning.step import Learner

REPLAY_OF = "replay.of"
"""The setting in a replay's identity that says of which run it is."""
OFF_POLICY_CAP = 2.0
"""Of importance weights where the run had none: what `train.importance_cap` is with `train.max_staleness`."""
_SAME_POLICY = (
    "train.microbatch_tokens", "train.prefix_sharing", "train.activation_checkpointing", "train.checkpoint_every",
    "train.keep_checkpoints", "train.keep_best", "steps", "init", "unsloth.trust_remote_code",
)  # fmt: skip
"""Settings that change the result in its last bits at most."""
_FOREIGN_CODE = "unsloth.trust_remote_code"
_UNKNOWN_TO_IDENTITY = ("microbatch_tokens", "checkpoint_every", "keep_checkpoints", "keep_best")
_COMPARED = ("loss", "grad_norm", "entropy", "trained_tokens", "logprob_difference_mean")


@dataclass(frozen=True)
class ReplayReport:
    """What a replay came to."""

    path: str
    of: str
    steps: int
    same_settings: bool
    identical: list[int] = field(default_factory=list)
    """Steps whose checkpoint both have, with the same weights to the last bit."""
    differing: list[int] = field(default_factory=list)
    """Steps whose checkpoint both have, with other weights."""
    first_other_step: int | None = None
    """The first step whose loss, gradient or entropy differ from the run's in any bit."""
    seconds: float = 0.0

    def json_line(self) -> str:
        return json.dumps(asdict(self))

    def sentences(self) -> Iterator[str]:
        """In words."""
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


@dataclass(frozen=True)
class _Phase:
    """Steps that were taken with one configuration: a fork changes it."""

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

    `name` is by default the run's with `-replay` behind it. `overrides` is dotted settings: those of `train.*`, `seed`,
    `steps` and `init`. Raises ConfigError for others, RunDirectoryError where episodes are missing or cannot be read or
    the target is a run of something else, CheckpointError where a checkpoint of the replay cannot be continued.
    """
    began = time.monotonic()
    origin, overrides = Origin.of(folder), dict(overrides or {})
    _check(origin, overrides)
    was = origin.config()
    now = origin.config(overrides)
    changed = {key: pair for key, pair in changed_settings(was, now).items() if key != "init"}
    init = _initial(origin, overrides)
    steps = _steps(origin, now if "steps" in overrides else None)
    off_policy = any(key not in _SAME_POLICY for key in changed) or init.other
    phases = list(_phases(origin, overrides, off_policy))
    target = beside(folder, name or f"{folder.resolve().name}-replay")
    with (
        open_run(target, fresh=fresh, needed=[folder, init.path]) as run,
        Progress(steps=steps, console=console) as progress,
    ):
        state = run.state()
        _identify(run, origin, {k: v for k, v in changed.items() if k != "steps"}, init, target)
        state.threads = prepare_torch_threads(state.threads or origin.run.state().threads)
        if off_policy:
            progress.say(_off_policy(phases[-1].config.train))
        retraining = _Retraining(origin, run, state, phases, now, init.path, steps, off_policy, progress)
        try:
            retraining.go()
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"Interrupted; step {state.step} is kept in {target}, and the same command continues from there."
            ) from error
    return _compare(origin.run, run, steps, not changed and not init.other, time.monotonic() - began)


def _check(origin: Origin, overrides: Mapping[str, Any]) -> None:
    if REPLAY_OF in origin.identity.settings:
        raise RunDirectoryError(
            f"The run in {origin.run.path} is a replay itself; replay {origin.identity.settings[REPLAY_OF]}, whose "
            "episodes it used."
        )
    for key in overrides:
        if key.split(".")[0] not in ("train", "seed", "steps", "init") and key != _FOREIGN_CODE:
            raise ConfigError(
                f"A replay cannot change {key}: the episodes are as they were played. It can change train.*, seed, "
                "steps and init."
            )
    name = origin.identity.base_model
    if origin.command.get(_FOREIGN_CODE) and _FOREIGN_CODE not in overrides:
        raise ConfigError(
            f"The run was made with code out of its model's repository: add {_FOREIGN_CODE}=true to run it again."
        )
    check_base_model(name)
    if (revision := base_revision(name)) != origin.identity.base_revision:
        raise ConfigError(
            f"The base model {name!r} has other weights now ({revision or 'unknown'}) than those that the run was made "
            f"with ({origin.identity.base_revision}), so nothing could be the same."
        )


@dataclass(frozen=True)
class _Start:
    """Where step 0 begins."""

    path: Path | None
    hash: str | None
    other: bool
    """Not where the run began."""


def _initial(origin: Origin, overrides: Mapping[str, Any]) -> _Start:
    """What the run began with, or what it is to begin with now. Raises ConfigError where that is no longer there."""
    known = origin.identity.settings.get("init")
    given = overrides.get("init")
    path = given or origin.about.get("init") or origin.command.get("init")
    if path is None:
        if known:
            raise ConfigError("The run began with another's weights, and where they are is not known: add init=PATH.")
        return _Start(None, None, other=False)
    found = initial_hash(Path(path))
    if given is None and found != known:
        raise ConfigError(
            f"What the run began with, {path}, holds other weights now; if they are elsewhere, add init=PATH."
        )
    return _Start(Path(path), found, other=found != known)


def _steps(origin: Origin, config: RunConfig | None) -> int:
    """How many steps there are to replay: those that are whole and whose episodes are there."""
    folder = origin.run.path / "trajectories" / "train"
    there = {int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit()}
    whole = origin.run.state().step
    if not whole:
        raise RunDirectoryError(f"The run in {origin.run.path} has no whole training step yet, so nothing to replay.")
    wanted = min(config.steps, whole) if config is not None else whole
    for step in range(1, wanted + 1):
        if step not in there:
            raise RunDirectoryError(
                f"The episodes of step {step} are missing: there is no {folder / f'{step:04d}.jsonl'}."
            )
    return wanted


def _phases(origin: Origin, overrides: Mapping[str, Any], off_policy: bool) -> Iterator[_Phase]:
    """The configurations that the steps were taken with, in order; a run that is no fork has one."""
    forks = origin.about.get(FORKED_FROM, [])
    kept = {f"train.{key}": value for key, value in _kept_arguments(origin.run).items()}
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
    """Of the newest checkpoint's arguments, those that an identity does not hold."""
    try:
        checkpoint = newest_checkpoint(run.checkpoints)
        kept = checkpoint.read_json("trainer_state.json")["training_arguments"] if checkpoint else {}
    except (CheckpointError, KeyError, ValueError):
        return {}
    return {key: kept[key] for key in _UNKNOWN_TO_IDENTITY if key in kept}


def _identify(
    run: RunDirectory, origin: Origin, changed: Mapping[str, tuple[Any, Any]], init: _Start, target: Path
) -> None:
    """Write model.json for a new replay, or see that an earlier one was of the same."""
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


def _off_policy(config: TrainConfig) -> str:
    corrected = (
        f"importance weights of at most {config.cap:g} correct for that" if config.cap else "nothing corrects that"
    )
    return (
        "The settings are not the run's, so its episodes are of another policy than the one that learns here: "
        f"{corrected}, and sampler and learner are not asked to agree."
    )


@dataclass
class _Retraining:
    """One session of a replay, everything found and checked."""

    origin: Origin
    run: RunDirectory
    state: RunState
    phases: Sequence[_Phase]
    config: RunConfig
    init: Path | None
    steps: int
    off_policy: bool
    progress: Progress

    @property
    def loaded(self) -> Mapping[str, Any]:
        """What the run loaded, which is loaded again; empty where an earlier version made it."""
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
        theirs = checkpoint_steps(self.origin.run)
        every = phase.config.train.checkpoint_every
        while learner.step < last:
            metrics = self._step(learner)
            if learner.step == last or learner.step % every == 0 or learner.step in theirs:
                self._save(learner, files, base_name, metrics, theirs)

    def _learner(self, config: RunConfig) -> "tuple[Learner, dict[str, bytes], str]":
        """At the newest checkpoint of the replay, else where the run began; with what a checkpoint needs besides."""
        if by_unsloth := self.loaded.get("loader") == "unsloth":
            import_first()  # before transformers and PEFT
        from mcp_rl.backends.base_model import base_location, make_learner, open_base
        from mcp_rl.learning.state import restore, tokenizer_files

        name = self.origin.identity.base_model
        plan = plan_loading(
            name,
            config.unsloth.model_copy(update={"use": None}),  # by what loaded it then, where that is here
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

    def _step(self, learner: "Learner") -> dict[str, float]:
        began = time.monotonic()
        step = learner.step + 1
        groups = list(groups_in(self.origin.run.path / "trajectories" / "train" / f"{step:04d}.jsonl"))
        metrics = learner.update(groups, check_sampler=not self.off_policy)
        done = self.state.progress
        done.rollouts += sum(map(len, groups))
        done.sampled_tokens += sum(t.sampled_tokens for group in groups for t in group)
        done.trained_tokens += int(metrics["trained_tokens"])
        done.faults += sum(map(faults, groups))
        seconds = time.monotonic() - began
        done.seconds += seconds
        line = {**rollout_metrics(groups, self.config.reward.weights), **metrics, "step_seconds": seconds}
        self.run.append_history({"step": step, "split": "train", **line})
        self.progress.step_done(step, shown_metrics(line), seconds=seconds)
        return line

    def _save(
        self,
        learner: "Learner",
        files: Mapping[str, bytes],
        base_name: str,
        metrics: Mapping[str, float],
        theirs: Sequence[int],
    ) -> None:
        from mcp_rl.learning.state import save_learner

        save_learner(
            self.run.checkpoints,
            learner,
            files,
            base_name=base_name,
            title=f"{self.run.path.parent.parent.name}/{self.run.path.name}",
            metrics={name: value for name, value in metrics.items() if not name.endswith("_seconds")},
            frontier=self.state.progress.model_dump(mode="json"),
            keep=learner.config.keep_checkpoints,
            protect=theirs,
        )
        self.state.step = learner.step
        self.run.save_state(self.state)


def _compare(theirs: RunDirectory, ours: RunDirectory, steps: int, same_settings: bool, seconds: float) -> ReplayReport:
    """Hold the replay against the run: the weights of the checkpoints that both have, and the lines of their steps."""
    both = [step for step in checkpoint_steps(ours) if step in checkpoint_steps(theirs) and 0 < step <= steps]
    both = [step for step in both if find_damage(theirs.checkpoints / f"{step:04d}") is None]
    same = [step for step in both if _weights(theirs, step) == _weights(ours, step)]
    return ReplayReport(
        path=str(ours.path),
        of=str(theirs.path),
        steps=steps,
        same_settings=same_settings,
        identical=same,
        differing=[step for step in both if step not in same],
        first_other_step=_first_other_step(history_in(theirs.path), history_in(ours.path)),
        seconds=round(seconds, 2),
    )


def _weights(run: RunDirectory, step: int) -> dict[str, str]:
    """The weight files of a checkpoint and their hashes, out of its manifest."""
    manifest = json.loads((run.checkpoints / f"{step:04d}" / "manifest.json").read_bytes())
    names = [name for name in manifest["files"] if "model" in name and name.endswith(".safetensors")]
    return {name: manifest["files"][name]["sha256"] for name in names}


def _first_other_step(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> int | None:
    mine = {line["step"]: line for line in ours if line["split"] == "train"}
    for line in theirs:
        own = mine.get(line["step"]) if line["split"] == "train" else None
        if own and any(line[key] != own[key] for key in _COMPARED if key in line and key in own):
            return int(line["step"])
    return None


def _list(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
