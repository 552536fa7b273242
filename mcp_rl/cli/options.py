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


class IsolationName(StrEnum):
    """How episodes are kept apart."""

    SHARED = "shared"
    RESET = "reset"
    PER_ROLLOUT = "per-rollout"


class Offered(StrEnum):
    """What of a server becomes tools beside its tools."""

    RESOURCES = "resources"
    PROMPTS = "prompts"


class EngineKind(StrEnum):
    """What samples."""

    AUTO = "auto"
    LOCAL = "local"
    VLLM = "vllm"


Server = Annotated[
    list[str] | None,
    typer.Option(
        help="A server's name (see `mcp-rl servers`), a script, a quoted command that speaks MCP on stdio, or a URL; "
        "given again, their tools are offered together."
    ),
]
ServerConfig = Annotated[
    Path | None,
    typer.Option(help="A file of servers as MCP clients have it (mcpServers); else config.json, configs/config.json."),
]
Isolation = Annotated[
    IsolationName | None,
    typer.Option(help="How episodes are kept apart; else what the plugin says, or the tools' annotations."),
]
ResetTool = Annotated[str | None, typer.Option(help="The tool that puts the server's state back before each episode.")]
Offer = Annotated[
    list[Offered] | None, typer.Option(help="Give the model the server's resources or its prompts as tools too.")
]
Record = Annotated[Path | None, typer.Option(help="Keep every call of a tool and its result in this file.")]
Replay = Annotated[Path | None, typer.Option(help="Answer every call from this file, with no server at all.")]
AllowSchemaChange = Annotated[
    bool | None,
    typer.Option("--allow-schema-change", help="Go on where a server lists other tools in mid-run."),
]
TransportOption = Annotated[Transport | None, typer.Option(help="How to speak to the server; SSE where it can.")]
Plugin = Annotated[list[Path] | None, typer.Option(help="A Python file with a plugin; may be given more than once.")]
Source = Annotated[
    str | None, typer.Option(help="A plugin's source of scenarios (see `mcp-rl plugins`), instead of exploring.")
]
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

ServerOverrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings of tool servers, such as tools.exclude='[\"drop_*\"]'."),
]


def server_settings(
    server: Sequence[str] | None,
    transport: Transport | None,
    server_config: Path | None,
    isolation: IsolationName | None = None,
    reset_tool: str | None = None,
    offer: Sequence[Offered] | None = None,
    record: Path | None = None,
    replay: Path | None = None,
    allow_schema_change: bool | None = None,
    plugin: Sequence[Path] | None = None,
) -> dict[str, Any]:
    """Dotted keys of what is said about servers; None where nothing is."""
    return {
        "server": tuple(server) if server else None,
        "transport": transport and transport.value,
        "plugins": tuple(map(str, plugin)) if plugin else None,
        "tools.server_config": server_config,
        "tools.isolation": isolation and isolation.value,
        "tools.reset_tool": reset_tool,
        "tools.offer": tuple(what.value for what in offer) if offer else None,
        "tools.record": record,
        "tools.replay": replay,
        "tools.allow_schema_change": allow_schema_change or None,
    }


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


def devices(text: str | None, option: str) -> tuple[int, ...] | None:
    """`0,1` as device numbers. Raises ConfigError."""
    if text is None:
        return None
    from mcp_rl.errors import ConfigError

    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"{option} takes numbers of GPUs with commas between them, such as 0,1, not {text!r}.")
    return tuple(int(number) for number in numbers)
