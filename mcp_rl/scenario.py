"""What a model is asked to do, on which server, and how anyone can tell that it was done.

A scenario is self-contained: a JSON Lines file of scenarios can be moved to another machine and run there.
Commands use the placeholders `{python}` (this interpreter), `{bundled}` (the folder of the bundled servers), `{port}`
(a free port, chosen at launch) and `{env:NAME}` (a variable of our environment); environment values and headers may
refer to `${VARIABLES}`.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_serializer, model_validator

from mcp_rl.errors import ScenarioError

_SECRET_NAME = re.compile(r"token|key|secret|passw|auth|cookie|credential", re.IGNORECASE)
Split = Literal["train", "val", "test"]
SUBMIT_TOOL = "complete_task"


def _without_secrets(values: dict[str, str]) -> dict[str, str]:
    """Values under secret-looking names become `${NAME}`: a file is read back with the value from the environment."""

    def reference(name: str, value: str) -> str:
        if "${" in value or not _SECRET_NAME.search(name):
            return value
        return "${" + re.sub(r"\W", "_", name).upper() + "}"

    return {name: reference(name, value) for name, value in values.items()}


class Launch(BaseModel):
    """A process to start: the program and its arguments, never a shell line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Added to the minimal environment that a server gets."""
    cwd: str | None = None

    @field_serializer("env")
    def _env(self, env: dict[str, str]) -> dict[str, str]:
        return _without_secrets(env)


class StdioServer(Launch):
    """A server that speaks MCP on its standard input and output."""

    transport: Literal["stdio"] = "stdio"

    @property
    def ours_to_start(self) -> bool:
        """Whether we start the server, so that it ends with us and a new one is as good as new."""
        return True


class _NetworkServer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """May hold `{port}` where `launch` does."""
    headers: dict[str, str] = {}
    launch: Launch | None = None
    """Started before connecting and stopped afterwards; None for a server that somebody else runs."""

    @property
    def ours_to_start(self) -> bool:
        """Whether we start the server, so that it ends with us and a new one is as good as new."""
        return self.launch is not None

    @field_serializer("headers")
    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        return _without_secrets(headers)


class SseServer(_NetworkServer):
    """A server that speaks MCP over server-sent events."""

    transport: Literal["sse"] = "sse"


class StreamableHttpServer(_NetworkServer):
    """A server that speaks MCP over streamable HTTP."""

    transport: Literal["streamable-http"] = "streamable-http"


OneServer = Annotated[StdioServer | SseServer | StreamableHttpServer, Field(discriminator="transport")]


class ServerGroup(BaseModel):
    """Several servers whose tools are offered together, each as `server__tool`.

    A scenario's `initial_state` holds the state of each under the server's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    transport: Literal["group"] = "group"
    servers: dict[str, OneServer] = Field(min_length=1)


ServerParams = Annotated[StdioServer | SseServer | StreamableHttpServer | ServerGroup, Field(discriminator="transport")]


class ToolCall(BaseModel):
    """One call: the server's own tool name and the arguments as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: dict[str, JsonValue] = {}


class Verifier(BaseModel):
    """How an answer is checked: the name of a registered verifier, what it expects and its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    expected: JsonValue = None
    options: dict[str, JsonValue] = {}
    """What `docs/rewards.md` lists for the kind, and for every kind: `submit` and `reads`."""

    @property
    def submit_tool(self) -> str | None:
        """The tool that submits the answer (the option `submit`: true, or its name); None: the final message does."""
        submit = self.options.get("submit")
        return SUBMIT_TOOL if submit is True else submit if isinstance(submit, str) and submit else None

    @property
    def reads(self) -> tuple[ToolCall, ...]:
        """Calls to make when a rollout is over, whose results are looked at: those that "state" expects, or the option
        `reads`. Raises ValidationError where they are no calls."""
        listed = self.expected if self.kind == "state" else self.options.get("reads")
        if not isinstance(listed, list):
            return ()
        fields = [
            {k: v for k, v in c.items() if k in ("tool", "arguments")} if isinstance(c, dict) else c for c in listed
        ]
        return tuple(map(ToolCall.model_validate, fields))


