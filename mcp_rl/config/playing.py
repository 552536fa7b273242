"""Settings of the tasks, the episodes, the tool servers and the curriculum."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mcp_rl.config.levels import AUTO, level_shares
from mcp_rl.config.section import CARRIED, LIVE, Role, Section

MOST_STEPS = 5
"""Maximum calls of a task made by exploring."""

PARTS = ("task", "answer", "id", "split", "tags", "require_tool", "initial_state", "max_turns")
"""The parts of a scenario that `scenarios.fields` maps."""
_MEASURED = Role(measured=True)
Transport = Literal["sse", "stdio", "streamable-http"]
Isolation = Literal["shared", "layer", "reset", "per-rollout"]
SandboxKind = Literal["files", "network", "off"]
Elicitation = Literal["decline", "defaults"]


class ScenarioConfig(Section):
    """The source of the tasks, and the share held out."""

    file: Annotated[Path | None, Role(identity=False)] = None
    """Your own scenarios (JSON Lines); none: they are generated."""
    fields: dict[str, str] = Field(default={})
    """For each part of a scenario the field of your file that holds it, such as `{task="question",
    answer="final_answer"}`; none: the file's fields are named as a scenario's."""
    verifier: str | None = None
    """Verifier of the answers that `fields` maps; none: `number`, `time` or `text`, as each answer is."""
    require_tool: bool | None = None
    """A right answer that `fields` maps counts only if a tool was used; none: where there is a server, as guessing
    would pay."""
    source: str | None = None
    """A plugin's source of scenarios, or `explore`; none: the one of the server's plugin, else `explore`."""
    count: int | None = Field(default=None, ge=2)
    """Scenarios to make; none: 960 where a plugin words them, else 720, since a slow server takes minutes for these."""
    val: int = Field(default=120, ge=1)
    """Scenarios held out and never trained on: a 95 % interval of about ±5 points at 0.9."""
    max_steps: int = Field(default=2, ge=1, le=MOST_STEPS)
    """Calls of the longest tasks made by exploring: the built-in model has learned two."""
    unsolvable: float = Field(default=0.0, ge=0, lt=1)
    """Share of generated tasks that cannot be solved: none, as the built-in model does not refuse."""
    without_tools: float = Field(default=0.0, ge=0, lt=1)
    """Share of generated requests that need no tool: none, as the built-in model always calls one."""
    levels: str = AUTO
    """Shares of the levels of generated tasks, such as `told=0.4,looked-up=0.6`, or `mixed`; auto: half spelled out and
    half told, or all spelled out where a plugin words them, as the built-in model can learn them."""
    knowledge: bool = False
    """True if generated tasks may need what neither the request nor the server says, such as the time zone of a city:
    not for the built-in model, which knows nothing of the world."""

    def wanted(self, *, worded: bool) -> int:
        """Return the number of scenarios to make. worded: a plugin has phrases for the tools."""
        return self.count or (960 if worded else 720)

    @field_validator("fields", mode="before")
    @classmethod
    def _read_pairs(cls, given: Any) -> Any:
        """Read `{task=question, answer=final_answer}` too, which is no TOML."""
        if not isinstance(given, str):
            return given
        pairs = [pair.partition("=") for pair in given.strip().removeprefix("{").removesuffix("}").split(",")]
        if not all(name.strip() and equals and value.strip() for name, equals, value in pairs):
            raise ValueError(f"cannot read {given!r}; write such as {{task=question, answer=final_answer}}")
        return {name.strip(): value.strip() for name, _, value in pairs}

    @field_validator("fields")
    @classmethod
    def _known_parts(cls, fields: dict[str, str]) -> dict[str, str]:
        for part in fields:
            if part not in PARTS:
                raise ValueError(f"a scenario has no part {part!r}; choose from {', '.join(PARTS)}")
        if fields and "task" not in fields:
            raise ValueError('task is missing, the field with the request; add it, such as task="question"')
        return fields

    @field_validator("levels")
    @classmethod
    def _known_levels(cls, text: str) -> str:
        level_shares(text)
        return text


FEWEST_GROUPS = 4
"""Minimum number of groups in a step with long episodes: a gradient from fewer scenarios is mostly noise."""


class RolloutConfig(Section):
    """Sampling of a step's episodes, and the limits of each."""

    agent: Annotated[str | None, _MEASURED] = None
    """Command of your own agent program, or FILE.py:FUNCTION, which plays the episodes; none: our own loop."""
    user_model: Annotated[str | None, _MEASURED] = None
    """Who plays simulated users: a LiteLLM model, with `@http…` for its address, or FILE.py:FUNCTION; none: rules."""
    max_user_cost: Annotated[float | None, CARRIED] = Field(default=None, gt=0)
    """US dollars that the model of `user_model` may cost in all: the run then ends, and goes on with more."""
    opponents: Annotated[tuple[str, ...], _MEASURED] = ()
    """Who speaks in the other seats of a scenario with several, drawn for each episode: `policy`, `earlier` (an older
    checkpoint of the run, another in each step), a model as --model names it, or FILE.py:FUNCTION; none: the policy."""
    earlier_every: int = Field(default=10, ge=1)
    """Steps between the checkpoints that the opponent `earlier` is drawn from, which stay on disk: six in 60 steps."""
    groups_per_step: int = Field(default=24, ge=1)
    """Scenarios in a step: those already solved cost little."""
    step_tokens: int | None = Field(default=16_384, ge=1)
    """Tokens to sample in a step, each counted twice where an episode is given 500 tokens, and so on: where
    listings, results or turns are long, a step takes fewer scenarios, at least 4; none: never fewer."""
    group_size: int = Field(default=16, ge=2)
    """Rollouts of one scenario: finds a solution that works 1 time in 10."""
    probes: int = Field(default=4, ge=0)
    """Rollouts of a scenario that are played first; if all succeed, its group ends there. 0: never."""
    temperature: Annotated[float, _MEASURED] = Field(default=1.0, gt=0)
    """Sampling temperature: 1 samples the policy itself, so the ratio stays unbiased."""
    max_turns: Annotated[int, _MEASURED] = Field(default=4, ge=1)
    """Maximum model turns: two calls, one repair and the answer."""
    max_turn_tokens: Annotated[int, _MEASURED] = Field(default=80, ge=1)
    """Maximum sampled tokens in a turn: a long call of the built-in model."""
    max_thought_tokens: Annotated[int, _MEASURED] = Field(default=2048, ge=0)
    """Maximum tokens of the thought in a turn of a thinking model, beside the other limits: a page of reasoning."""
    max_tokens: Annotated[int, _MEASURED] = Field(default=384, ge=1)
    """Maximum sampled tokens in an episode: four turns at their own limit."""
    max_tool_calls: Annotated[int, _MEASURED] = Field(default=16, ge=1)
    """Maximum calls in an episode: stops a model that calls without end."""
    max_result_tokens: Annotated[int, _MEASURED] = Field(default=256, ge=16)
    """Maximum tokens of a tool result; longer ones are cut in the middle, with a mark."""
    tool_deadline: Annotated[float, CARRIED] = Field(default=30.0, gt=0)
    """Seconds for one tool call: a slow web request fits."""
    deadline: Annotated[float, CARRIED] = Field(default=300.0, gt=0)
    """Seconds for one rollout; a late one is masked, not punished."""
    concurrency: Annotated[int, CARRIED] = Field(default=256, ge=1)
    """Rollouts in flight: most of a step."""
    max_exceptions: Annotated[float, Role(identity=False, carried=True, measured=True)] = Field(default=0.1, ge=0, le=1)
    """Share of rollouts that may fault before a step stops."""
    refills: int = Field(default=0, ge=0)
    """Maximum number of groups with equal rewards that a step replaces by further ones; 0: such groups are dropped."""


