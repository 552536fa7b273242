"""What "auto" comes to on this machine. Nothing heavy is imported here.

On a machine without a GPU that torch can use, the settings are taken as they are, unless a pass of their size cannot
fit its memory; of the built-in model it always does. On one with a GPU, `resolve` fills in what nobody set, out of
`hardware.plan`; what a run was begun with, and what changes its results, it goes on with. `check_wishes` refuses what
was asked for and cannot be.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.launched import launched
from mcp_rl.backends.loading.options import (
    INSTALL,
    base_location,
    begun_with,
    computed_dtypes,
    follow,
    loaded_before,
    loaded_for,
    plan_loading,
)
from mcp_rl.config import TINY, EngineConfig, PlacementConfig, RolloutConfig, RunConfig, TrainConfig, UnslothConfig
from mcp_rl.config.engine_arguments import argument_name
from mcp_rl.errors import ConfigError
from mcp_rl.hardware.detect import cuda_build, detect
from mcp_rl.hardware.gpus import read_gpus
from mcp_rl.hardware.machine import Machine
from mcp_rl.hardware.memory import Quantisation
from mcp_rl.hardware.plan import Plan, plan
from mcp_rl.hardware.shape import model_shape
from mcp_rl.hardware.wanted import Wanted, wanted

INEXACT_CAP = 2.0
"""Of the weight that corrects a sampler whose log-probabilities round otherwise than the learner's (truncated
importance sampling: Yao et al., 2025)."""
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
_DEVICE = re.compile(r"(?P<kind>cpu|cuda|mps|xpu|npu|hpu)(?::(?P<number>\d{1,3}))?")


def in_process(placement: PlacementConfig) -> bool:
    """Whether the learner is in the trainer's own process; of ranks that torchrun started, each is in its own."""
    if ranks() > 1:
        return True
    if len(placement.learner_gpus) > 1:
        return False
    return not _gpu_is_here() if placement.in_process is None else placement.in_process


@functools.cache
def _gpu_is_here() -> bool:
    return cuda_build() is not None and bool(read_gpus())


def engine_kind(engine: EngineConfig) -> Literal["local", "vllm"]:
    """What samples."""
    if engine.kind != "auto":
        return engine.kind
    if engine.url or engine.python:
        return "vllm"
    return "vllm" if _gpu_is_here() and find_spec("vllm") is not None else "local"


def engine_for(base_model: str, engine: EngineConfig) -> EngineConfig:
    """The built-in model is sampled by our own engine unless vLLM is asked for: it is too small for a server."""
    asked = engine.kind != "auto" or engine.url or engine.python
    return engine if asked or base_model != TINY else engine.model_copy(update={"kind": "local"})


def ranks() -> int:
    """Processes of the learner that torchrun or accelerate started on this machine, this one among them."""
    started = launched()
    return started.local_size if started is not None else 1


@dataclass(frozen=True)
class Choices:
    """Settings with nothing left open, and what to say of them."""

    settings: LocalSettings
    plan: Plan | None = None
    said: list[str] = field(default_factory=list)
    """Sentences for the start of a run; none where nothing was chosen."""

    def train(self, config: TrainConfig) -> TrainConfig:
        """The settings of a step, with what was chosen where they leave it open."""
        return _corrected(config, self.settings) if self.plan is None else _train_settings(config, self.plan)


def resolve(
    settings: LocalSettings, rollout: RolloutConfig | None = None, *, machine: Machine | None = None
) -> Choices:
    """Fill in what the settings leave open. `machine`: another than this one."""
    machine = machine or detect(settings.run)
    settings = as_begun(settings, machine)
    if not machine.usable_gpus:
        return _on_cpu(settings, rollout or RolloutConfig(), machine)
    settings = settings.model_copy(update={"engine": engine_for(settings.base_model, settings.engine)})
    kept = kept_quantisation(settings.run)
    asked = wanted(
        settings.train,
        settings.engine,
        settings.placement,
        settings.unsloth,
        rollout or RolloutConfig(),
        max_context=settings.max_context,
        kept=kept,
        ranks=ranks(),
    )
    try:
        shape = model_shape(settings.unsloth.model_name or settings.base_model)
    except ConfigError as error:
        return Choices(_without_size(settings, machine, asked), said=[f"Memory is not planned for. {error}"])
    made = plan(machine, shape, asked)
    resolved = _resolved(settings, made, asked)
    said = [made.line]
    if resolved.train.importance_cap != settings.train.importance_cap:
        said.append(
            f"Sampler and learner round differently in {made.dtype}, so each token's weight is corrected, by at most "
            f"{INEXACT_CAP:g} (train.importance_cap)."
        )
    return Choices(resolved, made, [*said, *(f"This may run out of memory: {problem}" for problem in made.problems)])


