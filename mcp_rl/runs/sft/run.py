"""`mcp-rl sft`: supervised fine-tuning on conversations or on a run's own successes, resumable bit for bit.

Its run lies where `train` keeps its runs, with the same checkpoints, so that each continues the other by `--init`.
Every step follows from the seed, the data, the weights and its number; it is complete once its checkpoint is on disk.
"""

from __future__ import annotations

import functools
import math
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mcp_rl.backends.base.base_name import base_revision, check_base_model
from mcp_rl.backends.base.first import import_first
from mcp_rl.backends.base.options import LoadPlan, base_location, begun_with, loaded_before, loaded_for, plan_loading
from mcp_rl.backends.initial import check_initial, find_initial, initial_hash
from mcp_rl.backends.plan.choices import resolve_alone
from mcp_rl.config.identity import RunIdentity
from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.evaluation.progress import Progress
from mcp_rl.inference.chat.chat_format import recorded_chat
from mcp_rl.learning.disk.checkpoint import newest_checkpoint
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, open_run
from mcp_rl.runs.identity import loading_identity
from mcp_rl.runs.live import Live
from mcp_rl.runs.sft.demonstrations import (
    Demonstration,
    DemonstrationFile,
    check_fit,
    content_hash,
    distinct,
    hold_out,
    read_episodes,
    read_source,
)
from mcp_rl.runs.sft.report import SftReport, best_of, counted
from mcp_rl.runs.sft.settings import DECISIVE, SftConfig
from mcp_rl.runs.trained_tools import TrainedTools
from mcp_rl.system.collector import collector_paused
from mcp_rl.system.processes.leftovers import end_leftovers
from mcp_rl.system.processes.memory import peak_rss_mb
from mcp_rl.system.threads import prepare_torch_threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from mcp_rl.config import TrainConfig
    from mcp_rl.learning.learner import Learner
    from mcp_rl.learning.samples import Sample

KIND = "sft"
"""Key of a fine-tuning's identity in model.json."""


def run_sft(config: SftConfig, *, fresh: bool = False, console: Console | None = None) -> SftReport:
    """Fine-tune, or continue where an earlier session stopped; return the report.

    `fresh` removes an earlier run of that name. Raises ConfigError for unreadable data or contradicting settings,
    RunDirectoryError if the run was made for something else, KeyboardInterrupt with the last step kept.
    """
    began = time.monotonic()
    sources = _sources(config)
    check_base_model(config.base_model)
    if config.unsloth.model_name is not None:
        check_base_model(config.unsloth.model_name)
    if config.init is not None:
        check_initial(config.init, config.train, config.base_model)
    with open_run(config.run_dir, fresh=fresh, needed=[config.init, config.from_run, *config.files]) as run:
        notes = run.take_up()
        if config.from_run is not None:
            notes += RunDirectory(config.from_run).check_whole()
        state = run.state()
        state.threads, state.update_threads = prepare_torch_threads(state.threads, state.update_threads)
        console = console or Console()
        for sentence in notes:
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        end_leftovers(functools.partial(console.print, highlight=False, markup=False))
        if config.unsloth.use:
            import_first(True)  # before transformers and PEFT
        tuning = _prepared(config, run, state, sources, console)
        with tuning.progress, Live(run.path, tuning.progress):
            tuning.take_steps(began)
        report = tuning.report()
        run.write_json(run.report.name, report.model_dump(mode="json"))
        return report


def _sources(config: SftConfig) -> list[DemonstrationFile]:
    if config.from_run is not None:
        return [*read_episodes(config.from_run), *map(read_source, config.files)]
    return [read_source(path) for path in config.files]


