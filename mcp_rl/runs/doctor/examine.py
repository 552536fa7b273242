"""Examine this machine for a run. Leaves nothing running and writes nothing.

A problem would keep a run with these settings from working; a note is only worth knowing.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.backends.base.base_name import check_base_model, in_cache
from mcp_rl.backends.plan import memory
from mcp_rl.backends.plan.choices import INEXACT_CAP, inexact, kept_quantisation, ranks, timed_loader
from mcp_rl.backends.plan.detect import detect, torch_gpus
from mcp_rl.backends.plan.machine import GIB, Disk, FrozenData, Machine
from mcp_rl.backends.plan.outcome import RunPlan, gib
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.shape import ModelShape, model_shape
from mcp_rl.backends.plan.smaller import smaller
from mcp_rl.backends.plan.wanted import WantedSettings, wanted
from mcp_rl.backends.plan.wishes import check_wishes
from mcp_rl.config import TINY, RunConfig, chosen_settings
from mcp_rl.errors import ConfigError, McpRlError
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.runs.doctor import surroundings
from mcp_rl.runs.doctor.forecast import Forecast, forecast
from mcp_rl.runs.doctor.versions import disagreements
from mcp_rl.system.processes.leftovers import leftovers
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.version import own_version

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED = ("torch", "transformers", "peft")


class DoctorReport(FrozenData):
    """The machine, the plan of a run on it, and the problems found."""

    version: str
    python: str
    machine: Machine
    torch_gpus: int | None
    """Number of GPUs that torch really uses; None where it was not asked or did not answer."""
    vllm: str | None
    """The vLLM of `engine.python`, which has an environment of its own; None where none is named."""
    programs: dict[str, str | None]
    keys: dict[str, bool]
    """Variables of keys, True for each that is set; their values are not kept."""
    hub: str | None
    """Reason why the model hub cannot be reached; None where it answers."""
    leftovers: tuple[str, ...]
    shape: ModelShape | None
    plan: RunPlan | None
    forecast: Forecast | None
    """Expected pace and cost of the run; None without a feasible plan."""
    chosen: dict[str, str]
    """The settings that differ from the built-in model's defaults, given or for this model, with their values."""
    importance_cap: float
    """Upper bound of the weight that corrects the sampler; 0 for no correction."""
    smaller: tuple[str, ...]
    """Changes with which the plan would fit, where it does not."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def works(self) -> bool:
        return not self.problems


def examine(config: RunConfig, *, server_given: bool = True) -> DoctorReport:
    """Examine this machine for a run. `server_given` is False where `config.server` is only a stand-in."""
    with ThreadPoolExecutor() as pool:
        asked_hub = pool.submit(surroundings.hub)
        asked_programs = pool.submit(surroundings.programs)
        machine = detect(config.output_dir, sample_seconds=0.15)
        asked_torch = pool.submit(torch_gpus) if machine.gpus and machine.cuda_build else None
        left = tuple(map(str, leftovers()))
        programs, hub = asked_programs.result(), asked_hub.result()
        seen, torch_problem = asked_torch.result() if asked_torch else (None, "")
    kept = kept_quantisation(config.run_dir)
    asked = wanted(config, kept=kept, ranks=ranks())
    problems = [*_machine_problems(machine, config, seen, torch_problem)]
    shape, model_problems = _shape(config, online=hub is None)
    problems += model_problems
    made = plan(machine, shape, asked) if shape else None
    if made and shape and (timed := timed_loader(config, machine, made, asked, measure=False)):
        made = plan(machine, shape, asked.model_copy(update={"unsloth": timed.name == "unsloth"}))
    if config.backend == "local":
        problems += made.problems if made else ()
    if made and shape:
        problems += _disk_problems(machine, config, asked, made, shape)
    problems += _settings_problems(config) if server_given else _wish_problems(config)
    return DoctorReport(
        version=own_version() or "a checkout that is not installed",
        python=sys.version.split()[0],
        machine=machine,
        torch_gpus=seen,
        vllm=_named_vllm(config),
        programs=programs,
        keys=surroundings.keys(),
        hub=hub,
        leftovers=left,
        shape=shape,
        plan=made,
        forecast=forecast(config, made, shape, machine) if made and shape and made.fits else None,
        chosen=_chosen(config),
        importance_cap=_cap(config, made),
        smaller=tuple(smaller(machine, shape, asked)) if made and shape and not made.fits else (),
        problems=tuple(dict.fromkeys(map(without_secrets, problems))),
        notes=tuple(map(without_secrets, (*_notes(machine, left), *disagreements()))),
    )


def _machine_problems(machine: Machine, config: RunConfig, seen: int | None, torch_problem: str) -> Iterator[str]:
    for package in NEEDED:
        if package not in machine.packages:
            yield f"{package} is not installed: install mcp-rl again with `pip install --force-reinstall mcp-rl`."
    if torch_problem:
        yield f"{torch_problem[0].upper()}{torch_problem[1:]}."
    elif seen is not None and seen < len(machine.gpus):
        yield (
            f"The driver ({machine.gpus[0].driver}) shows {len(machine.gpus)} GPUs, and torch, built for CUDA "
            f"{machine.cuda_build}, can use {seen}: update the driver, or install a torch for an older CUDA."
        )
    if (reason := surroundings.loopback_port()) is not None:
        yield f"No port can be opened on 127.0.0.1 ({reason}), which tool servers and vLLM need."
    for disk in machine.disks[:1]:
        if not disk.writable:
            yield f"Runs cannot be written to {disk.path}: choose another folder with --output-dir."


def _shape(config: RunConfig, *, online: bool) -> tuple[ModelShape | None, list[str]]:
    """Return the model's shape, and the problems with the model."""
    name, problems = config.unsloth.model_name or config.base_model, []
    local = name == TINY or Path(name).expanduser().exists()
    if local or online:
        try:
            check_base_model(name)
        except ConfigError as error:
            return None, [str(error)]
    elif not _is_cached(name):
        problems.append(f"{name} is not on this machine, and the model hub cannot be reached to download it.")
    try:
        return model_shape(name, online=online), problems
    except ConfigError as error:
        return None, problems or [str(error)]