def as_begun(settings: LocalSettings, machine: Machine) -> LocalSettings:
    """What the settings leave open of the base, as the run loaded it; of a new one, as it was loaded for what the run
    begins with. Everything that loads it or plans for it goes by the result."""
    gpus = machine.usable_gpus
    if loaded := loaded_before(settings.run):
        dtypes = computed_dtypes(gpu=bool(gpus), bfloat16=all(gpu.bfloat16 for gpu in gpus))
        unsloth = begun_with(settings.unsloth, loaded, settings.base_model, dtypes=dtypes)
    else:  # its weights go on, and its machine does not
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
    """The settings of a learner that nothing samples, and what to say of them: how much it takes in a pass. Its base is
    as the weights are stored, where `unsloth` says nothing else."""
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
    asked = wanted(config, EngineConfig(), PlacementConfig(), unsloth, RolloutConfig())
    made = plan(machine, shape, asked.model_copy(update={"sampled": False}))
    chosen = _train_settings(config, made).model_copy(update={"importance_cap": config.importance_cap})
    said = [f"This may run out of memory: {problem}" for problem in made.problems]
    if chosen != config:
        kept = "computed again" if chosen.activation_checkpointing else "kept"
        tokens = chosen.microbatch_tokens
        said.insert(0, f"{made.where}: {tokens:,} tokens of {base_model} in a pass, activations {kept}.")
    return chosen, said


def _on_cpu(settings: LocalSettings, rollout: RolloutConfig, machine: Machine) -> Choices:
    as_they_are = Choices(settings.model_copy(update={"train": _corrected(settings.train, settings)}))
    if settings.base_model == TINY:
        return as_they_are
    try:
        shape = model_shape(settings.unsloth.model_name or settings.base_model)
    except ConfigError:
        return as_they_are
    parts = settings.train, settings.engine, settings.placement, settings.unsloth, rollout
    asked = wanted(*parts, max_context=settings.max_context, kept=kept_quantisation(settings.run), ranks=ranks())
    made = plan(machine, shape, asked)
    said = [f"This may run out of memory: {problem}" for problem in made.problems]
    train = _train_settings(settings.train, made)
    if made.rows == asked.rows and train == as_they_are.settings.train:
        return Choices(as_they_are.settings, said=said)
    engine = settings.engine.model_copy(update={"max_rows": made.rows})
    return Choices(settings.model_copy(update={"train": train, "engine": engine}), made, [made.line, *said])


def _resolved(settings: LocalSettings, made: Plan, asked: Wanted) -> LocalSettings:
    """Every choice of the plan where nobody made another."""
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


def _without_size(settings: LocalSettings, machine: Machine, asked: Wanted) -> LocalSettings:
    """What follows from the machine alone."""
    from mcp_rl.hardware import placing

    kind, inside = placing.engine_kind(machine, asked), placing.in_process(machine, asked)
    return settings.model_copy(
        update={
            "engine": settings.engine.model_copy(update={"kind": kind}),
            "placement": settings.placement.model_copy(update={"in_process": inside}),
        }
    )


def _train_settings(config: TrainConfig, made: Plan) -> TrainConfig:
    chosen: dict[str, Any] = {}
    if "microbatch_tokens" not in config.model_fields_set and made.microbatch_tokens >= 256:
        chosen["microbatch_tokens"] = made.microbatch_tokens
    if "activation_checkpointing" not in config.model_fields_set:
        chosen["activation_checkpointing"] = made.activation_checkpointing
    if config.importance_cap is None and inexact(made.engine, made.dtype):
        chosen["importance_cap"] = INEXACT_CAP
    return config.model_copy(update=chosen)


def _corrected(config: TrainConfig, settings: LocalSettings) -> TrainConfig:
    """On a CPU only a sampler that was asked to compute in 16 bits is inexact."""
    if config.importance_cap is None and inexact(engine_kind(settings.engine), settings.unsloth.dtype):
        return config.model_copy(update={"importance_cap": INEXACT_CAP})
    return config


def inexact(engine: str, dtype: str) -> bool:
    """Whether the sampler's log-probabilities are not the learner's: another engine's kernels, in 16 bits."""
    return engine == "vllm" and dtype in ("bfloat16", "float16")


def kept_quantisation(run: Path) -> Quantisation | None:
    """The precision in which the base was loaded when the run began; None for a new run."""
    found = loaded_before(run).get("quantisation")
    return found if found in ("none", "8-bit", "4-bit") else None


