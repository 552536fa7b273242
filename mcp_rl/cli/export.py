"""`mcp-rl export`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcp_rl.cli.groups import with_groups
from mcp_rl.cli.options import Job, Json, PlaceOptions

if TYPE_CHECKING:
    from mcp_rl.runs.export.run import ExportRequest


class ExportFormat(StrEnum):
    """Formats that other programs load."""

    ADAPTER = "adapter"
    MERGED = "merged"
    GGUF = "gguf"
    OLLAMA = "ollama"
    DATASET = "dataset"


class Dtype(StrEnum):
    """Types of merged weights."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True)
class ExportOptions:
    """The format to write, and where."""

    format: Annotated[
        ExportFormat,
        typer.Option(
            help="A PEFT adapter, a whole model with the adapter merged in, a GGUF file, a model for Ollama, or the "
            "scenarios and episodes as a dataset."
        ),
    ] = ExportFormat.ADAPTER
    out: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: exports/NAME-STEP-FORMAT in the project.")
    ] = None
    base: Annotated[
        str | None,
        typer.Option(
            help="Name of the base on the hub, under which others find it; or a folder with it, such as its 16-bit "
            "weights where the run loaded it in 4 bits."
        ),
    ] = None
    dtype: Annotated[Dtype, typer.Option(help="Type of merged weights; auto: that of the base.")] = Dtype.AUTO
    quantise: Annotated[
        str | None,
        typer.Option(
            "--quantise",
            "--quantize",
            help="Type of a GGUF file's weights: f32, f16, bf16 or q8_0; others, such as q4_k_m, need "
            "llama.cpp's llama-quantize. Default: f16.",
        ),
    ] = None
    converter: Annotated[
        Path | None,
        typer.Option(
            help="Path of llama.cpp's convert_hf_to_gguf.py, or its folder. Default: "
            "$MCP_RL_GGUF_CONVERTER, else found on the PATH."
        ),
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace an earlier export, on the hub too. A folder or repository that holds "
            "anything else is never touched.",
        ),
    ] = False
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Push the export to this repository of the Hugging Face hub, with the token of `hf auth login` or "
            "HF_TOKEN. A new one is private.",
        ),
    ] = None
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="Make the repository on the hub public, if it is new; push to one that is public."
        ),
    ] = False


@with_groups
def export(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A run's NAME or NAME@STEP, the folder of a checkpoint, an adapter or a model, mcp-rl/tiny; "
            "for a dataset a run, an evaluation or a file of scenarios.",
        ),
    ],
    options: ExportOptions,
    place: PlaceOptions,
    json: Json = False,
) -> Job:
    """Write a trained model with its card, or scenarios and episodes, for other programs, and push it to the hub."""

    def order() -> "ExportRequest":
        from mcp_rl.runs.export.run import ExportRequest

        return ExportRequest(
            model,
            options.format.value,
            place.runs,
            options.out,
            options.base,
            options.dtype.value,
            options.quantise,
            options.converter,
            options.overwrite,
            options.push_to_hub,
            options.public,
        )

    return functools.partial(_export, order, as_json=json)


def _export(order: "Callable[[], ExportRequest]", *, as_json: bool) -> None:
    from mcp_rl.system.threads import prepare_torch_threads

    prepare_torch_threads(None)  # before torch is imported
    from mcp_rl.runs.export.run import export as write

    done = write(order())
    if as_json:
        print(done.model_dump_json(), flush=True)
        return
    size = f"{done.files} files, {done.bytes / 1e6:.1f} MB"
    if done.format == "dataset":
        print(f"The scenarios and episodes of {done.model} are in {done.path}: {size}.")
    else:
        print(f"{done.model} is in {done.path} as {done.format}: {size}.")
    for note in done.notes:
        print(note)
    told = "how to load it" if done.format == "dataset" else "how to load it and how well it does"
    print(f"{Path(done.path) / 'README.md'} says {told}.")
    if done.hub:
        print(f"On the hub: {done.hub}")