def _prepared(
    config: SftConfig, run: RunDirectory, state: RunState, sources: Sequence[DemonstrationFile], console: Console
) -> _Tuning:
    with collector_paused():
        from mcp_rl.backends.base.base_model import make_learner, open_base, with_chat
        from mcp_rl.learning.disk.state import other_versions, restore, tokenizer_files
        from mcp_rl.learning.sft import sample_of

    before = loaded_before(run.path)
    plan = _plan(config, before)
    opened = with_chat(open_base(plan, before or None), config.chat)
    base, tokenizer = opened.model, opened.tokenizer
    chat = recorded_chat(tokenizer, opened.loaded)
    every = [one for source in sources for one in source.demonstrations(chat, config.min_reward)]
    if not every:
        raise ConfigError(
            f"No episode in {config.from_run or config.files[0]} has a reward of {config.min_reward:g} or more; lower "
            "--min-reward."
        )
    found = distinct(every)
    text = base.config.get_text_config()
    check_fit(found, vocabulary=text.vocab_size, context=getattr(text, "max_position_embeddings", None) or sys.maxsize)
    learned, held = hold_out(found, config.held_out, config.seed)
    steps = config.epochs * math.ceil(len(learned) / config.batch_size)
    train = config.train
    if train.schedule in ("linear", "cosine") and train.decay_steps == 0:
        train = train.model_copy(update={"decay_steps": steps})
    _begin(config, run, train, found, opened.loaded)
    train, chosen = resolve_alone(config.base_model, train, unsloth=plan.options)
    checkpoint = newest_checkpoint(run.checkpoints)
    init = config.init if checkpoint is None else None
    notes = [*find_initial(init).skipped] if init is not None else []
    learner = make_learner(base, config.base_model, train, seed=config.seed, init=init, plan=plan, say=notes.append)
    if checkpoint is not None:
        state.progress = StepProgress.model_validate(restore(learner, checkpoint))
        notes += [*checkpoint.skipped, *filter(None, [other_versions(checkpoint)])]
    state.step = learner.step
    run.discard_after(learner.step)
    progress = Progress(steps=steps, done=learner.step, console=console)
    repeated = f", {len(every) - len(found)} repeated ones left out" if len(every) > len(found) else ""
    progress.say(f"{counted(len(learned), 'conversation')} to learn from, {len(held)} held out{repeated}.")
    where = f"Continuing from step {learner.step}" if learner.step else "The run is kept"
    for sentence in [*chosen, *notes, f"{where} in {run.path}."]:
        progress.say(sentence)
    return _Tuning(
        config,
        run,
        state,
        learner,
        [sample_of(one.tokens, one.learned, number) for number, one in enumerate(learned)],
        [sample_of(one.tokens, one.learned, number) for number, one in enumerate(held)],
        progress,
        steps,
        tokenizer_files(tokenizer),
        base_location(config.base_model),
    )


def _plan(config: SftConfig, before: Mapping[str, Any]) -> LoadPlan:
    """Plan the loading of the base: as before in a continued run, else as for the run to begin with or to learn from.
    Unsloth loads it only if the settings ask for it."""
    options = config.unsloth
    if not before:
        theirs = {**loaded_for(config.init or config.from_run), "loader": None}
        if config.train.method == "full":
            theirs["quantisation"] = None  # weights in 4 bits cannot all be trained
        options = begun_with(options, theirs, config.base_model, dtypes=())
    return plan_loading(
        config.base_model,
        options,
        config.train,
        seed=config.seed,
        before=before,
        unsloth_allowed=bool(options.use),
    )


def _begin(
    config: SftConfig,
    run: RunDirectory,
    train: TrainConfig,
    found: Sequence[Demonstration],
    loaded: Mapping[str, Any],
) -> None:
    """Write model.json for a new run, or check that an earlier one was made for the same."""
    values = train.model_dump(mode="json")
    settings: dict[str, Any] = {
        "data": content_hash(found),
        "held_out": config.held_out,
        "batch_size": config.batch_size,
        "epochs": config.epochs,
        "init": initial_hash(config.init) if config.init is not None else None,
        **{f"train.{name}": values[name] for name in DECISIVE},
        **loading_identity(config.unsloth),
        **{f"chat.{name}": value for name, value in config.chat.model_dump(mode="json", exclude_defaults=True).items()},
    }
    identity = RunIdentity(
        server="",
        base_model=config.base_model,
        base_revision=base_revision(config.base_model),
        seed=config.seed,
        schema_hash="",
        scenarios_hash="",
        settings=settings,
    )
    about = run.read_json("model.json")
    if about is None:
        named = {"name": config.name, "project": config.project, "base_model": config.base_model}
        revision = {"base_revision": identity.base_revision}
        about = {**named, **revision, "loaded": dict(loaded), KIND: identity.model_dump(mode="json")}
        run.write_json("model.json", about)
        if config.from_run is not None:
            TrainedTools.carry(config.from_run, run)
        return
    if KIND not in about:
        raise RunDirectoryError(
            f"The run in {run.path} was made by `mcp-rl train`: choose another name with --name, and add --init "
            f"{run.path} to begin with its weights."
        )
    if difference := RunIdentity.model_validate(about[KIND]).difference(identity):
        raise RunDirectoryError(f"The run in {run.path} cannot be continued, {difference}")
    run.check_checkpoints()


