"""Play one episode by a function of the user's: `python -m mcp_rl.rollouts.agents.function FILE.py:NAME`.

The function runs in a process of its own, as a program does, so that deadlines hold whatever it does. What it returns
is the last line on stdout, as JSON; what it prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_ANSWER = 2**19
"""Bytes of an answer as JSON; the line must fit into what is kept of a program's output."""


@dataclass(frozen=True)
class AgentTask:
    """The task of one episode, and the addresses and the key for it; a function's one argument."""

    task: str
    base_url: str
    """The address for OpenAI's client; Anthropic's takes it without /v1. Both clients find theirs by themselves."""
    api_key: str
    """The key of this episode."""
    model: str
    mcp_url: str
    """The server's tools over streamable HTTP."""


def loaded(reference: str) -> Any:
    """Import the function that FILE.py:NAME or MODULE:NAME names."""
    place, _, name = reference.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    file = Path(place).resolve()
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    names = ("MCP_RL_TASK", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "MCP_RL_MCP_URL")
    task = AgentTask(*(os.environ[name] for name in names))
    found = loaded(sys.argv[1])(task)
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    answer = json.dumps(found if found is None or isinstance(found, str) else json.dumps(found, default=str))
    if len(answer) > LONGEST_ANSWER:
        sys.exit(f"The answer has {len(answer)} bytes as JSON; {LONGEST_ANSWER} at most are taken.")
    sys.stdout.flush()
    os.write(answers, f"{answer}\n".encode())


async def _awaited(found: Any) -> Any:
    return await found


if __name__ == "__main__":
    main()
