"""Resolve the settings that are left open ("auto") for this machine. Imports nothing heavy.

Without a GPU that torch can use, the settings stay as they are, unless a pass of their size cannot fit the machine's
memory; a pass of the built-in model always fits. With a GPU, `resolve` fills in what is not set from `plan`. A
continued run keeps the choices that would change its results.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.base.options import begun_with, computed_dtypes, loaded_before, loaded_for
from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.plan import placing
from mcp_rl.backends.plan.detect import cuda_build, detect
from mcp_rl.backends.plan.gpus import read_gpus
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.shape import model_shape
from mcp_rl.backends.plan.smaller import refusal
from mcp_rl.backends.plan.wanted import WantedSettings, wanted
from mcp_rl.backends.plan.workload import workload
from mcp_rl.backends.processes.environment import learner_environment
from mcp_rl.backends.processes.launched import launched
from mcp_rl.config import TINY, EngineConfig, PlacementConfig, TrainConfig, UnslothConfig
from mcp_rl.errors import ConfigError
from mcp_rl.system.processes.devices import device_environment

if TYPE_CHECKING:
    from mcp_rl.backends.plan.machine import Machine
    from mcp_rl.backends.plan.memory import Quantisation
    from mcp_rl.backends.plan.outcome import RunPlan
    from mcp_rl.config import RunConfig
    from mcp_rl.learning.forward.choice import Choice

INEXACT_CAP = 2.0
"""Upper bound of the weight that corrects a sampler whose log-probabilities round differently from the learner's
(truncated importance sampling: Yao et al., 2025)."""


def in_process(placement: PlacementConfig) -> bool:
    """Return whether the learner runs in the trainer's own process on this machine."""
    return placing.learns_in_process(placement, ranks(), _gpu_is_here)


def engine_kind(engine: EngineConfig) -> placing.Engine:
    """Return which engine samples on this machine. Looks at the machine only where the settings leave it open."""
    return placing.engine_of(engine, lambda: _gpu_is_here() and find_spec("vllm") is not None)


@functools.cache
def _gpu_is_here() -> bool:
    return cuda_build() is not None and bool(read_gpus())


def engine_for(base_model: str, engine: EngineConfig) -> EngineConfig:
    """Choose the in-process engine for the built-in model, which is too small for a server, unless vLLM is asked
    for."""
    asked = engine.kind != "auto" or engine.url or engine.python
    return engine if asked or base_model != TINY else engine.model_copy(update={"kind": "local"})


def ranks() -> int:
    """Return the number of learner processes that torchrun or accelerate started on this machine, this one included."""
    started = launched()
    return started.local_size if started is not None else 1


