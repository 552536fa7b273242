"""Find the GPUs with NVIDIA's management library, or else its command, without creating a CUDA context."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from mcp_rl.backends.plan.machine import Gpu, GpuProcess
from mcp_rl.system.processes.devices import visible_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MIB = 2**20
_QUERY = "index,uuid,name,memory.total,memory.free,compute_cap,driver_version"


def read_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Return the GPUs that a CUDA program sees in this environment, in the order in which settings number them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible_entries(visible):
        return ()
    found = _by_library(visible)
    return found if found is not None else visible_gpus(_by_command(), visible)


def visible_gpus(gpus: Sequence[tuple[str, Gpu]], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs of (UUID, GPU) pairs that CUDA_VISIBLE_DEVICES names, in its order; all where it is not set."""
    if visible is None:
        chosen = [gpu for _, gpu in gpus]
    else:
        chosen = []
        for entry in visible_entries(visible):
            match = [g for uuid, g in gpus if entry == g.device or (not entry.isdecimal() and uuid.startswith(entry))]
            if not match:
                break
            chosen.append(match[0].model_copy(update={"device": entry}))
    return tuple(gpu.model_copy(update={"number": number}) for number, gpu in enumerate(chosen))


def parse_smi(text: str) -> list[tuple[str, Gpu]]:
    """Parse the output of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits` into UUIDs and GPUs, skipping bad
    lines."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_QUERY.split(",")):
            continue
        index, uuid, name, total, free, capability, driver = fields
        if not (index.isdecimal() and total.isdecimal() and free.isdecimal()):
            continue
        gpu = Gpu(
            number=int(index),
            device=index,
            name=name,
            memory=int(total) * MIB,
            free=int(free) * MIB,
            capability=_capability(capability),
            driver=driver,
        )
        found.append((uuid, gpu))
    return found


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _by_command() -> list[tuple[str, Gpu]]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    ask = [command, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        return parse_smi(subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout)
    return []


def _by_library(visible: str | None) -> tuple[Gpu, ...] | None:
    """Ask NVIDIA's library; return None where it is missing or does not answer."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return tuple(
            _describe(pynvml, handle, number, device, driver)
            for number, (device, handle) in enumerate(_handles(pynvml, visible))
        )
    except pynvml.NVMLError:
        return None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _handles(nvml: Any, visible: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the CUDA name and the handle of each visible device; a part of a GPU (MIG) is named by its UUID."""
    if visible is None:
        for index in range(nvml.nvmlDeviceGetCount()):
            yield str(index), nvml.nvmlDeviceGetHandleByIndex(index)
        return
    for entry in visible_entries(visible):
        try:
            if entry.isdecimal():
                yield entry, nvml.nvmlDeviceGetHandleByIndex(int(entry))
            else:
                yield entry, _by_uuid(nvml, entry)
        except nvml.NVMLError:
            return  # CUDA ignores everything after an invalid entry


def _by_uuid(nvml: Any, entry: str) -> Any:
    """Return the handle of a UUID, which may be shortened as long as it is unique."""
    with suppress(nvml.NVMLError):
        return nvml.nvmlDeviceGetHandleByUUID(entry)
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(entry):
            return handle
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)


def _describe(nvml: Any, handle: Any, number: int, device: str, driver: str) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability: tuple[int, int] | None = None
    with suppress(nvml.NVMLError):
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = int(major), int(minor)
    processes: list[GpuProcess] = []
    with suppress(nvml.NVMLError):
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            used = process.usedGpuMemory
            processes.append(GpuProcess(pid=process.pid, name=_name_of(process.pid), memory=used))
    return Gpu(
        number=number,
        device=device,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory=int(memory.total),
        free=int(memory.free),
        capability=capability,
        driver=driver,
        processes=tuple(processes),
    )


def _name_of(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "another user or container"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
