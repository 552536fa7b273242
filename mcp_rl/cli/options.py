"""Options that several commands take, alone or in groups (see `mcp_rl.cli.groups`)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mcp_rl.cli.groups import Sets

Job = Callable[[], int | None]
"""A command whose words are read: what a command function returns. Running it gives the exit code."""


class Transport(StrEnum):
    """Transports of MCP."""

    SSE = "sse"
    STDIO = "stdio"
    STREAMABLE_HTTP = "streamable-http"


class IsolationName(StrEnum):
    """Ways to keep episodes apart."""

    SHARED = "shared"
    LAYER = "layer"
    RESET = "reset"
    PER_ROLLOUT = "per-rollout"


class SandboxName(StrEnum):
    """Sandboxes of servers that we start."""

    FILES = "files"
    NETWORK = "network"
    OFF = "off"


class OfferOption(StrEnum):
    """Features of a server that become tools beside its own."""

    RESOURCES = "resources"
    PROMPTS = "prompts"


class EngineKind(StrEnum):
    """Engines that sample."""

    AUTO = "auto"
    LOCAL = "local"
    VLLM = "vllm"


BaseUrl = Annotated[
    str | None,
    typer.Option(help="OpenAI-compatible address of the chat models; --model NAME@URL for one of them."),
]
Count = Annotated[int | None, typer.Option(help="Maximum number of scenarios, drawn with the seed.", min=1)]
Server = Annotated[
    list[str] | None,
    Sets("server"),
    typer.Option(
        help="A server's name (see `mcp-rl servers`), a script, a quoted command that speaks MCP on stdio, a URL, or "
        "`registry:NAME` for one of the MCP registry; repeat to offer the tools of several together."
    ),
]
ServerConfig = Annotated[
    Path | None,
    Sets("tools.server_config"),
    typer.Option(
        help="The file of MCP servers to read (docs/server_config.md). Default: config.json here, "
        "and the one that comes with mcp-rl."
    ),
]
Plugin = Annotated[
    list[Path] | None,
    Sets("plugins", lambda files: tuple(map(str, files or ())) or None),
    typer.Option(help="A Python file with a plugin; repeat for several."),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Use a server of the MCP registry (`registry:NAME`) without being asked.")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object as the last line of stdout, and everything else on stderr."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Remove an earlier run of this name and start over.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file of settings, such as configs/calculator.toml; docs/configuration.md lists all of them."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Any setting of docs/configuration.md, such as train.learning_rate=1e-4."
    ),
]
BaseModel = Annotated[
    str | None,
    Sets("base_model"),
    typer.Option(help="mcp-rl/tiny (the default), the name of a Hugging Face model, or a folder with a model."),
]
Source = Annotated[
    str | None,
    Sets("scenarios.source"),
    typer.Option(help="A plugin's source of scenarios (see `mcp-rl plugins`), instead of exploring."),
]
Agent = Annotated[
    str | None,
    Sets("rollout.agent"),
    typer.Option(
        help='Your own agent, which plays the episodes: a program, such as "python my_agent.py", or a function, as '
        "my_agent.py:play or package.module:play (docs/agents.md)."
    ),
]
Init = Annotated[
    Path | None,
    Sets("init"),
    typer.Option(help="A run or a checkpoint whose adapter this run begins with, such as a warm start."),
]
OutputDir = Annotated[
    Path | None,
    Sets("output_dir"),
    typer.Option(help="Folder that holds the projects. Default: .mcp_rl."),
]
RunName = Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="A run: its name or its folder.")]


def gpu_numbers(option: str) -> Callable[[str | None], tuple[int, ...] | None]:
    """Return a function that reads `0,1` as device numbers. It raises ConfigError, which names the option."""

    def read(text: str | None) -> tuple[int, ...] | None:
        if text is None:
            return None
        from mcp_rl.errors import ConfigError

        numbers = [number.strip() for number in text.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise ConfigError(f"{option} takes the numbers of GPUs, such as 0,1, not {text!r}.")
        return tuple(int(number) for number in numbers)

    return read


@dataclass(frozen=True)
class ServerName:
    """The server itself."""

    server: Server = None


@dataclass(frozen=True)
class ConnectionOptions:
    """The way to a server, and what it offers."""

    transport: Annotated[
        Transport | None,
        Sets("transport"),
        typer.Option(help="Transport to the server. Default: the first that it offers."),
    ] = None
    server_config: ServerConfig = None
    sandbox: Annotated[
        SandboxName | None,
        Sets("tools.sandbox"),
        typer.Option(
            help="What a server that is started here can change: files (default) keeps what it writes in a layer that "
            "is thrown away, network also leaves it no network but its own loopback, off lets it write where it likes "
            "(docs/sandbox.md)."
        ),
    ] = None
    offer: Annotated[
        list[OfferOption] | None,
        Sets("tools.offer"),
        typer.Option(help="Offer the server's resources or prompts to the model as tools too; repeat for both."),
    ] = None
    start: Annotated[
        list[str] | None,
        Sets("tools.start"),
        typer.Option(
            help="An address or path where exploring begins, such as a page whose links lead on; "
            "repeat for several (docs/generate.md)."
        ),
    ] = None
    plugin: Plugin = None
    yes: Yes = False


@dataclass(frozen=True)
class IsolationOptions(ConnectionOptions):
    """A connection, and the isolation of its episodes."""

    isolation: Annotated[
        IsolationName | None,
        Sets("tools.isolation"),
        typer.Option(
            help="Isolation of episodes (docs/servers.md). Default: as the plugin or the file says, "
            "else as measured (docs/state.md), else by the tools' annotations."
        ),
    ] = None
    reset_tool: Annotated[
        str | None,
        Sets("tools.reset_tool"),
        typer.Option(
            help="A tool that resets the server's state before each episode; implies --isolation "
            "reset. With several servers: server__tool."
        ),
    ] = None


@dataclass(frozen=True)
class ServerOptions(IsolationOptions, ServerName):
    """A server, the way to it, and its calls. The options of the last base, `ServerName`, come first."""

    record: Annotated[
        Path | None,
        Sets("tools.record"),
        typer.Option(
            help="Record every tool call and its result in this file; new calls are added to an "
            "existing one (docs/cassettes.md)."
        ),
    ] = None
    replay: Annotated[
        Path | None,
        Sets("tools.replay"),
        typer.Option(
            help="Answer every tool call from this recording, without a server; a call that is not in "
            "it ends the command with exit code 2. Not together with --record."
        ),
    ] = None
    allow_schema_change: Annotated[
        bool | None,
        Sets("tools.allow_schema_change"),
        typer.Option(
            "--allow-schema-change", help="Continue if a server changes its tools during a run, instead of ending it."
        ),
    ] = None


@dataclass(frozen=True)
class EngineOptions:
    """The engine that samples."""

    engine: Annotated[
        EngineKind | None,
        Sets("engine.kind"),
        typer.Option(
            help="Engine that samples models with weights: local (in process) or vllm. Default: auto, "
            "which takes vLLM if there is a GPU and vLLM is installed."
        ),
    ] = None
    engine_url: Annotated[
        str | None,
        Sets("engine.url"),
        typer.Option(help="Address of a running vLLM server, such as http://127.0.0.1:8000/v1."),
    ] = None
    engine_gpus: Annotated[
        str | None,
        Sets("placement.engine_gpus", gpu_numbers("--engine-gpus")),
        typer.Option(help="GPUs that sample, such as 2,3. Default: the first one, or those of the learner."),
    ] = None


@dataclass(frozen=True)
class ComputeOptions(EngineOptions):
    """The engine, and the GPUs that learn."""

    learner_gpus: Annotated[
        str | None,
        Sets("placement.learner_gpus", gpu_numbers("--learner-gpus")),
        typer.Option(help="GPUs that learn, such as 0,1, with one process each."),
    ] = None


@dataclass(frozen=True)
class RunOptions:
    """The seed and the place of a new run."""

    seed: Annotated[int | None, Sets("seed"), typer.Option(help="Seed of all randomness.")] = None
    project: Annotated[
        str | None, Sets("project"), typer.Option(help="Folder of runs that belong together. Default: default.")
    ] = None
    output_dir: OutputDir = None


@dataclass(frozen=True)
class PlaceOptions:
    """The place of runs that are there already."""

    project: Annotated[str, typer.Option(help="Folder of runs that belong together.")] = "default"
    output_dir: Annotated[Path, typer.Option(help="Folder that holds the projects.")] = Path(".mcp_rl")

    @property
    def runs(self) -> Path:
        """The folder that holds the runs of the project."""
        return self.output_dir / self.project / "models"

    def find(self, run: str, *, begun: bool = True) -> Path:
        """Return the folder of a run by its name or path. Raises ConfigError if there is none, and for one that has not
        `begun`, if it must have."""
        from mcp_rl.runs.find import find_run

        return find_run(run, self.output_dir, self.project, begun=begun)


@dataclass(frozen=True)
class JudgeOptions:
    """A language model that scores episodes."""

    judge_model: Annotated[
        list[str] | None,
        Sets("judge.model", lambda models: models[0] if models else None),
        Sets("judge.panel", lambda models: list(models[1:]) or None if models else None),
        typer.Option(
            help="A judge that scores groups of episodes (RULER, a LiteLLM name; docs/rewards.md): in "
            "training instead of the verifier, in an evaluation beside it. Repeat to average "
            "several."
        ),
    ] = None
    judge_base_url: Annotated[
        str | None,
        Sets("judge.base_url"),
        typer.Option(help="Address of your own OpenAI-compatible judge."),
    ] = None
    judge_rubric: Annotated[
        Path | None, Sets("judge.rubric_file"), typer.Option(help="A text file that says what a good episode is.")
    ] = None
    max_judge_cost: Annotated[
        float | None,
        Sets("judge.max_cost"),
        typer.Option(
            help="Spending limit for all judges, in US dollars. A training run counts all its "
            "sessions, and stops before it spends more."
        ),
    ] = None