def check_wishes(config: RunConfig, machine: Machine | None = None, *, fresh: bool = False) -> None:
    """Raises ConfigError, one sentence, for what the settings ask for explicitly and this machine cannot do. `fresh`:
    an earlier run of that name is to be removed."""
    if config.backend != "local":
        return
    here = functools.cache(lambda: machine or detect())
    _check_gpus(config.placement, here)
    engine, unsloth = config.engine, config.unsloth
    if engine.url is None and (engine.kind == "vllm" or engine.python is not None):
        from mcp_rl.inference.vllm.installed import find_vllm

        find_vllm(engine.python)
    if unsloth.use and not here().usable_gpus:
        raise ConfigError(f"unsloth.use = true needs a GPU, but {_gpus_there(here())}: leave it out.")
    if unsloth.dtype == "float16" and not here().usable_gpus:
        raise ConfigError(f"unsloth.dtype = float16 needs a GPU, but {_gpus_there(here())}: leave it out.")
    if unsloth.dtype == "bfloat16" and (old := next((g for g in here().usable_gpus if not g.bfloat16), None)):
        raise ConfigError(f"unsloth.dtype = bfloat16: {old.name} does not compute with it; take float16.")
    if unsloth.device_map is not None:
        _check_device_map(unsloth.device_map, config.placement, here)
    asked = unsloth if unsloth.use else unsloth.model_copy(update={"use": False})
    sampled_by_vllm = engine_kind(engine_for(config.base_model, engine)) == "vllm"
    plan_loading(config.base_model, asked, config.train, unsloth_allowed=sampled_by_vllm)
    before = {} if fresh else loaded_before(config.run_dir)
    loaded = follow(unsloth, before or loaded_for(config.init), config.base_model)
    if sampled_by_vllm and (how := unlike_vllm(loaded, engine)) is not None:
        raise ConfigError(
            f"The base is to be loaded {how}, and vLLM would load it otherwise, so it would sample another model than "
            "the one that learns: leave that out, or add --engine local."
        )
    if engine.url is not None and engine.kind != "local":
        _check_remote(config, loaded)


def _check_gpus(placement: PlacementConfig, here: Callable[[], Machine]) -> None:
    asked = {"learner_gpus": placement.learner_gpus, "engine_gpus": placement.engine_gpus}
    for name, numbers in asked.items():
        if numbers and (missing := [number for number in numbers if number >= len(here().usable_gpus)]):
            raise ConfigError(f"placement.{name} names GPU {missing[0]}, but {_gpus_there(here())}.")


def _check_device_map(asked: str, placement: PlacementConfig, here: Callable[[], Machine]) -> None:
    """A way to spread the model, as transformers and accelerate know them, or a device."""
    whose = f"unsloth.device_map = {asked!r}"
    device = _DEVICE.fullmatch(asked)
    if asked not in _SPREAD and device is None:
        raise ConfigError(f"{whose} is neither of {', '.join(_SPREAD)} nor a device, such as cpu or cuda:0.")
    if device is not None and device["kind"] == "cuda":
        seen = len(here().usable_gpus)
        if placement.learner_gpus and not placement.in_process:
            seen = min(seen, len(placement.learner_gpus))
        if int(device["number"] or 0) >= seen:
            there = f"the learner sees {seen}, counted from 0" if seen else _gpus_there(here())
            raise ConfigError(f"{whose} is not there: {there}.")
    if find_spec("accelerate") is None:
        raise ConfigError(f"{whose} needs accelerate, which is not installed: {INSTALL['accelerate']}")


def unlike_vllm(unsloth: UnslothConfig, engine: EngineConfig) -> str | None:
    """How a base is loaded that a vLLM which we start would load otherwise; None where there is nothing of the kind, or
    vLLM is told so by `engine.args`."""
    told = {argument_name(name) for name in engine.args}
    if engine.url is not None:
        return None
    if unsloth.load_in_8bit and "quantization" not in told:
        return "in 8 bits"
    if unsloth.rope_scaling is not None and "hf-overrides" not in told:
        return "with scaled positions (unsloth.rope_scaling)"
    return None if unsloth.resize_model_vocab is None else "with another vocabulary (unsloth.resize_model_vocab)"


def _check_remote(config: RunConfig, loaded: UnslothConfig) -> None:
    """Whether the server that runs already is one that the run can use."""
    from mcp_rl.inference.vllm.remote import RemoteServer, check_remote

    rank = config.train.lora.rank if config.train.method == "lora" else None
    model = base_location(loaded.model_name or config.base_model)
    check_remote(
        RemoteServer(str(config.engine.url), model=model, lora_rank=rank, max_context=config.engine.max_context)
    )


def _gpus_there(machine: Machine) -> str:
    if machine.gpus and machine.cuda_build is None:
        return "the installed torch was built without CUDA"
    match len(machine.gpus):
        case 0:
            return "this machine has no GPU that CUDA programs see"
        case 1:
            return "this machine has 1 GPU, numbered 0"
        case several:
            return f"this machine has {several} GPUs, numbered 0 to {several - 1}"