class ToolsConfig(Section):
    """The tool servers: the tools that the model gets, the isolation of episodes, and the handling of calls."""

    isolation: Isolation | None = None
    """Isolation of episodes; none: as the plugin declares, else as measured, else as the tools' annotations say."""
    reset_tool: str | None = None
    """A tool that resets a server's state before each episode; it makes the isolation "reset"."""
    sandbox: Annotated[SandboxKind | None, CARRIED] = None
    """Sandbox of the servers that we start: `files` keeps what they write in a layer, `network` leaves them no network
    either, `off` runs them as they are; none: the plugin's, else `files`, so that trying tools harms no file."""
    include: tuple[str, ...] = ()
    """Names or patterns (`get_*`) of the tools that the model gets; none: all of them."""
    exclude: tuple[str, ...] = ()
    """Names or patterns of tools that the model does not get, such as those that must never be called."""
    offer: tuple[Literal["resources", "prompts"], ...] = ()
    """Features offered to the model as tools too: the server's resources, its prompts."""
    start: tuple[str, ...] = ()
    """Addresses or paths where exploring begins, such as a page whose links lead on; none: the paths in the command."""
    max_servers: Annotated[int | None, LIVE] = Field(default=None, ge=1)
    """Maximum open connections of a stateful server; none: the plugin's, else what processors and memory allow."""
    idle_seconds: Annotated[float, LIVE] = Field(default=600.0, gt=0)
    """Seconds after which an unused connection with a state is closed: longer than an update takes."""
    deadlines: Annotated[dict[str, float], LIVE] = Field(default={})
    """Seconds for one call by tool, where `rollout.tool_deadline` does not fit."""
    longest_call: Annotated[float, LIVE] = Field(default=60.0, gt=0)
    """Maximum seconds of a call whose server reports progress or a running task, which extends the deadline."""
    elicitation: Elicitation | None = None
    """Answer to a server that asks for input where no simulated user does; none: the plugin's, else decline."""
    remember: Annotated[bool, LIVE] = True
    """Answer a call of 5 ms or more from memory once the server has answered it twice alike; off: make every call."""
    allow_schema_change: Annotated[bool, LIVE] = False
    """Continue if a server changes its tools during a run: off, as what was learned may not fit them."""
    server_config: Annotated[Path | None, LIVE] = None
    """A file of servers in the format of MCP clients (`mcpServers`); none: config.json."""
    record: Annotated[Path | None, LIVE] = None
    """Record every call and its result in this file."""
    replay: Annotated[Path | None, LIVE] = None
    """Answer every call from this recording, without a server."""


class CurriculumConfig(Section):
    """Replay of scenarios, by the policy's last success on them."""

    solved_at: float = Field(default=1.0, gt=0, le=1)
    """Pass rate from which a scenario counts as solved: all its rewards are equal."""
    too_hard_at: float = Field(default=0.0, ge=0, lt=1)
    """Pass rate up to which a scenario counts as too hard: all its rewards are equal."""
    solved_share: float = Field(default=0.25, ge=0, le=1)
    """Share of solved scenarios that an epoch plays again: notices what was forgotten, at a quarter of the cost."""
    too_hard_share: float = Field(default=1.0, ge=0, le=1)
    """Share of too hard scenarios that an epoch plays again: all, as their first success is what there is to learn."""
    level_share: float = Field(default=0.25, ge=0, le=1)
    """Share of the unseen scenarios of a level solved or too hard throughout that keep their turn: the others of the
    epoch teach more. The rest come after them."""
