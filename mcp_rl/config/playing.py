"""The tasks, the episodes, the tool servers, and the order in which tasks come."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from mcp_rl.config.section import Section

MOST_STEPS = 5
"""Calls of the longest tasks that exploring makes."""

Transport = Literal["sse", "stdio", "streamable-http"]
Isolation = Literal["shared", "reset", "per-rollout"]


class ScenarioConfig(Section):
    """Where the tasks come from and how many are held out."""

    file: Path | None = None
    """The user's own scenarios (JSON Lines); none: they are made."""
    source: str | None = None
    """A plugin's way to make scenarios, or `explore`; none: those that the server's plugin brings, else `explore`."""
    count: int = Field(default=720, ge=2)
    """Scenarios to make by exploring: ten steps pass before one comes again."""
    val: int = Field(default=120, ge=1)
    """Held out and never trained on: a 95 % interval of about ±5 points at 0.9."""
    max_steps: int = Field(default=2, ge=1, le=MOST_STEPS)
    """Calls of the longest tasks made by exploring: the built-in model has learned two."""
    unsolvable: float = Field(default=0.0, ge=0, lt=1)
    """Share of the made tasks that cannot be done: the built-in model does not refuse."""
    without_tools: float = Field(default=0.0, ge=0, lt=1)
    """Share of the made requests that need no tool: the built-in model always calls one."""


class RolloutConfig(Section):
    """How a step's episodes are sampled, and the limits of each."""

    groups_per_step: int = Field(default=24, ge=1)
    """Scenarios in a step: those that are solved already cost little."""
    group_size: int = Field(default=16, ge=2)
    """Rollouts of one scenario: finds a way that works 1 time in 10."""
    probes: int = Field(default=4, ge=0)
    """Rollouts of a scenario that are played first; where all of them succeed, its group ends there. 0: never."""
    temperature: float = Field(default=1.0, gt=0)
    """1 samples the policy as it is, so the ratio stays unbiased."""
    max_turns: int = Field(default=4, ge=1)
    """Model turns: two calls, one repair and the answer."""
    max_turn_tokens: int = Field(default=80, ge=1)
    """Sampled tokens in a turn: a long call of the built-in model."""
    max_tokens: int = Field(default=384, ge=1)
    """Sampled tokens in an episode: four turns at their own limit."""
    max_tool_calls: int = Field(default=16, ge=1)
    """Calls in an episode: stops a model that calls without end."""
    max_result_tokens: int = Field(default=256, ge=16)
    """Longer tool results are cut in the middle, with a mark."""
    tool_deadline: float = Field(default=30.0, gt=0)
    """Seconds for one tool call: a slow web request fits."""
    deadline: float = Field(default=300.0, gt=0)
    """Seconds for one rollout; a late one is masked, not punished."""
    concurrency: int = Field(default=256, ge=1)
    """Rollouts in flight: most of a step."""
    max_exceptions: float = Field(default=0.1, ge=0, le=1)
    """Share of rollouts that may fault before a step stops."""
    refills: int = Field(default=0, ge=0)
    """Groups whose rewards are all alike that a step replaces by further ones, at most; 0: such groups are dropped."""


class ToolsConfig(Section):
    """The tool servers: what the model gets of them, how episodes are kept apart, and what becomes of their calls."""

    isolation: Isolation | None = None
    """How episodes are kept apart; none: what the plugin declares, else what the tools' annotations say."""
    reset_tool: str | None = None
    """The tool that puts a server's state back before each episode; it makes the isolation "reset"."""
    include: tuple[str, ...] = ()
    """Names or patterns (`get_*`) of the tools that the model gets; none: all of them."""
    exclude: tuple[str, ...] = ()
    """Names or patterns of tools that it does not get: what must never be called."""
    offer: tuple[Literal["resources", "prompts"], ...] = ()
    """What else the model gets as tools: the server's resources, its prompts."""
    max_servers: int | None = Field(default=None, ge=1)
    """Connections of a server with a state that are open at once; none: what the plugin says, else 4."""
    idle_seconds: float = Field(default=600.0, gt=0)
    """A connection with a state that nobody uses for so long is closed: longer than an update takes."""
    deadlines: dict[str, float] = Field(default={})
    """Tool to seconds for one call of it, where `rollout.tool_deadline` does not fit."""
    longest_call: float = Field(default=600.0, gt=0)
    """Seconds that a call may take in all where its server tells of progress: that extends the deadline."""
    allow_schema_change: bool = False
    """Go on where a server lists other tools in mid-run: off, what was learned may not fit them."""
    server_config: Path | None = None
    """A file of servers as MCP clients have it (`mcpServers`); none: config.json or configs/config.json."""
    record: Path | None = None
    """Keep every call and its result in this file."""
    replay: Path | None = None
    """Answer every call from this file, with no server at all."""


class CurriculumConfig(Section):
    """Which scenarios come again, by how the policy did on them the last time."""

    solved_at: float = Field(default=1.0, gt=0, le=1)
    """Pass rate from which a scenario counts as solved: such a group is all alike."""
    too_hard_at: float = Field(default=0.0, ge=0, lt=1)
    """Pass rate up to which a scenario counts as too hard: such a group is all alike."""
    solved_share: float = Field(default=0.25, ge=0, le=1)
    """Share of the solved ones that an epoch plays again: what was forgotten is noticed, at a quarter of the cost."""
    too_hard_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the too hard ones that an epoch plays again: all, their first success is what there is to learn."""