class McpScenario(BaseModel):
    """A task for a model on a tool server. Only the description and the server are required."""

    model_config = ConfigDict(extra="forbid")

    task_description: str = Field(min_length=1)
    server_params: ServerParams
    max_turns: int = Field(default=10, ge=1)
    """Model turns, the final answer included."""
    id: str = ""
    """Defaults to a hash of the task, the server and the reference, so equal scenarios have equal ids."""
    server: str = ""
    """The server's name, for reports."""
    difficulty: float | None = None
    """Measured failure rate of a policy, 0 to 1; None while nobody measured."""
    split: Split | None = None
    verifier: Verifier | None = None
    reference: tuple[ToolCall, ...] = ()
    """A solution that was really executed."""
    reference_answer: str | None = None
    seed: int = 0
    initial_state: dict[str, JsonValue] | None = None
    tags: tuple[str, ...] = ()
    schema_hash: str | None = None
    """Hash of the tool schemas that the scenario was made for."""

    @model_validator(mode="after")
    def _identify(self) -> "McpScenario":
        if not self.id:
            self.id = _digest(self.task_description, self.server, [c.model_dump() for c in self.reference])
        return self


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def read_scenarios(path: str | Path) -> list[McpScenario]:
    """Read JSON Lines. Raises ScenarioError that names the file, the line number and what is wrong there."""
    path = Path(path)
    lines = text_lines(read_text(path))
    return distinct(path, ((number, parse_scenario(line, f"{path}, line {number}")) for number, line in lines))


def text_lines(text: str) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers. JSON may hold what else Unicode takes for the end of a line."""
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def read_text(path: Path) -> str:
    """The text of a scenarios file. Raises ScenarioError where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"Cannot read the scenarios file {path}: {reason}.") from error


def parse_scenario(fields: str | dict[str, Any], where: str) -> McpScenario:
    """A scenario from JSON or from its fields. Raises ScenarioError that begins with `where`."""
    try:
        if isinstance(fields, str):
            return McpScenario.model_validate_json(fields)
        return McpScenario.model_validate(fields)
    except ValidationError as error:
        raise ScenarioError(f"{where}: {_first_problem(error)}.") from error


def distinct(path: Path, numbered: Iterable[tuple[int, McpScenario]], *, unit: str = "line") -> list[McpScenario]:
    """The scenarios of a file, each with its number there. Raises ScenarioError for none at all and for duplicates.

    Two are duplicates where they have the same id, or ask the same of the same server from the same state.
    """
    scenarios: dict[str, McpScenario] = {}
    first: dict[str, int] = {}
    for number, scenario in numbered:
        where = f"{path}, {unit} {number}"
        if scenario.id in scenarios:
            raise ScenarioError(f"{where}: scenario id {scenario.id!r} is there twice; ids must differ.")
        asked = _digest(normalised_request(scenario.task_description), scenario.server, scenario.initial_state)
        if asked in first:
            raise ScenarioError(f"{where}: the request is the same as in {unit} {first[asked]}; remove one of the two.")
        scenarios[scenario.id], first[asked] = scenario, number
    if not scenarios:
        raise ScenarioError(f"The scenarios file {path} holds no scenario; it needs one JSON object on each line.")
    return list(scenarios.values())


def normalised_request(text: str) -> str:
    """One text for requests that differ in letter case and white space alone."""
    return " ".join(text.casefold().split())


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def scenario_lines(scenarios: Iterable[McpScenario]) -> str:
    """The JSON Lines text of scenarios: default values left out, keys in a fixed order."""
    return "".join(_line(scenario) for scenario in scenarios)


def _line(scenario: McpScenario) -> str:
    fields = scenario.model_dump(mode="json", exclude_defaults=True)
    params, written = scenario.server_params, fields["server_params"]
    written["transport"] = params.transport  # a default, and what a reader goes by
    if isinstance(params, ServerGroup):
        for name, server in params.servers.items():
            written["servers"][name]["transport"] = server.transport
    return json.dumps(fields, ensure_ascii=False) + "\n"
