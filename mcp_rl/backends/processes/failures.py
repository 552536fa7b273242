"""Sentences about a learner that failed unexpectedly or whose process is gone, with advice."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.errors import EngineError, EngineStop

if TYPE_CHECKING:
    from collections.abc import Iterable

_LESS_MEMORY = (
    "Lower train.microbatch_tokens, rollout.max_tokens or engine.memory_share, set train.activation_checkpointing=true "
    "or unsloth.load_in_4bit=true"
)
_LESS_TO_HOLD = {
    "open": "Set unsloth.load_in_4bit=true, lower engine.memory_share or take a smaller base model",
    "generate": "Lower engine.max_rows or engine.max_context, or set unsloth.load_in_4bit=true",
}
"""Advice for calls in which nothing is learned."""
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Torch's messages about memory that its own GPU allocator did not ask for, or about the machine's."""
_CONTINUES = "the same command continues from the last whole step"
_DOING = {
    "open": "while it was loaded",
    "update": "in an update",
    "save": "while it saved",
    "take": "while its policy was taken over",
    "write_policy": "while it wrote its policy",
    "generate": "while it sampled",
    "move": "while it moved between the GPU and the machine's memory",
    "token_logprobs": "while it computed log-probabilities",
}


def out_of_memory(kind: str, sentence: str) -> bool:
    """Return whether an error of this class and first line means that a GPU or the machine ran out of memory."""
    return kind in ("OutOfMemoryError", "MemoryError") or any(words in sentence for words in _OUT_OF_MEMORY)


def failed(kind: str, sentence: str, doing: str, log: Path | None = None, who: str = "The learner") -> EngineError:
    """Return the error for a learner that raised an unexpected error: it still lives, but its run cannot go on."""
    when = f" {_DOING[doing]}" if doing in _DOING else ""
    if out_of_memory(kind, sentence):
        less = _LESS_TO_HOLD.get(doing, _LESS_MEMORY)
        return EngineStop(f"{who} ran out of memory{when}: {sentence}. {less}; {_CONTINUES}.")
    where = f" The traceback is in {log}." if log is not None else ""
    return EngineStop(f"{who} failed{when} with {kind}: {sentence}; {_CONTINUES}.{where}")


def died(
    ending: str,
    doing: Iterable[str],
    log: Path,
    tail: str,
    *,
    by_kernel: bool = False,
    who: str = "The learner's process",
) -> EngineStop:
    """Return the error for a learner whose process is gone.

    `ending` says how it ended, such as "was killed by SIGKILL"; `by_kernel`: the kernel has counted a process that it
    killed for want of memory.
    """
    known = next((name for name in doing if name in _DOING), "")
    when, less = f" {_DOING[known]}" if known else "", _LESS_TO_HOLD.get(known, _LESS_MEMORY)
    last = f" The last lines of {log}: {tail}" if tail else f" {log} has no word of it."
    if ending.endswith("SIGKILL"):
        why = "for want of memory" if by_kernel else "not by us: probably the kernel did it for want of memory"
        return EngineStop(f"{who} was killed{when}, {why}. {less}; {_CONTINUES}.{last}")
    return EngineStop(f"{who} {ending}{when}; {_CONTINUES}.{last}")


def kernel_kills() -> int:
    """Return how many processes of our control group the kernel has killed for want of memory; 0 if it does not say."""
    with suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2]
        for folder in (Path("/sys/fs/cgroup") / group.lstrip("/"), Path("/sys/fs/cgroup")):
            events = folder / "memory.events"
            if events.is_file():
                counts = dict(line.split() for line in events.read_text().splitlines())
                return int(counts.get("oom_kill", 0))
    return 0
