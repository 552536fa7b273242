"""The command `mcp-rl`. Typer reads the words; what a command then does is imported only when it runs.

A command function returns what is to be run. `main` runs it inside the error boundary, outside of Typer, so that every
error of every command ends as one sentence and an exit code.
"""

import difflib
import functools
import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from mcp_rl.boundary import run_guarded, say

if TYPE_CHECKING:
    from rich.console import Console

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.server import ToolServer

Job = Callable[[], int | None]

app = typer.Typer(
    name="mcp-rl",
    help="Point it at any MCP server and get a model that has mastered that server's tools, with proof.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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


def _judge_settings(
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


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(version("mcp-rl"))
        except PackageNotFoundError:
            typer.echo("a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


@app.command()
def train(
    overrides: Overrides = None,
    server: Server = None,
    transport: TransportOption = None,
    scenarios: Annotated[Path | None, typer.Option(help="Your own scenarios, a JSON Lines file.")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="mcp-rl/tiny, a Hugging Face model or a folder with one.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps in all, those of earlier sessions included.")
    ] = None,
    seed: Seed = None,
    name: Annotated[str | None, typer.Option(help="The run's folder; else made from server, model and seed.")] = None,
    project: Project = None,
    output_dir: OutputDir = None,
    judge_model: Annotated[
        list[str] | None,
        typer.Option(help="Score groups with this model (RULER, a LiteLLM name); given again, the mean counts."),
    ] = None,
    judge_base_url: JudgeBaseUrl = None,
    judge_rubric: JudgeRubric = None,
    max_judge_cost: MaxJudgeCost = None,
    config: ConfigFile = None,
    plugin: Plugin = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an earlier run of this name is removed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and exit.")] = False,
    json: Json = False,
) -> Job:
    """Train a model on a tool server, and show success before and after on tasks it never trained on.

    The same command again continues where the run stopped.
    """
    options: dict[str, Any] = {
        "server": server,
        "transport": transport and transport.value,
        "scenarios.file": scenarios,
        "base_model": base_model,
        "steps": steps,
        "seed": seed,
        "name": name,
        "project": project,
        "output_dir": output_dir,
        **_judge_settings(judge_model or [], judge_base_url, judge_rubric, max_judge_cost),
        "plugins": [str(file) for file in plugin] if plugin else None,
    }
    return TrainJob(config, tuple(overrides or ()), options, fresh=fresh, dry_run=dry_run, as_json=json)


@app.command()
def servers(plugin: Plugin = None, json: Json = False) -> Job:
    """List the tool servers that the installed plugins offer."""

    def job() -> None:
        from mcp_rl.servers import print_servers

        print_servers(plugins=plugin or [], as_json=json)

    return job


class SplitBy(StrEnum):
    """What the splits of a scenarios file have not in common, beside requests."""

    CALLS = "calls"
    COMBINATIONS = "combinations"


@app.command()
def generate(
    server: Server = None,
    transport: TransportOption = None,
    out: Annotated[Path, typer.Option(help="The file to write, JSON Lines.")] = Path("scenarios.jsonl"),
    count: Annotated[int, typer.Option(help="Scenarios to make at most.", min=1)] = 720,
    seed: Annotated[int, typer.Option(help="All randomness follows from it.", min=0)] = 0,
    val: Annotated[float, typer.Option(help="Share to mark for validation, 0 to 1.")] = 0.0,
    test: Annotated[float, typer.Option(help="Share to mark for tests, 0 to 1.")] = 0.0,
    held_out_tool: Annotated[
        list[str] | None, typer.Option(help="A tool whose tasks are all marked for tests; may be given more than once.")
    ] = None,
    split_by: Annotated[
        SplitBy, typer.Option(help="What the splits may not share: calls, or combinations of tools too.")
    ] = SplitBy.CALLS,
    max_steps: Annotated[int, typer.Option(help="Calls of the longest tasks, 1 to 5.")] = 5,
    unsolvable: Annotated[float, typer.Option(help="Share of tasks that cannot be done, 0 to 1.")] = 0.05,
    without_tools: Annotated[float, typer.Option(help="Share of requests that need no tool, 0 to 1.")] = 0.05,
    author: Annotated[
        str | None, typer.Option(help="A language model that proposes tasks and words requests (a LiteLLM name).")
    ] = None,
    author_base_url: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible author of your own.")
    ] = None,
    author_share: Annotated[float | None, typer.Option(help="Share of tasks that the author proposes; 0.3.")] = None,
    author_steps: Annotated[
        str | None, typer.Option(metavar="FEWEST-MOST", help="Calls of a task that the author proposes; 2-4.")
    ] = None,
    max_author_cost: Annotated[float | None, typer.Option(help="US dollars that the author may cost.")] = None,
    keep_unverified: Annotated[
        bool, typer.Option("--keep-unverified", help="Keep tasks that only a judge can score, tagged ruler-only.")
    ] = False,
    check: Annotated[
        Path | None, typer.Option(help="Make nothing; execute this file's reference solutions again.")
    ] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> Job:
    """Make scenarios for a tool server by exploring it, or check that those in a file still hold."""
    writing: dict[str, Any] = {
        "model": author,
        "base_url": author_base_url,
        "share": author_share,
        "steps": author_steps and _range(author_steps),
        "max_cost": max_author_cost,
        "keep_unverified": keep_unverified or None,
    }
    return functools.partial(
        _generate,
        server,
        transport and transport.value,
        plugin or [],
        out=out,
        recipe={
            "count": count,
            "seed": seed,
            "max_steps": max_steps,
            "unsolvable": unsolvable,
            "without_tools": without_tools,
        },
        order={
            "val": val,
            "test": test,
            "held_out_tools": tuple(held_out_tool or ()),
            "split_by": split_by.value,
        },
        writing={name: value for name, value in writing.items() if value is not None},
        check=check,
        as_json=json,
    )


@app.command()
def evaluate(
    overrides: Overrides = None,
    server: Server = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="mcp-rl/tiny, a run's NAME or NAME@STEP, a folder, a Hugging Face model, a LiteLLM name, "
            "scripted:reference or scripted:refuse; given again to compare."
        ),
    ] = None,
    scenarios: Annotated[Path | None, typer.Option(help="Scenarios, a JSON Lines file.")] = None,
    count: Annotated[int | None, typer.Option(help="Scenarios at most, drawn with the seed.", min=1)] = None,
    samples: Annotated[int | None, typer.Option(help="Sampled episodes of each scenario; 4.", min=1)] = None,
    greedy: Annotated[
        bool | None, typer.Option(help="One greedy episode of each too; all but chat models do so anyway.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Where chat models are asked, an OpenAI-compatible address; or NAME@URL for one.")
    ] = None,
    transport: TransportOption = None,
    seed: Seed = None,
    name: Annotated[str | None, typer.Option(help="The evaluation's folder; else the server and a number.")] = None,
    project: Project = None,
    output_dir: OutputDir = None,
    judge_model: Annotated[
        list[str] | None,
        typer.Option(help="A judge (RULER, a LiteLLM name) scores too, and is held against the verifier."),
    ] = None,
    judge_base_url: JudgeBaseUrl = None,
    judge_rubric: JudgeRubric = None,
    max_judge_cost: MaxJudgeCost = None,
    config: ConfigFile = None,
    plugin: Plugin = None,
    json: Json = False,
) -> Job:
    """Compare models on the same scenarios: success with its interval, differences, errors, time and cost."""
    options: dict[str, Any] = {
        "server": server,
        "transport": transport and transport.value,
        "scenarios.file": scenarios,
        "evaluation.samples": samples,
        "seed": seed,
        "project": project,
        "output_dir": output_dir,
        **_judge_settings(judge_model or [], judge_base_url, judge_rubric, max_judge_cost),
        "plugins": [str(file) for file in plugin] if plugin else None,
    }
    asked: dict[str, Any] = {
        "file": config,
        "overrides": tuple(overrides or ()),
        "options": options,
        "base_url": base_url,
        "count": count,
        "greedy": greedy,
        "name": name,
    }
    return functools.partial(_evaluate, model or [], asked, as_json=json)


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="A run or an evaluation: its name or its folder.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; report.html in the folder.")] = None,
    megabytes: Annotated[
        float | None, typer.Option(help="Room for episodes in the page; 3.", min=0.0, max=200.0)
    ] = None,
    project: Annotated[str, typer.Option(help="The folder of runs that belong together.")] = "default",
    output_dir: Annotated[Path, typer.Option(help="Where projects are kept; .mcp_rl here.")] = Path(".mcp_rl"),
) -> Job:
    """Write one HTML page about a run or an evaluation, with charts and a browser for episodes."""

    def job() -> None:
        from mcp_rl.report import find_folder, write_report

        room = {} if megabytes is None else {"megabytes": megabytes}
        page = write_report(find_folder(run, output_dir / project), out, **room)
        print(f"The page is {page} ({page.stat().st_size / 1e6:.1f} MB); open it in a browser.")

    return job


