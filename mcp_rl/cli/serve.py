"""`mcp-rl serve`."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.options import EngineKind, Job, devices


def serve(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME... [KEY=VALUE]...",
            help="A run's NAME or NAME@STEP, a folder with an adapter or a model, mcp-rl/tiny, a Hugging Face model; "
            "more than one is served side by side. Settings of the section engine too.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.", min=0, max=65535)] = 8000,
    engine: Annotated[
        EngineKind | None, typer.Option(help="What samples: the in-process engine or vLLM; else by what is there.")
    ] = None,
    engine_url: Annotated[
        str | None, typer.Option(help="A vLLM server that runs already, such as http://127.0.0.1:8001/v1.")
    ] = None,
    engine_gpus: Annotated[str | None, typer.Option(help="GPUs of vLLM, such as 0,1; else the first.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="The environment variable with the key that every request must bring.")
    ] = None,
    project: Annotated[str, typer.Option(help="The folder of runs that belong together.")] = "default",
    output_dir: Annotated[Path, typer.Option(help="Where projects are kept; .mcp_rl here.")] = Path(".mcp_rl"),
) -> Job:
    """Serve trained models behind OpenAI's protocol, with tool calls, until Ctrl-C."""
    words = [*(names or ()), *([f"engine.url={engine_url}"] if engine_url is not None else [])]
    asked: dict[str, Any] = {
        "engine": engine and engine.value,
        "engine_gpus": devices(engine_gpus, "--engine-gpus"),
        "project": output_dir / project,
        "host": host,
        "port": port,
        "key_variable": api_key_env,
    }
    return functools.partial(_serve, words, asked)


def _serve(words: Sequence[str], asked: dict[str, Any]) -> int:
    from mcp_rl.serve import prepare, run_serving

    job = prepare(words, **asked)
    from mcp_rl.processes.leftovers import end_leftovers
    from mcp_rl.threads import prepare_torch_threads

    end_leftovers(_say)
    prepare_torch_threads()  # before torch is imported
    import anyio

    try:
        anyio.run(run_serving, job, _say)
    except KeyboardInterrupt:
        if not job.serving:
            raise
        _say("Stopped.")
    return 0


def _say(line: str) -> None:
    from mcp_rl.visible import visible

    print(visible(line), flush=True)