@dataclass(frozen=True)
class Choices:
    """Settings with nothing left open, and the sentences that report the choices."""

    settings: LocalSettings
    plan: RunPlan | None = None
    said: list[str] = field(default_factory=list)
    """Sentences to print at the start of a run; empty if nothing was chosen."""

    def train(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of a step, with the choices filled in where they were left open."""
        return _corrected(config, self.settings) if self.plan is None else _train_settings(config, self.plan)


def resolve(settings: LocalSettings, *, machine: Machine | None = None) -> Choices:
    """Fill in what the settings leave open, for this machine unless another is given."""
    machine, here = machine or detect(settings.run), machine is None
    settings = as_begun(settings, machine)
    on_gpu = bool(machine.usable_gpus)
    if on_gpu:
        settings = settings.model_copy(update={"engine": engine_for(settings.base_model, settings.engine)})
    elif settings.base_model == TINY:
        return Choices(_with_cap(settings))
    kept = kept_quantisation(settings.run)
    asked = wanted(settings, max_context=settings.max_context, kept=kept, ranks=ranks())
    try:
        shape = model_shape(settings.unsloth.model_name or settings.base_model)
    except ConfigError as error:
        if not on_gpu:
            return Choices(_with_cap(settings))
        return Choices(_without_size(settings, machine, asked), said=[f"Memory was not planned. {error}"])
    made = plan(machine, shape, asked)
    if (why := refusal(machine, shape, asked, made)) is not None and not loaded_before(settings.run):
        raise ConfigError(why)
    problems = [f"This may run out of memory: {problem}" for problem in made.problems]
    if not on_gpu:
        return _on_cpu(settings, made, asked, problems)
    timed = timed_loader(settings, machine, made, asked, measure=here)
    if timed is not None:
        asked = asked.model_copy(update={"unsloth": timed.name == "unsloth"})
        made = plan(machine, shape, asked)
        settings = settings.model_copy(
            update={"unsloth": settings.unsloth.model_copy(update={"use": timed.name == "unsloth"})}
        )
    resolved = _resolved(settings, made, asked)
    said = [made.line, *([f"Of the loaders, {timed.reason}"] if timed is not None else [])]
    if resolved.train.importance_cap != settings.train.importance_cap:
        said.append(
            f"Sampler and learner round differently in {made.dtype}, so each token's weight is corrected by at most "
            f"{INEXACT_CAP:g} (train.importance_cap)."
        )
    return Choices(resolved, made, said + problems)


def timed_loader(
    settings: LocalSettings | RunConfig, machine: Machine, made: RunPlan, asked: WantedSettings, *, measure: bool = True
) -> Choice | None:
    """Return which library loads the base, as measured for its shape and the run's lengths; None where the settings or
    the machine leave no choice, or nothing could be measured. Without `measure`, only what an earlier run measured."""
    open_choice = asked.unsloth is None and settings.train.forward != "tree" and asked.method == "lora"
    there = machine.usable_gpus and machine.has("unsloth") and made.engine == "vllm" and made.fits
    if not (open_choice and there) or settings.base_model == TINY or os.environ.get("IMPORT_UNSLOTH"):
        return None
    from mcp_rl.backends.plan.fastest_loader import fastest_loader, measured_loader

    rollout, unsloth = settings.rollout, settings.unsloth
    work = workload(settings.base_model, made, asked, sampled=rollout.max_tokens, rows=rollout.group_size)
    given = {"revision": unsloth.revision, "trust_remote_code": unsloth.trust_remote_code}
    work = work.model_copy(update=given)
    if not measure:
        return measured_loader(work, machine)
    environment = learner_environment(unsloth, sampling=False)
    if gpus := settings.placement.learner_gpus:
        environment |= device_environment(gpus[:1])
    return fastest_loader(work, machine, environment=environment)


def as_begun(settings: LocalSettings, machine: Machine) -> LocalSettings:
    """Return the settings with the base's options completed as the run loaded it.

    For a new run they are completed as the initial weights were loaded. Everything that loads the base or plans for it
    uses the result.
    """
    gpus = machine.usable_gpus
    if loaded := loaded_before(settings.run):
        dtypes = computed_dtypes(gpu=bool(gpus), bfloat16=all(gpu.bfloat16 for gpu in gpus))
        unsloth = begun_with(settings.unsloth, loaded, settings.base_model, dtypes=dtypes)
    else:  # a new run continues from the weights, perhaps on another machine
        unsloth = begun_with(
            settings.unsloth, {**loaded_for(settings.init), "loader": None}, settings.base_model, dtypes=()
        )
    return settings.model_copy(update={"unsloth": unsloth})


def resolve_alone(
    base_model: str,
    config: TrainConfig,
    *,
    unsloth: UnslothConfig | None = None,
    machine: Machine | None = None,
) -> tuple[TrainConfig, list[str]]:
    """Return the settings of a learner without a sampler, and the sentences that report them.

    Only the size of a pass is chosen. The base is taken in the precision in which its weights are stored, unless
    `unsloth` says otherwise.
    """
    unsloth = unsloth or UnslothConfig()
    machine = machine or detect()
    if base_model == TINY:
        return config, []
    try:
        shape = model_shape(unsloth.model_name or base_model)
    except ConfigError:
        return config, []
    if unsloth.load_in_4bit is None:
        unsloth = unsloth.model_copy(update={"load_in_4bit": False})
    parts = LocalSettings(base_model=base_model, run=Path(), title="", train=config, unsloth=unsloth)
    made = plan(machine, shape, wanted(parts).model_copy(update={"sampled": False}))
    chosen = _train_settings(config, made).model_copy(update={"importance_cap": config.importance_cap})
    said = [f"This may run out of memory: {problem}" for problem in made.problems]
    if chosen != config:
        kept = "recomputed" if chosen.activation_checkpointing else "kept"
        tokens = chosen.microbatch_tokens
        said.insert(0, f"{made.where}: {tokens:,} tokens of {base_model} in a pass, activations {kept}.")
    return chosen, said


def _on_cpu(settings: LocalSettings, made: RunPlan, asked: WantedSettings, problems: list[str]) -> Choices:
    as_they_are, train = _with_cap(settings), _train_settings(settings.train, made)
    if made.rows == asked.rows and train == as_they_are.train:
        return Choices(as_they_are, said=problems)
    engine = settings.engine.model_copy(update={"max_rows": made.rows})
    return Choices(settings.model_copy(update={"train": train, "engine": engine}), made, [made.line, *problems])


def _resolved(settings: LocalSettings, made: RunPlan, asked: WantedSettings) -> LocalSettings:
    """Return the settings with every choice of the plan that was left open."""
    engine: dict[str, Any] = {"kind": made.engine, "memory_share": made.memory_share}
    if made.sharing in ("sleep", "split"):
        engine["sharing"] = made.sharing
    if made.split > 1:
        engine["args"] = {"tensor-parallel-size": made.split, **settings.engine.args}
    if asked.context is None and made.fits:
        engine["max_context"] = made.context
    if "max_rows" not in settings.engine.model_fields_set:
        engine["max_rows"] = asked.rows if made.engine == "vllm" else made.rows
    unsloth: dict[str, Any] = {"dtype": made.dtype}
    if settings.unsloth.use is None and made.loader == "transformers":
        unsloth["use"] = False  # so that Unsloth, which changes transformers, is not even imported
    if settings.unsloth.load_in_4bit is None and not made.stored:
        unsloth["load_in_4bit"] = made.quantisation == "4-bit"
    resolved = settings.model_copy(
        update={
            "engine": settings.engine.model_copy(update=engine),
            "placement": settings.placement.model_copy(update={"in_process": made.in_process}),
            "unsloth": settings.unsloth.model_copy(update=unsloth),
        }
    )
    return resolved.model_copy(update={"train": _train_settings(settings.train, made)})


def _without_size(settings: LocalSettings, machine: Machine, asked: WantedSettings) -> LocalSettings:
    """Resolve only what follows from the machine alone."""
    kind, inside = placing.engine_kind(machine, asked), placing.in_process(machine, asked)
    return settings.model_copy(
        update={
            "engine": settings.engine.model_copy(update={"kind": kind}),
            "placement": settings.placement.model_copy(update={"in_process": inside}),
        }
    )


def _train_settings(config: TrainConfig, made: RunPlan) -> TrainConfig:
    chosen: dict[str, Any] = {}
    if "microbatch_tokens" not in config.model_fields_set and made.microbatch_tokens >= 256:
        chosen["microbatch_tokens"] = made.microbatch_tokens
    if "activation_checkpointing" not in config.model_fields_set:
        chosen["activation_checkpointing"] = made.activation_checkpointing
    if config.importance_cap is None and inexact(made.engine, made.dtype):
        chosen["importance_cap"] = INEXACT_CAP
    if made.device == "gpu" and made.sharing == "sleep":
        chosen["offload_while_sampling"] = "host" if made.offload else "keep"
    return config.model_copy(update=chosen)


def _with_cap(settings: LocalSettings) -> LocalSettings:
    """Add the importance cap; on a CPU only a vLLM that was set to compute in 16 bits needs it."""
    return settings.model_copy(update={"train": _corrected(settings.train, settings)})


def _corrected(config: TrainConfig, settings: LocalSettings) -> TrainConfig:
    if config.importance_cap is None and inexact(engine_kind(settings.engine), settings.unsloth.dtype):
        return config.model_copy(update={"importance_cap": INEXACT_CAP})
    return config


def inexact(engine: str, dtype: str) -> bool:
    """Return whether the sampler's log-probabilities differ from the learner's: another engine's kernels in 16 bits."""
    return engine == "vllm" and dtype in ("bfloat16", "float16")


def kept_quantisation(run: Path) -> Quantisation | None:
    """Return the precision in which the base was loaded when the run began; None for a new run."""
    found = loaded_before(run).get("quantisation")
    return found if found in ("none", "8-bit", "4-bit") else None