@dataclass
class _Tuning:
    """A session of fine-tuning, ready to take steps."""

    config: SftConfig
    run: RunDirectory
    state: RunState
    learner: Learner
    samples: Sequence[Sample]
    held: Sequence[Sample]
    progress: Progress
    steps: int
    tokenizer_files: dict[str, bytes]
    base_name: str
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def per_epoch(self) -> int:
        """Number of steps in a pass over the data."""
        return self.steps // self.config.epochs

    def take_steps(self, began: float) -> None:
        """Take all remaining steps. The last complete one is kept however this ends."""
        from mcp_rl.learning.sft import supervise

        began -= self.state.progress.seconds
        if not (self.run.checkpoints / "0000").exists() and self.learner.step == 0:
            self._measure()
            self._save(began)
        every = self.config.train.checkpoint_every
        with _interrupts_wait() as asked:
            while (step := self.learner.step) < self.steps and not asked:
                started = time.perf_counter()
                self.metrics = supervise(self.learner, [self.samples[i] for i in self._batch(step)])
                self.metrics["step_seconds"] = time.perf_counter() - started
                self.state.progress.trained_tokens += int(self.metrics["trained_tokens"])
                step = self.learner.step
                self.run.append_history({"step": step, "split": "train", **self.metrics})
                shown = {"loss": self.metrics["loss"], "gradient": self.metrics["grad_norm"]}
                self.progress.step_done(step, shown, seconds=self.metrics["step_seconds"])
                ends_epoch = step % self.per_epoch == 0
                if ends_epoch:
                    self._measure()
                if ends_epoch or asked or step % every == 0:
                    self._save(began)
        if asked and self.learner.step < self.steps:
            raise KeyboardInterrupt(
                f"Interrupted; step {self.learner.step} of {self.steps} is kept in {self.run.path}, and the same "
                "command continues from there."
            )

    def report(self) -> SftReport:
        """Return the report, read from disk so that it is the same after a resume."""
        losses = self._held_out_losses()
        best = best_of(losses)
        done = self.state.progress
        return SftReport(
            run_dir=str(self.run.path),
            base_model=self.config.base_model,
            step=self.learner.step,
            epochs=self.config.epochs,
            conversations=len(self.samples),
            held_out=len(self.held),
            trained_tokens=done.trained_tokens,
            held_out_loss_before=losses.get(0),
            held_out_loss_after=losses.get(self.learner.step),
            best_step=best,
            best_loss=None if best is None else losses[best],
            seconds=round(done.seconds, 1),
            peak_rss_mb=round(peak_rss_mb(), 1),
        )

    def _batch(self, step: int) -> Iterator[int]:
        """Return the indices of a step's samples: every epoch has its own order and each sample once."""
        import numpy as np

        epoch, index = divmod(step, self.per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.samples))
        size = self.config.batch_size
        return (int(i) for i in order[index * size : (index + 1) * size])

    def _measure(self) -> None:
        from mcp_rl.learning.sft import held_out_loss

        if self.held:
            step, loss = self.learner.step, held_out_loss(self.learner, self.held)
            self.run.append_history({"step": step, "split": "val", "loss": loss, "conversations": len(self.held)})
            self.progress.say(f"held out, step {step}: loss {loss:.4f}, perplexity {math.exp(min(loss, 50)):.3f}")

    def _held_out_losses(self) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.run.history() if line["split"] == "val"}

    def _save(self, began: float) -> None:
        """Complete the step: write its checkpoint, then the state."""
        from mcp_rl.learning.disk.state import ModelCard, save_learner

        best = best_of(self._held_out_losses())
        self.state.progress.seconds = time.monotonic() - began
        save_learner(
            self.run.checkpoints,
            self.learner,
            self.tokenizer_files,
            ModelCard(
                title=f"{self.config.project}/{self.config.name}",
                base_name=self.base_name,
                metrics={name: value for name, value in self.metrics.items() if not name.endswith("_seconds")},
                how="fine-tuned on conversations",
            ),
            frontier=self.state.progress.model_dump(mode="json"),
            keep=self.config.train.keep_checkpoints,
            protect=(best,) if best is not None and self.config.train.keep_best else (),
        )
        self.state.step = self.learner.step
        self.run.save_state(self.state, saved=True)


@contextmanager
def _interrupts_wait() -> Iterator[list[int]]:
    """Postpone Ctrl-C and SIGTERM to the end of a step in this block; the second one raises at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt("Interrupted at once; the step before is kept.")
        asked.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
