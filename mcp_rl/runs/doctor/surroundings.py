"""A run's needs beside the machine itself: a port, programs that start servers, keys, the hub."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
    *("HF_TOKEN", "WANDB_API_KEY", "MCP_RL_ENGINE_KEY", "VLLM_API_KEY"),
)
"""Variables to look for; their values are never read."""
PROGRAMS = ("node", "npx", "uvx", "docker")
"""Programs that MCP servers are often started with."""


def loopback_port() -> str | None:
    """Return why no port can be opened on 127.0.0.1; None where one can."""
    try:
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            opened.listen(1)
            with socket.create_connection(opened.getsockname(), timeout=2):
                return None
    except OSError as error:
        return error.strerror or str(error)


def keys(environment: Mapping[str, str] = os.environ) -> dict[str, bool]:
    """Return for each key whether it is set."""
    return {name: bool(environment.get(name)) for name in KEYS}


def programs() -> dict[str, str | None]:
    """Return each program's path, with the version of Node.js; None for a missing program."""
    found = {name: shutil.which(name) for name in PROGRAMS}
    if node := found["node"]:
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=3).stdout.strip()
            found["node"] = f"{said} in {node}" if said else node
    return found


def hub(seconds: float = 1.5) -> str | None:
    """Return why the model hub cannot be reached; None where it answers."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        with urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=seconds):
            return None
    except urllib.error.HTTPError:
        return None  # any answer will do
    except (OSError, ValueError, http.client.HTTPException) as error:
        late = isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError)
        return f"no answer within {seconds:g} s" if late else "no connection"
