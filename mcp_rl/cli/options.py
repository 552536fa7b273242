"""Options that several commands take, and what they set."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

Job = Callable[[], int | None]
"""What a command function returns: what is to be run, which gives the exit code."""


class Transport(StrEnum):
    """How to speak to a server."""

    SSE = "sse"
    STDIO = "stdio"
    STREAMABLE_HTTP = "streamable-http"


Server = Annotated[
    str | None,
    typer.Option(help="A server's name (see `mcp-rl servers`), a quoted command that speaks MCP on stdio, or a URL."),
]
TransportOption = Annotated[Transport | None, typer.Option(help="How to speak to the server; SSE where it can.")]
Plugin = Annotated[list[Path] | None, typer.Option(help="A Python file with a plugin; may be given more than once.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and everything else on stderr.")]
Seed = Annotated[int | None, typer.Option(help="All randomness follows from it.")]
Project = Annotated[str | None, typer.Option(help="The folder of runs that belong together.")]
OutputDir = Annotated[Path | None, typer.Option(help="Where projects are kept; .mcp_rl here.")]
JudgeBaseUrl = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible judge of your own.")]
JudgeRubric = Annotated[Path | None, typer.Option(help="A file that says what is good.")]
MaxJudgeCost = Annotated[float | None, typer.Option(help="US dollars that the judges may cost in all.")]
ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file of settings, such as configs/calculator.toml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Any setting, such as train.learning_rate=1e-4; docs/configuration.md."
    ),
]


def judge_settings(
    models: Sequence[str], base_url: str | None, rubric: Path | None, max_cost: float | None
) -> dict[str, Any]:
    """Dotted keys of the judge's section; the first model is the judge, further ones its panel."""
    return {
        "judge.model": next(iter(models), None),
        "judge.panel": list(models[1:]) or None,
        "judge.base_url": base_url,
        "judge.rubric_file": rubric,
        "judge.max_cost": max_cost,
    }
