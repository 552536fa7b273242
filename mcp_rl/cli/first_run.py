"""`mcp-rl` alone, on a terminal: three questions to a first training."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

_T = TypeVar("_T")
_SHORT = 10
"""Steps of a first look: half a minute to a few minutes with the built-in model."""
_MODELS = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")
"""Models to offer on a GPU, the largest first."""
_MOST_ENTRIES = 12
"""Servers of clients' files that are listed."""


def first_run(run: Callable[[Sequence[str]], int]) -> int:
    """Ask for a server, a model and a length; show the command and `run` it. Returns an exit code."""
    from rich.console import Console

    console = Console()
    console.print(
        "This trains a model to use the tools of a server, and measures it before and after. Three questions lead to "
        "a first run; [bold]mcp-rl --help[/] lists every command. Ctrl-C leaves.\n"
    )
    try:
        words = ["train", *_server(console), *_model(console), *_steps(console)]
        agreed = _confirmed(words, console)
    except (KeyboardInterrupt, EOFError):
        console.print("\nNothing was started.")
        return 130
    return run(words) if agreed else 0


def _server(console: "Console") -> list[str]:
    """Ask for the server; return its options."""
    from mcp_rl.toolserver.client_files.client_file import USUAL_FILE
    from mcp_rl.toolserver.client_files.usual_places import entries_of_clients

    found = list(entries_of_clients())[:_MOST_ENTRIES]
    choices: list[tuple[str, list[str]]] = [("the bundled calculator", ["--server", "mcp_calculator"])]
    for name, path in found:
        config = [] if path == USUAL_FILE else ["--server-config", _short(path)]
        choices.append((f"{name}, of {_short(path)}", ["--server", name, *config]))
    choices.append(("another one: a command such as npx -y PACKAGE, a script, a URL, or registry:NAME", []))
    chosen = _choose("Which server?", choices, console)
    return chosen or ["--server", _known_server(console)]


def _known_server(console: "Console") -> str:
    """Ask for a server until one is named that could be started or reached."""
    from mcp_rl.errors import UserError
    from mcp_rl.plugins.resolve import resolve_server

    while True:
        text = _typed("Its command, script, URL or registry:NAME", console)
        if text.startswith("registry:"):  # the run looks it up, and asks
            return text
        try:
            resolve_server(text)
        except UserError as error:
            console.print(str(error), markup=False, highlight=False)
        else:
            return text


def _model(console: "Console") -> list[str]:
    """Ask for the model; return its option."""
    choices: list[tuple[str, list[str]]] = [("the built-in one, which needs no GPU and no download", [])]
    with console.status("looking at this machine"):
        fitting = _fitting()
    if fitting:
        choices.append((f"{fitting}, the largest of a few that fit the GPU here", ["--base-model", fitting]))
    else:
        console.print("(Larger models need a GPU, and none was found; `mcp-rl doctor` says more.)", highlight=False)
    choices.append(("another one: a Hugging Face model, or a folder with one", ["?"]))
    chosen = _choose("Which model?", choices, console)
    return ["--base-model", _typed("Its name or folder", console)] if chosen == ["?"] else chosen


def _fitting() -> str | None:
    """Return the largest of the models to offer that this machine can train; None if there is none."""
    from mcp_rl.backends.plan.detect import detect
    from mcp_rl.config.load import load_config
    from mcp_rl.runs.doctor.examine import examine

    if not detect().gpus:
        return None
    for name in _MODELS:
        config = load_config(options={"server": ("mcp_calculator",), "base_model": name})
        if examine(config, server_given=False).works:
            return name
    return None


def _steps(console: "Console") -> list[str]:
    """Ask for the number of steps; return its option."""
    from mcp_rl.config import RunConfig

    usual = RunConfig.model_fields["steps"].default
    choices: list[tuple[str, list[str]]] = [
        (f"a first look: {_SHORT} steps, which the same command with more steps continues", ["--steps", str(_SHORT)]),
        (f"a whole training: {usual} steps", ["--steps", str(usual)]),
        ("another number of steps", []),
    ]
    if chosen := _choose("How long?", choices, console):
        return chosen
    from rich.prompt import IntPrompt

    while (steps := IntPrompt.ask("How many steps", console=console)) < 1:
        console.print("At least 1.")
    return ["--steps", str(steps)]


def _confirmed(words: Sequence[str], console: "Console") -> bool:
    from rich.prompt import Confirm

    command = shlex.join(["mcp-rl", *words])
    console.print("\nThe command:\n")
    console.print(f"    {command}\n", markup=False, highlight=False, soft_wrap=True)
    if Confirm.ask("Run it?", console=console, default=True):
        return True
    console.print("Nothing was started; the command works whenever you type it.")
    return False


def _choose(question: str, choices: Sequence[tuple[str, _T]], console: "Console") -> _T:
    """Ask for one of the choices by its number; the first is the default."""
    from rich.prompt import Prompt

    from mcp_rl.system.visible import shortened

    console.print(question, style="bold")
    for number, (text, _) in enumerate(choices, 1):
        console.print(f"  {number}  {shortened(text)}", markup=False, highlight=False)
    numbers = [str(number) for number in range(1, len(choices) + 1)]
    while (chosen := Prompt.ask("Number", console=console, default="1").strip()) not in numbers:
        console.print(f"Please type a number from 1 to {len(choices)}.", highlight=False)
    return choices[int(chosen) - 1][1]


def _typed(question: str, console: "Console") -> str:
    from rich.prompt import Prompt

    while not (text := Prompt.ask(question, console=console).strip()):
        console.print("Please type one.")
    return text


def _short(path: Path) -> str:
    """Return a path, with the home folder as `~`."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_absolute() and path.is_relative_to(home) else str(path)
