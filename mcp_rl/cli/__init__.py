"""The command `mcp-rl`. Typer reads the words; the code of a command is imported only when it runs.

A command function returns a job. `main` runs it inside the error boundary, outside Typer, so that every error of every
command ends as one sentence and an exit code.
"""

import difflib
import gc
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from mcp_rl.cli.chat import chat
from mcp_rl.cli.doctor import doctor
from mcp_rl.cli.evaluate import evaluate
from mcp_rl.cli.export import export
from mcp_rl.cli.fork import fork
from mcp_rl.cli.generate import generate
from mcp_rl.cli.history import history
from mcp_rl.cli.league import league
from mcp_rl.cli.plugins import plugins
from mcp_rl.cli.ranks import own_part
from mcp_rl.cli.replay import replay
from mcp_rl.cli.report import export_trajectories, report
from mcp_rl.cli.serve import serve
from mcp_rl.cli.servers import servers
from mcp_rl.cli.sft import sft
from mcp_rl.cli.train import train
from mcp_rl.cli.verify import verify
from mcp_rl.cli.watch import watch
from mcp_rl.errors import McpRlError
from mcp_rl.system.boundary import run_guarded, say
from mcp_rl.system.notices import noticed_by
from mcp_rl.system.privacy import seal_process

__all__ = ["app", "main"]

_GARBAGE = (20_000, 20, 20)
"""Thresholds of the garbage collector: what a command imports stays, and looking through it is a third of its start."""
_ORDER = (
    *("train", "sft", "generate", "evaluate", "league", "chat", "serve", "report"),
    *("watch", "history", "verify", "fork", "replay", "export", "export-trajectories", "servers", "plugins", "doctor"),
)


class _InOrder(TyperGroup):
    """Lists commands and groups of commands in the order in which a user needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="mcp-rl",
    cls=_InOrder,
    help="Train a model to master the tools of any MCP server, and prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from mcp_rl.system.version import own_version

        typer.echo(own_version() or "not installed, running from a checkout")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


for _command in (
    train,
    sft,
    generate,
    evaluate,
    league,
    chat,
    serve,
    report,
    watch,
    history,
    verify,
    fork,
    replay,
    export,
    export_trajectories,
    plugins,
    doctor,
):
    app.command()(_command)
app.add_typer(servers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 the user can fix it, 130 interrupted.

    Without `arguments`, those of the process's own command line, whose environment and memory are then hidden; if
    there are none on a terminal, the user is helped to a first run.
    """
    if arguments is None:
        gc.set_threshold(*_GARBAGE)
    if arguments is None and len(sys.argv) == 1 and sys.stdin.isatty() and sys.stdout.isatty():
        from mcp_rl.cli.first_run import first_run

        return first_run(_as_if_typed)
    try:
        job = typer.main.get_command(app).main(args=arguments, prog_name="mcp-rl", standalone_mode=False)
    except TyperException as error:
        say(_usage_sentence(error))
        return error.exit_code
    except McpRlError as error:
        say(str(error))
        return error.exit_code
    if not callable(job):
        return int(job or 0)
    if arguments is None:
        seal_process()
    signal.signal(signal.SIGTERM, _terminate)
    with noticed_by(say):
        code = run_guarded(own_part(job), log_dir=lambda: getattr(job, "log_dir", None))
    if arguments is None:
        gc.freeze()  # the process ends: collecting half a million objects would take seconds after the last line
    return code


def _as_if_typed(words: Sequence[str]) -> int:
    """Run a command as if these had been the words of this process's command line."""
    sys.argv = [sys.argv[0], *words]
    return main()


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C: everything is closed, and the last whole step is kept.

    A running event loop handles Ctrl-C itself: it cancels the command's task, whichever task the signal interrupted.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt):
        interrupt(signal.SIGINT, frame)
    else:  # Ctrl-C is ignored, as in a background job of a script
        raise KeyboardInterrupt


def _usage_sentence(error: TyperException) -> str:
    """Return Typer's message as one sentence that ends in the nearest known option or command."""
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if option and message.startswith("No such option"):
        known = [name for parameter in context.command.params for name in parameter.opts] if context else []
        if context and (word := option.removeprefix("--")) in known:  # an argument of this command, an option of others
            return f"There is no option {option} here; give it as a word: {context.command_path} {word.upper()}."
        return _with_nearest(f"There is no option {option}", option, [name for name in known if name[:2] == "--"])
    if found := re.match(r"No such command '(.*?)'", message):
        return _with_nearest(
            f"There is no command {found[1]}", found[1], [*context.command.commands] if context else []
        )
    return f"{message}."


def _with_nearest(sentence: str, name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{sentence}; did you mean {close[0]}?" if close else f"{sentence}; --help lists all of them."
