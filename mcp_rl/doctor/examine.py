"""The examination: everything is looked at, nothing is started that stays, and nothing is written.

What would keep a run with these settings from working is a problem; what is only worth knowing is a note.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mcp_rl.backends.base_name import check_base_model, in_cache
from mcp_rl.backends.choices import INEXACT_CAP, check_wishes, inexact, kept_quantisation, ranks
from mcp_rl.boundary import without_secrets
from mcp_rl.config import TINY, RunConfig
from mcp_rl.doctor import surroundings
from mcp_rl.doctor.versions import disagreements
from mcp_rl.errors import ConfigError, McpRlError
from mcp_rl.hardware import memory
from mcp_rl.hardware.detect import detect, torch_gpus
from mcp_rl.hardware.machine import GIB, Disk, Found, Machine
from mcp_rl.hardware.plan import Plan, gib, plan
from mcp_rl.hardware.shape import ModelShape, model_shape
from mcp_rl.hardware.smaller import smaller
from mcp_rl.hardware.wanted import Wanted, wanted_by
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.processes.leftovers import leftovers

NEEDED = ("torch", "transformers", "peft")


class Report(Found):
    """What was found."""

    version: str
    python: str
    machine: Machine
    torch_gpus: int | None
    """GPUs that torch really uses; None where it was not asked, or did not answer."""
    vllm: str | None
    """The vLLM of `engine.python`, which has an environment of its own; None where none is named."""
    programs: dict[str, str | None]
    keys: dict[str, bool]
    """Whether each is set, and nothing else of it."""
    hub: str | None
    """None: the model hub answers; else why it cannot be asked."""
    leftovers: tuple[str, ...]
    shape: ModelShape | None
    plan: Plan | None
    importance_cap: float
    """Of the weight that corrects the sampler; 0: no correction."""
    smaller: tuple[str, ...]
    """What would fit where the plan does not."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def works(self) -> bool:
        return not self.problems


def examine(config: RunConfig, *, server_given: bool = True) -> Report:
    """Look at this machine with the eyes of a run. `server_given`: whether `config.server` is anyone's wish."""
    with ThreadPoolExecutor() as pool:
        asked_hub = pool.submit(surroundings.hub)
        asked_programs = pool.submit(surroundings.programs)
        machine = detect(config.output_dir, sample_seconds=0.15)
        asked_torch = pool.submit(torch_gpus) if machine.gpus and machine.cuda_build else None
        left = tuple(map(str, leftovers()))
        programs, hub = asked_programs.result(), asked_hub.result()
        seen, torch_problem = asked_torch.result() if asked_torch else (None, "")
    kept = kept_quantisation(config.run_dir)
    asked = wanted_by(config, kept=kept, ranks=ranks())
    problems = [*_of_machine(machine, config, seen, torch_problem)]
    shape, of_model = _shape(config, online=hub is None)
    problems += of_model
    made = plan(machine, shape, asked) if shape else None
    if config.backend == "local":
        problems += made.problems if made else ()
    if made and shape:
        problems += _of_disks(machine, config, asked, made, shape)
    problems += _of_settings(config) if server_given else _of_wishes(config)
    return Report(
        version=_version(),
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
        importance_cap=_cap(config, made),
        smaller=tuple(smaller(machine, shape, asked)) if made and shape and not made.fits else (),
        problems=tuple(dict.fromkeys(map(without_secrets, problems))),
        notes=tuple(map(without_secrets, (*_notes(machine, left), *disagreements()))),
    )


def _of_machine(machine: Machine, config: RunConfig, seen: int | None, torch_problem: str) -> Iterator[str]:
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
    """The model's shape, and what is wrong with the model."""
    name, problems = config.unsloth.model_name or config.base_model, []
    local = name == TINY or Path(name).expanduser().exists()
    if local or online:
        try:
            check_base_model(name)
        except ConfigError as error:
            return None, [str(error)]
    elif not _is_cached(name):
        problems.append(f"{name} is not on this machine, and the model hub cannot be reached to load it.")
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


def _of_disks(machine: Machine, config: RunConfig, asked: Wanted, made: Plan, shape: ModelShape) -> Iterator[str]:
    """Room for checkpoints (float32 weights and the optimiser's state), and for a model that is to be loaded."""
    runs, cache = machine.disks
    trained = shape.parameters if asked.method == "full" else memory.adapter_parameters(shape, asked.lora)
    each = 4 * trained + memory.optimizer_bytes(trained, asked.optimizer)
    needed = each * (config.train.keep_checkpoints + 1 + config.train.keep_best) + GIB // 8
    yield from _short(runs, needed, "the checkpoints of a run", "--output-dir")
    name = config.unsloth.model_name or config.base_model
    if name != TINY and not Path(name).expanduser().exists() and not _is_cached(name):
        yield from _short(cache, 2 * shape.parameters, f"the weights of {name}", "HF_HOME")


def _short(disk: Disk, needed: int, what: str, where: str) -> Iterator[str]:
    if disk.free < needed:
        yield f"{disk.path} has {gib(disk.free)} free, and {what} take {gib(needed)}: choose another disk by {where}."


def _of_wishes(config: RunConfig) -> Iterator[str]:
    try:
        check_wishes(config)
    except McpRlError as error:
        yield str(error)


def _of_settings(config: RunConfig) -> Iterator[str]:
    """All that `mcp-rl train` would refuse before it starts. What knows of it takes a second to import."""
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers
    from mcp_rl.training.preparation import check_settings

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
        return None  # a problem, which is told as one
    return f"{found.version}{', built for CPUs' if found.cpu else ''}, of {found.python}"


def _cap(config: RunConfig, made: Plan | None) -> float:
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
        yield "vLLM is not installed, so our own engine samples: `pip install 'mcp-rl[gpu]'` has it and Unsloth."
    if machine.usable_gpus and not machine.has("bitsandbytes"):
        yield "bitsandbytes is not installed, so no base can be loaded in 4 or 8 bits: `pip install bitsandbytes`."
    elif machine.usable_gpus and machine.has("vllm") and not machine.has("vllm-bnb-plugin"):
        yield (
            "vllm-bnb-plugin is not installed, so vLLM cannot sample a base in 4 bits: `pip install vllm-bnb-plugin`."
        )
    if machine.free_cpus < machine.cpus:
        yield f"{machine.cpus - machine.free_cpus} of {machine.cpus} CPUs are busy with something else."
    for process in left:
        yield f"An earlier run left {process} behind; the next run ends it."


def _version() -> str:
    try:
        return version("mcp-rl")
    except PackageNotFoundError:
        return "a checkout that is not installed"