class Format(StrEnum):
    """How episodes are exported."""

    OPENAI = "openai"
    INSPECT = "inspect"


@app.command()
def export_trajectories(
    source: Annotated[
        Path, typer.Argument(help="The folder of an evaluation or of a run, or one of its files of episodes.")
    ],
    out: Annotated[Path, typer.Option(help="The JSON Lines file to write, or the folder for inspect's logs.")],
    format: Annotated[
        Format, typer.Option(help="JSON Lines of OpenAI messages, or the logs of inspect_ai.")
    ] = Format.OPENAI,
    only_successful: Annotated[
        bool, typer.Option("--only-successful", help="Leave out every episode that did not succeed.")
    ] = False,
) -> Job:
    """Write episodes in the formats that other tools read."""
    return functools.partial(_export, source, out, format, only_successful)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 the world broke, 2 yours to mend, 130 interrupted."""
    try:
        job = typer.main.get_command(app).main(args=arguments, prog_name="mcp-rl", standalone_mode=False)
    except TyperException as error:
        say(_usage_sentence(error))
        return error.exit_code
    if not callable(job):
        return int(job or 0)
    signal.signal(signal.SIGTERM, _terminate)
    return run_guarded(job, log_dir=lambda: getattr(job, "log_dir", None))


@dataclass
class TrainJob:
    """The train command, once its words are read."""

    file: Path | None
    overrides: Sequence[str]
    options: dict[str, Any]
    fresh: bool
    dry_run: bool
    as_json: bool
    log_dir: Path | None = None
    """Where the traceback of a bug goes; known once the configuration is."""

    def __call__(self) -> int:
        from mcp_rl.overrides import load_config

        config = load_config(file=self.file, overrides=self.overrides, options=self.options)
        if self.dry_run:
            _print_resolved(config, self.as_json)
            return 0
        self.log_dir = config.run_dir / "logs"
        import anyio
        from rich.console import Console

        from mcp_rl.tracking.report import print_report
        from mcp_rl.train import run_training

        console = Console(stderr=self.as_json)
        try:
            report = anyio.run(functools.partial(run_training, config, fresh=self.fresh, console=console))
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_kept(config)) from error
        print_report(report, console)
        if self.as_json:
            print(report.json_line(), flush=True)
        _write_page(config.run_dir, console)
        return 0


def _generate(
    server: str | None,
    transport: str | None,
    plugins: Sequence[Path],
    *,
    out: Path,
    recipe: dict[str, Any],
    order: dict[str, Any],
    writing: dict[str, Any],
    check: Path | None,
    as_json: bool,
) -> int:
    import anyio

    from mcp_rl.errors import ConfigError
    from mcp_rl.generate import AuthorOptions, Order, generate_file
    from mcp_rl.generate_words import lines
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_server
    from mcp_rl.scenarios.recipe import Recipe

    if server is None:
        raise ConfigError("A tool server is needed: add --server mcp_calculator; `mcp-rl servers` lists all others.")
    if writing and "model" not in writing:
        raise ConfigError("Options for an author are given, and no author: add --author openai/gpt-4.1-mini.")
    if writing and check is not None:
        raise ConfigError("--check makes nothing, so it takes no author: leave one of the two out.")
    wanted = Order(Recipe(**recipe), **order, author=AuthorOptions(**writing) if writing else None)
    tool_server = resolve_server(server, transport, plugins=load_plugins(plugins))
    if check is not None:
        return _check(tool_server, check, transport, as_json)
    generated = anyio.run(functools.partial(generate_file, tool_server, out, wanted, transport=transport))
    for line in lines(generated, out):
        print(line, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps({"out": str(out), "server": tool_server.name, **generated.summary()}))
    return 0


def _range(text: str) -> tuple[int, int]:
    """Two numbers from "2-4", or the same one twice from "3"."""
    if not (found := re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", text)):
        raise typer.BadParameter(f"{text!r} is no range of calls such as 2-4.")
    return int(found[1]), int(found[2] or found[1])


def _check(server: "ToolServer", file: Path, transport: str | None, as_json: bool) -> int:
    import anyio

    from mcp_rl.generate import check_file

    findings = anyio.run(functools.partial(check_file, server, file, transport=transport))
    if as_json:
        print(json.dumps({"file": str(file), "findings": [{"id": f.id, "problem": f.problem} for f in findings]}))
        return 1 if findings else 0
    for finding in findings:
        print(f"{finding.id}: {finding.problem}")
    print(f"{len(findings)} of the scenarios in {file} do not hold." if findings else f"{file} holds.")
    return 1 if findings else 0


def _evaluate(models: Sequence[str], asked: dict[str, Any], *, as_json: bool) -> int:
    from mcp_rl.evaluation.run import prepare, run_evaluation

    job = prepare(models, **asked)
    import anyio
    from rich.console import Console

    from mcp_rl.evaluation.tables import print_tables

    console = Console(stderr=as_json)
    report = anyio.run(run_evaluation, job, console)
    print_tables(report, console)
    if as_json:
        print(report.json_line(), flush=True)
    _write_page(Path(report.path), console)
    return 0


def _write_page(folder: Path, console: "Console") -> None:
    """The page about what has just ended, where it is not there already. Everything else is kept by now."""
    from mcp_rl.report import PAGE, write_report

    page, newest = folder / PAGE, folder / "report.json"
    try:
        if not page.is_file() or page.stat().st_mtime < newest.stat().st_mtime:
            write_report(folder)
        said = f"Page: {page}"
    except Exception as error:
        said = f"The page could not be written: {error} `mcp-rl report {folder}` tries again."
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def _export(source: Path, out: Path, format: Format, only_successful: bool) -> None:
    from mcp_rl.evaluation.export import export_inspect, export_openai

    if format is Format.INSPECT:
        logs = export_inspect(source, out, only_successful=only_successful)
        print(
            f"{len(logs)} {'log is' if len(logs) == 1 else 'logs are'} in {out}; `inspect view --log-dir {out}` shows."
        )
    else:
        print(f"{export_openai(source, out, only_successful=only_successful)} episodes are in {out}.")


def _print_resolved(config: "RunConfig", as_json: bool) -> None:
    """Every setting as the override that would set it, after a check that the server's name means something."""
    from mcp_rl.config import settings
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_server

    resolve_server(config.server, config.transport, plugins=load_plugins(config.plugins))
    if as_json:
        print(config.model_dump_json())
        return
    print(f"# This run would be kept in {config.run_dir}")
    for key, value in settings(config):
        print(f"# {key} is not set" if value is None else f"{key} = {value}")


def _kept(config: "RunConfig") -> str:
    from mcp_rl.run_directory import RunDirectory

    step = RunDirectory(config.run_dir).state().step
    if not step:
        return "Interrupted before the first whole step; the same command starts again."
    return f"Interrupted; step {step} is kept in {config.run_dir}, and the same command continues from there."


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends a command the way Ctrl-C does: everything is closed, the last whole step is kept."""
    raise KeyboardInterrupt


def _usage_sentence(error: TyperException) -> str:
    """Typer's complaint as one sentence that ends in the nearest right option or command."""
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if option and message.startswith("No such option"):
        known = [name for parameter in context.command.params for name in parameter.opts] if context else []
        return _with_nearest(f"There is no option {option}", option, [name for name in known if name[:2] == "--"])
    if found := re.match(r"No such command '(.*?)'", message):
        return _with_nearest(
            f"There is no command {found[1]}", found[1], [*context.command.commands] if context else []
        )
    return f"{message}."


def _with_nearest(sentence: str, name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{sentence}; did you mean {close[0]}?" if close else f"{sentence}; --help lists all of them."