def _is_cached(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError

    try:
        return in_cache(name)
    except HFValidationError:
        return False


def _disk_problems(
    machine: Machine, config: RunConfig, asked: WantedSettings, made: RunPlan, shape: ModelShape
) -> Iterator[str]:
    """Check the room for checkpoints (float32 weights and the optimiser's state), and for a model to download."""
    runs, cache = machine.disks
    trained = shape.parameters if asked.method == "full" else memory.adapter_parameters(shape, asked.lora)
    each = 4 * trained + memory.optimizer_bytes(trained, asked.optimizer)
    needed = each * (config.train.keep_checkpoints + 1 + config.train.keep_best) + GIB // 8
    yield from _shortage(runs, needed, "the checkpoints of a run", "--output-dir")
    name = config.unsloth.model_name or config.base_model
    if name != TINY and not Path(name).expanduser().exists() and not _is_cached(name):
        yield from _shortage(cache, 2 * shape.parameters, f"the weights of {name}", "HF_HOME")


def _shortage(disk: Disk, needed: int, what: str, where: str) -> Iterator[str]:
    if disk.free < needed:
        yield f"{disk.path} has {gib(disk.free)} free, but {what} take {gib(needed)}: choose another disk with {where}."


def _wish_problems(config: RunConfig) -> Iterator[str]:
    try:
        check_wishes(config)
    except McpRlError as error:
        yield str(error)


def _settings_problems(config: RunConfig) -> Iterator[str]:
    """Yield what `mcp-rl train` would refuse before it starts. The imports take a second."""
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers
    from mcp_rl.runs.identity import check_settings

    try:
        plugins = load_plugins(config.plugins)
        server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
        check_settings(config, server, plugins)
    except McpRlError as error:
        yield str(error)


def _named_vllm(config: RunConfig) -> str | None:
    if config.engine.python is None:
        return None
    try:
        found = find_vllm(config.engine.python)
    except ConfigError:
        return None  # reported among the problems
    return f"{found.version}{', built for CPUs' if found.cpu else ''}, in {found.python}"


def _chosen(config: RunConfig) -> dict[str, str]:
    given, preset = chosen_settings(config)
    return {**preset, **given}


def _cap(config: RunConfig, made: RunPlan | None) -> float:
    train = config.train
    if train.importance_cap is None and made is not None and inexact(made.engine, made.dtype):
        return INEXACT_CAP
    return train.cap


def _notes(machine: Machine, left: tuple[str, ...]) -> Iterator[str]:
    if machine.gpus and machine.cuda_build is None:
        yield (
            f"There is a GPU ({machine.gpus[0].name}), but the installed torch was built without CUDA, so "
            "everything runs on the CPU: install a torch for CUDA."
        )
    if machine.usable_gpus and not machine.has("vllm"):
        yield (
            "vLLM is not installed, so the in-process engine samples: `pip install 'mcp-rl[gpu]'` installs it and "
            "Unsloth."
        )
    if machine.usable_gpus and not machine.has("bitsandbytes"):
        yield "bitsandbytes is not installed, so no base can be loaded in 4 or 8 bits: `pip install bitsandbytes`."
    elif machine.usable_gpus and machine.has("vllm") and not machine.has("vllm-bnb-plugin"):
        yield (
            "vllm-bnb-plugin is not installed, so vLLM cannot sample a base in 4 bits: `pip install vllm-bnb-plugin`."
        )
    if machine.free_cpus < machine.cpus:
        yield f"{machine.cpus - machine.free_cpus} of {machine.cpus} CPUs are busy with other work."
    for process in left:
        yield f"An earlier run left {process} behind; the next run ends it."
