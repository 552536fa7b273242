"""`mcp-rl chat`."""

import functools
from typing import Annotated, Any

import typer

from mcp_rl.cli.groups import settings, with_groups
from mcp_rl.cli.options import IsolationOptions, Job, PlaceOptions, ServerName


@with_groups
def chat(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A run's NAME or NAME@STEP, the folder of an export or a model, mcp-rl/tiny, a Hugging Face model.",
        ),
    ],
    server: ServerName,
    connection: IsolationOptions,
    temperature: Annotated[float, typer.Option(help="Temperature of the sampling; 0 is greedy.", min=0, max=2)] = 0.0,
    remember: Annotated[
        bool | None,
        typer.Option(
            help="Keep earlier questions in the conversation, or make each an episode of its own, as in training. "
            "Default: keep them, but for mcp-rl/tiny, which knows only conversations of one question."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.", min=0)] = 0,
    place: PlaceOptions,
) -> Job:
    """Talk to a trained model in the terminal, and watch it call the live server's tools.

    Without --server it uses the server of the training. In a pipe, each line is a question.
    """
    asked: dict[str, Any] = {
        "options": settings(server, connection),
        "project": place.output_dir / place.project,
        "temperature": temperature,
        "seed": seed,
        "remember": remember,
    }
    return functools.partial(_chat, name, asked)


def _chat(name: str, asked: dict[str, Any]) -> int:
    from mcp_rl.runs.chat import prepare, run_chat

    job = prepare(name, **asked)
    from mcp_rl.cli.printing.chat import TerminalView
    from mcp_rl.system.threads import prepare_torch_threads

    prepare_torch_threads()  # before torch is imported
    from mcp_rl.system.held_loop import run_watched

    view = TerminalView()
    with view.closing():
        view.loading(job.model.label)
        try:
            return 0 if run_watched(run_chat, job, view) else 1
        except KeyboardInterrupt:
            if not job.talking:
                raise
            print()
            return 0
