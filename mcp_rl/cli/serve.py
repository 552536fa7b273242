"""`mcp-rl serve`."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mcp_rl.cli.groups import settings, with_groups
from mcp_rl.cli.options import EngineOptions, Job, PlaceOptions


@with_groups
def serve(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME... [KEY=VALUE]...",
            help="A run's NAME or NAME@STEP, a folder with an adapter or a model, mcp-rl/tiny, a Hugging Face model; "
            "several are served side by side. Settings of the section engine too.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines can reach needs --api-key-env.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.", min=0, max=65535)] = 8000,
    engine: EngineOptions,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key which every request must carry.")
    ] = None,
    place: PlaceOptions,
) -> Job:
    """Serve trained models over OpenAI's protocol, with tool calls, until Ctrl-C."""
    words = [*(names or ()), *([f"engine.url={engine.engine_url}"] if engine.engine_url is not None else [])]
    about_engine = settings(engine)
    asked: dict[str, Any] = {
        "engine": about_engine["engine.kind"],
        "engine_gpus": about_engine["placement.engine_gpus"],
        "project": place.output_dir / place.project,
        "host": host,
        "port": port,
        "key_variable": api_key_env,
    }
    return functools.partial(_serve, words, asked)


def _serve(words: Sequence[str], asked: dict[str, Any]) -> int:
    from mcp_rl.runs.serve import prepare, run_serving

    job = prepare(words, **asked)
    from mcp_rl.system.processes.leftovers import end_leftovers
    from mcp_rl.system.threads import prepare_torch_threads

    end_leftovers(_say)
    prepare_torch_threads()  # before torch is imported
    from mcp_rl.system.held_loop import run_watched

    try:
        run_watched(run_serving, job, _say)
    except KeyboardInterrupt:
        if not job.serving:
            raise
        _say("Stopped.")
    return 0


def _say(line: str) -> None:
    from mcp_rl.system.visible import visible

    print(visible(line), flush=True)
