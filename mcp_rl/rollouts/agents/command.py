"""Read the value of --agent: a program with its arguments, or a function in a Python file or module."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mcp_rl.errors import ConfigError, EngineError
from mcp_rl.rewards.program import PROGRAM
from mcp_rl.rollouts.agents import function
from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp_rl.config import RunConfig

_FUNCTION = re.compile(r"(?P<place>[^\s:]+):(?P<name>[A-Za-z_]\w*)")
"""A function, as FILE.py:NAME or MODULE:NAME."""


PLAIN_FUNCTION = re.compile(r"(?!(?:scripted|litellm|hf):)(?:[^\s:]+\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*")
"""A function where models may be named too."""


class AgentCommand(NamedTuple):
    """The command of a program that plays an episode."""

    words: tuple[str, ...]
    is_function: bool = False
    """True for our own program that calls a function of the user's."""


def check_agent(config: RunConfig) -> None:
    """Check that a run's agent can be started and gives what the reward needs. Raises ConfigError."""
    if config.rollout.agent is not None:
        agent_command(config.rollout.agent)
    elif PROGRAM in config.reward.weights:
        raise ConfigError(
            f"reward.weights names {PROGRAM!r}, the reward that an agent program gives: name the program with --agent."
        )


def agent_command(text: str) -> AgentCommand:
    """Split the command of an agent program, or find the function that it names. Raises ConfigError if it cannot be
    started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"The agent {text!r} is not a command: {error}.") from error
    if not words:
        raise ConfigError('The agent is an empty command: name a program, such as --agent "python my_agent.py".')
    if shutil.which(words[0]) is None:
        if len(words) == 1 and _FUNCTION.fullmatch(text.strip()):
            check_function(text.strip(), "agent")
            return AgentCommand((sys.executable, "-m", function.__name__, text.strip()), is_function=True)
        interpreter = f'start it with its interpreter, such as "python {words[0]}"'
        hint = interpreter if Path(words[0]).is_file() else "check its name and PATH"
        raise ConfigError(f"The agent's command {words[0]!r} cannot be run: {hint}.")
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    if script.endswith(".py") and not Path(script).is_file():
        raise ConfigError(f"The agent's program {script!r} does not exist in {Path.cwd()}.")
    return AgentCommand(tuple(words))


def check_function(reference: str, role: str) -> None:
    """Check that the file or module of FILE.py:NAME or MODULE:NAME is there, and that a file has the function; nothing
    of it is run here. Raises ConfigError, which calls it the `role`."""
    place, _, name = reference.rpartition(":")
    if not place.endswith(".py"):
        top = place.partition(".")[0]
        if not (Path(top).is_dir() or Path(f"{top}.py").is_file() or importlib.util.find_spec(top)):
            raise ConfigError(f"The {role}'s module {place!r} is neither in {Path.cwd()} nor installed.")
        return
    try:
        tree = ast.parse(Path(place).read_bytes())
    except OSError as error:
        raise ConfigError(f"The {role}'s file {place!r} cannot be read: {error.strerror or error}.") from error
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"The {role}'s file {place!r} is not Python: {error}.") from error
    functions = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not {name, "*"} & {*functions, *_other_names(tree)}:
        there = ", ".join(functions) or "none"
        raise ConfigError(f"The {role}'s file {place!r} has no function {name!r}; there are: {there}.")


def load_function(reference: str, role: str) -> Callable[[Any], Any]:
    """Import the function that FILE.py:NAME or MODULE:NAME names. Raises ConfigError, which calls it the `role`."""
    try:
        found = function.loaded(reference)
    except Exception as error:
        raise ConfigError(f"The {role} {reference!r} cannot be imported: {type(error).__name__}: {error}.") from error
    if not callable(found):
        raise ConfigError(f"The {role} {reference!r} is not a function but {shortened(repr(found), 60)}.")
    return found  # type: ignore[no-any-return]


async def call_function(called: Callable[[Any], Any], name: str, argument: Any) -> Any:
    """Return what a user's function returns, which may be asynchronous. Raises EngineError if it fails.

    It runs in a thread, so that one that never returns delays nothing but its own episode.
    """
    try:
        said = await anyio.to_thread.run_sync(functools.partial(called, argument), abandon_on_cancel=True)
        return await said if inspect.isawaitable(said) else said
    except Exception as error:
        raise EngineError(f"The function {name} failed: {type(error).__name__}: {error}.") from error


def _other_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file may bind to a function in another way than by defining one; "*" for any name."""
    for one in ast.walk(tree):
        if isinstance(one, ast.alias):
            yield one.asname or one.name
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id
        elif isinstance(one, ast.ClassDef):
            yield one.name
