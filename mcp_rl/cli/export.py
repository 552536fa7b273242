"""`mcp-rl export`."""

import functools
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcp_rl.cli.options import Job, Json

if TYPE_CHECKING:
    from mcp_rl.export.run import Order


class ExportFormat(StrEnum):
    """Who loads it."""

    ADAPTER = "adapter"
    MERGED = "merged"
    GGUF = "gguf"
    OLLAMA = "ollama"


class Dtype(StrEnum):
    """Of merged weights."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def export(
    model: Annotated[
        str, typer.Argument(metavar="NAME", help="A run's NAME or NAME@STEP, a checkpoint's folder, mcp-rl/tiny, …")
    ],
    format: Annotated[
        ExportFormat,
        typer.Option(
            help="A PEFT adapter, a whole model with the adapter merged in, a GGUF file, or a model for Ollama."
        ),
    ] = ExportFormat.ADAPTER,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; else one under exports/ of the project.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="The base's name on the hub, for others to find it by; or a folder with it, such as its weights in "
            "16 bits where the run loaded it in 4."
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of merged weights; auto: the base's own.")] = Dtype.AUTO,
    quantise: Annotated[
        str | None,
        typer.Option(
            "--quantise", "--quantize", help="Type of a GGUF file's weights: f32, f16, bf16, q8_0, q4_k_m, …; f16."
        ),
    ] = None,
    converter: Annotated[
        Path | None,
        typer.Option(help="llama.cpp's convert_hf_to_gguf.py; else $MCP_RL_GGUF_CONVERTER, else on the PATH."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    project: Annotated[str, typer.Option(help="The folder of runs that belong together.")] = "default",
    output_dir: Annotated[Path, typer.Option(help="Where projects are kept; .mcp_rl here.")] = Path(".mcp_rl"),
    json: Json = False,
) -> Job:
    """Write a trained model as a folder that other programs load, with a model card that says how well it does."""

    def order() -> "Order":
        from mcp_rl.export.run import Order

        runs = output_dir / project / "models"
        return Order(model, format.value, runs, out, base, dtype.value, quantise, converter, overwrite)

    return functools.partial(_export, order, as_json=json)


def _export(order: "Callable[[], Order]", *, as_json: bool) -> None:
    from mcp_rl.threads import prepare_torch_threads

    prepare_torch_threads(None)  # before torch is imported
    from mcp_rl.export.run import export as write

    done = write(order())
    if as_json:
        print(done.model_dump_json(), flush=True)
        return
    print(f"{done.model} is in {done.path} as {done.format}: {done.files} files, {done.bytes / 1e6:.1f} MB.")
    for note in done.notes:
        print(note)
    print(f"{Path(done.path) / 'README.md'} says how to load it and how well it does.")
