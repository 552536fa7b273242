"""Everything that can be set about a run: one pydantic tree, one line of reason for each default.

The defaults suit the built-in model; `preset_for` holds what differs for other base models, and what is given wins over
both. No field holds a secret: API keys are read from the environment by whoever needs them.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mcp_rl.errors import ConfigError

MOST_STEPS = 5
"""Calls of the longest tasks that exploring makes."""

TINY = "mcp-rl/tiny"
Transport = Literal["sse", "stdio", "streamable-http"]
Isolation = Literal["shared", "reset", "per-rollout"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class ScenarioConfig(_Section):
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


class RolloutConfig(_Section):
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


class ToolsConfig(_Section):
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
    deadlines: dict[str, float] = {}
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


class CurriculumConfig(_Section):
    """Which scenarios come again, by how the policy did on them the last time."""

    solved_at: float = Field(default=1.0, gt=0, le=1)
    """Pass rate from which a scenario counts as solved: such a group is all alike."""
    too_hard_at: float = Field(default=0.0, ge=0, lt=1)
    """Pass rate up to which a scenario counts as too hard: such a group is all alike."""
    solved_share: float = Field(default=0.25, ge=0, le=1)
    """Share of the solved ones that an epoch plays again: what was forgotten is noticed, at a quarter of the cost."""
    too_hard_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the too hard ones that an epoch plays again: all, their first success is what there is to learn."""


class LoraConfig(_Section):
    """The adapter that is trained; the base stays as it is."""

    rank: int = Field(default=16, ge=1)
    """Enough for one server's tools; more was no better when tried."""
    alpha: int = Field(default=32, ge=1)
    """Twice the rank, the usual scale of 2."""
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )
    """All linear layers: LoRA on attention alone learns less."""


class TrainConfig(_Section):
    """One step of learning."""

    learning_rate: float = Field(default=8e-4, gt=0)
    """Measured on the built-in model; larger models take less."""
    schedule: Literal["inverse", "constant", "linear", "cosine"] = "inverse"
    """How the rate falls: as 1 / (1 + step / decay_steps), which needs no last step; not at all; or to the floor."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of rising learning rate: none, the adapter starts at zero."""
    decay_steps: int = Field(default=60, ge=0)
    """`inverse`: steps until the rate is half, 0 for never; `linear`, `cosine`: steps until it is at its floor."""
    floor: float = Field(default=0.1, ge=0, le=1)
    """Share of the learning rate at which `linear` and `cosine` end: a tenth, the usual one."""
    optimizer: Literal["adamw", "adafactor", "sgd"] = "adamw"
    """AdamW, the field's baseline; Adafactor takes less memory where every weight is trained."""
    loss: Literal["grpo", "dr_grpo", "cispo", "gspo"] = "grpo"
    """Clipped token-level policy gradient, the field's baseline."""
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] | None = None
    """How the losses of tokens become one; none: the loss's own way, for `grpo` the mean over tokens (DAPO)."""
    sequence_norm: int = Field(default=384, ge=1)
    """Divisor of a sequence's sum in `seq-mean-token-sum-norm` (Dr. GRPO): the most sampled tokens of an episode."""
    scale_by_std: bool | None = None
    """Divide by the group's deviation, so that a rare success counts more; none: not for `dr_grpo`, else yes. Off where a
    judge scores: it blows near-ties up."""
    leave_one_out: bool = False
    """Off: in one group it only rescales the advantage."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """Lower clip of the ratio; none: the loss's own, 0.2 as in PPO, 3e-4 for `gspo`, 1 (no clip) for `cispo`."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip; none: the loss's own, `grpo` 0.28 to keep exploring (DAPO), `dr_grpo` 0.2, `gspo` 4e-4, `cispo` 4."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL to the base: off, verified rewards need no leash."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus: off, larger groups explore already."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping, the usual norm."""
    weight_decay: float = Field(default=0.0, ge=0)
    """None: the adapter is small and starts at zero."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps by which a sampled token may be older than the learner; above 0 rollouts go on while the learner works."""
    importance_cap: float | None = Field(default=None, ge=0)
    """Cap of the weight that corrects an inexact or older sampler (truncated importance sampling), 0: no correction;
    none: 2 where `max_staleness` is above 0, else no correction, since our sampler is exact."""
    epochs: int = Field(default=2, ge=1)
    """Passes over one batch: the update costs a tenth of the sampling."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser updates in one pass: two were noisier, and stopped at 0.89 where one went on to 0.94."""
    microbatch_tokens: int = Field(default=16384, ge=256)
    """Tokens in one forward pass; bounds the memory."""
    prefix_sharing: bool = True
    """Compute what episodes share once; off is for measuring what that is worth."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time for much less memory."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints: a kill costs under a minute."""
    keep_checkpoints: int = Field(default=3, ge=1)
    """Newest checkpoints that stay on disk: one, and two behind it in case it is damaged."""
    keep_best: bool = True
    """Keep the checkpoint with the best success on val too, however old it is."""
    method: Literal["lora", "full"] = "lora"
    """Train an adapter, or every weight of the model: an adapter is small, fast and enough for one server's tools."""
    lora: LoraConfig = LoraConfig()
    """The adapter that is trained."""

    @property
    def scales_by_std(self) -> bool:
        """`scale_by_std` with its default filled in (Dr. GRPO: Liu et al., 2025, section 3.2, leaves it out)."""
        return self.loss != "dr_grpo" if self.scale_by_std is None else self.scale_by_std

    @property
    def cap(self) -> float:
        """`importance_cap` with its default filled in; 0 for no correction."""
        if self.importance_cap is not None:
            return self.importance_cap
        return 2.0 if self.max_staleness else 0.0


class JudgeConfig(_Section):
    """Scoring groups by a language model (RULER) through LiteLLM. Its key is read from the environment."""

    model: str | None = None
    """LiteLLM name of the judge; none: the scenario's verifier scores."""
    base_url: str | None = None
    """Address of an OpenAI-compatible judge of your own."""
    panel: tuple[str, ...] = ()
    """Further judges: every one scores each group, and the mean counts."""
    rubric: str | None = None
    """Your own words for what is good; none: reaching the task's goal."""
    rubric_file: Path | None = None
    """A file with these words, where they are many."""
    deadline: float = Field(default=120.0, gt=0)
    """Seconds for one verdict: a reasoning judge is slow."""
    retries: int = Field(default=3, ge=0)
    """New tries after an unusable verdict before the group is a fault."""
    concurrency: int = Field(default=8, ge=1)
    """Verdicts asked for at once: all groups of a step."""
    token_budget: int = Field(default=24_000, ge=500)
    """Tokens of a prompt, about: long trajectories are cut, and what is left fits every judge of today."""
    repeat: float = Field(default=0.05, ge=0, le=1)
    """Share of groups that are judged twice, in another order: the judge's noise is known for 5 % more."""
    patience: float = Field(default=600.0, ge=0)
    """Seconds to wait for a judge that is down before the run stops: most outages are over by then."""
    max_cost: float | None = None
    """US dollars that the judges of a run may cost, all sessions together; none: no limit."""
    price: tuple[float, float] | None = None
    """US dollars for a million prompt and completion tokens; none: what LiteLLM knows."""
    cache: bool = True
    """Keep verdicts in the run's folder: a step that is played again costs nothing."""

    @property
    def models(self) -> tuple[str, ...]:
        """All judges."""
        return () if self.model is None else (self.model, *self.panel)

    def rubric_text(self) -> str | None:
        """The rubric, from its file where it has one. Raises ConfigError where that cannot be read."""
        if self.rubric_file is None:
            return self.rubric
        try:
            text = self.rubric_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"Cannot read the judge's rubric {self.rubric_file}: {reason}.") from error
        if not text:
            raise ConfigError(f"The judge's rubric {self.rubric_file} is empty.")
        return text


class RewardConfig(_Section):
    """What a reward is made of. Every part is a metric of its own."""

    weights: dict[str, float] = {}
    """Part to weight, 1 in all: `verifier`, `ruler`, or a verifier of your own; none: one part, the judge if any."""
    turn_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for each turn more than the reference needs: off, success is what is wanted."""
    error_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for each failed call: off, trying again is a skill."""
    token_cost: float = Field(default=0.0, ge=0)
    """Taken off a success for every 100 sampled tokens: off, thinking may pay."""
    shaping_limit: float = Field(default=0.5, ge=0, lt=1)
    """Most that the three take off together: a success stays well above a failure."""

    @property
    def shapes(self) -> bool:
        """Whether anything is taken off."""
        return bool(self.turn_cost or self.error_cost or self.token_cost)


class EvaluationConfig(_Section):
    """How success is measured on the held-out scenarios, before and after."""

    samples: int = Field(default=4, ge=1)
    """Sampled episodes of each scenario: steadies pass@1, gives pass@4."""
    greedy: bool = True
    """One greedy episode of each scenario too: what a user will run."""
    every: int = Field(default=0, ge=0)
    """Evaluate after every so many steps; 0: only before and after."""


class RunConfig(_Section):
    """A whole run."""

    server: tuple[str, ...] = Field(min_length=1)
    """A plugin's server name, an entry of a `server_config`, a script, a quoted command, or a URL; several together."""
    transport: Transport | None = None
    """How to speak to it; none: what the server prefers (SSE)."""
    plugins: tuple[str, ...] = ()
    """Python files with plugins of your own, beside the installed ones."""
    base_model: str = TINY
    """The built-in model, which needs no download and no GPU."""
    project: str = Field(default="default", pattern=r"^[\w][\w.-]*$")
    """Folder that holds the runs of one topic."""
    name: str = Field(default="", pattern=r"^([\w][\w.-]*)?$")
    """The run's folder; empty: server, model and seed."""
    output_dir: Path = Field(default=Path(".mcp_rl"))
    """Where projects are kept: beside the work they belong to."""
    seed: int = Field(default=0, ge=0)
    """All randomness follows from it."""
    backend: str = "local"
    """What trains and samples: this process; plugins offer others."""
    trackers: tuple[str, ...] = ()
    """What else shows the metrics: `tensorboard`, `wandb`, a plugin's; none: they are in history.jsonl anyway."""
    init: Path | None = None
    """A run or a checkpoint whose adapter this run begins with; none: a fresh one."""
    steps: int = Field(default=120, ge=0)
    """Training steps: four minutes on two cores."""
    scenarios: ScenarioConfig = ScenarioConfig()
    """The tasks."""
    tools: ToolsConfig = ToolsConfig()
    """The tool servers."""
    rollout: RolloutConfig = RolloutConfig()
    """The episodes."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """The order of the tasks."""
    train: TrainConfig = TrainConfig()
    """The update."""
    judge: JudgeConfig = JudgeConfig()
    """The judge."""
    reward: RewardConfig = RewardConfig()
    """The reward."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """The proof."""

    @field_validator("server", "trackers", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        """Values that were not given come from the preset of the base model, and of the judge where there is one."""
        if not isinstance(given, Mapping):
            return given
        judge = given.get("judge")
        judged = JUDGE_PRESET if isinstance(judge, Mapping) and judge.get("model") else {}
        return _merged(_merged(preset_for(str(given.get("base_model", TINY))), judged), given)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for complaint in _contradictions(self):
            raise ValueError(complaint)
        if not self.name:
            object.__setattr__(self, "name", _run_name(self))
        return self

    @property
    def run_dir(self) -> Path:
        """`<output_dir>/<project>/models/<name>`."""
        return self.output_dir / self.project / "models" / self.name


# What a pretrained chat model of billions of parameters wants instead of the defaults above.
LARGE_MODEL_PRESET: dict[str, Any] = {
    "steps": 100,
    "scenarios": {"max_steps": 5, "unsolvable": 0.05, "without_tools": 0.05},
    "rollout": {
        "groups_per_step": 8,
        "group_size": 8,
        "max_turns": 10,
        "max_turn_tokens": 1024,
        "max_tokens": 4096,
        "max_result_tokens": 2048,
        "concurrency": 64,
        "deadline": 1200.0,
    },
    "train": {"learning_rate": 1e-5, "decay_steps": 0, "epochs": 1, "checkpoint_every": 1, "sequence_norm": 4096},
}


JUDGE_PRESET: dict[str, Any] = {"train": {"scale_by_std": False}}
"""A judge's scores are rarely equal and often close."""


def preset_for(base_model: str) -> dict[str, Any]:
    """Values that differ from the defaults for this base model. The defaults themselves suit `mcp-rl/tiny`."""
    return {} if base_model == TINY else LARGE_MODEL_PRESET


def config_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of the tree with its pydantic field, sections themselves left out."""
    for name, field in model.model_fields.items():
        if section := section_of(field.annotation):
            yield from config_keys(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def settings(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Every dotted key with its value as TOML, which an override would take; None where it is not set."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from settings(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            pairs = (f"{json.dumps(key)} = {json.dumps(entry)}" for key, entry in value.items())
            yield f"{prefix}{name}", f"{{{', '.join(pairs)}}}"
        else:
            yield f"{prefix}{name}", None if value is None else json.dumps(value, default=str, ensure_ascii=False)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, or None where it holds a value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping):
            if isinstance(value, BaseModel):
                value = value.model_dump(exclude_unset=True)
            value = _merged(below, value) if isinstance(value, Mapping) else value
        merged[key] = value
    return merged


def _contradictions(config: RunConfig) -> Iterator[str]:
    judge, scenarios, train, rollout = config.judge, config.scenarios, config.train, config.rollout
    pools = config.curriculum
    for name in ("base_url", "panel", "rubric", "rubric_file", "max_cost", "price"):
        if getattr(judge, name) and not judge.model:
            yield f"judge.{name} is set but judge.model is not: name the judge's model too"
    for name, url in (*(("server", text) for text in config.server), ("judge.base_url", judge.base_url or "")):
        if re.match(r"https?://[^/?#]*@", url):
            yield f"{name} holds a user name or password, which must not reach a file: keep them in the environment"
    if judge.max_cost is not None and judge.max_cost <= 0:
        yield f"judge.max_cost = {judge.max_cost:g} allows no verdict at all: give US dollars above 0, or leave it out"
    if judge.rubric is not None and judge.rubric_file is not None:
        yield "judge.rubric and judge.rubric_file are both set: the rubric has one place"
    if judge.price is not None and min(judge.price) < 0:
        yield "judge.price holds a negative price"
    yield from _weight_contradictions(config.reward.weights, judged=judge.model is not None)
    if scenarios.file and scenarios.source:
        yield "scenarios.file and scenarios.source are both set: the scenarios come from one of them"
    if len(set(config.trackers)) < len(config.trackers):
        yield "trackers names one twice"
    if (
        scenarios.file
        and "count" in scenarios.model_fields_set
        and scenarios.count != _default(ScenarioConfig, "count")
    ):
        yield "scenarios.file and scenarios.count are both set: a file already says how many scenarios there are"
    if not scenarios.file and scenarios.val >= scenarios.count:
        yield f"scenarios.val = {scenarios.val} leaves nothing to train on out of scenarios.count = {scenarios.count}"
    if scenarios.unsolvable + scenarios.without_tools >= 1:
        yield (
            f"scenarios.unsolvable = {scenarios.unsolvable:g} and scenarios.without_tools = "
            f"{scenarios.without_tools:g} leave nothing to solve: they are shares that must stay under 1 together"
        )
    yield from _tools_contradictions(config)
    if pools.too_hard_at >= pools.solved_at:
        yield (
            f"curriculum.too_hard_at = {pools.too_hard_at:g} is not below curriculum.solved_at = {pools.solved_at:g}: "
            "a scenario would be too hard and solved at once"
        )
    if train.schedule in ("linear", "cosine") and train.decay_steps == 0:
        yield f'train.schedule = "{train.schedule}" ends at train.decay_steps, which is 0: say in how many steps'
    if train.importance_cap == 0 and train.max_staleness:
        yield (
            f"train.importance_cap = 0 leaves tokens of up to train.max_staleness = {train.max_staleness} steps ago "
            "uncorrected: give a cap, or leave it out"
        )
    if train.minibatches > rollout.groups_per_step * rollout.group_size:
        yield f"train.minibatches = {train.minibatches} is more than the rollouts of a step"
    if rollout.max_turn_tokens > rollout.max_tokens:
        yield (
            f"rollout.max_turn_tokens = {rollout.max_turn_tokens} is more than "
            f"rollout.max_tokens = {rollout.max_tokens}, the limit of the whole episode"
        )


def _tools_contradictions(config: RunConfig) -> Iterator[str]:
    tools = config.tools
    if "" in config.server:
        yield "server holds an empty name"
    if tools.record and tools.replay:
        yield "tools.record and tools.replay are both set: a recording is made, or played back"
    if tools.isolation not in (None, "reset") and tools.reset_tool is not None:
        yield f'tools.reset_tool is set, and tools.isolation is "{tools.isolation}", which resets nothing'
    for tool, seconds in tools.deadlines.items():
        if seconds <= 0:
            yield f"tools.deadlines gives {tool} {seconds:g} seconds: give it more than 0"


def _weight_contradictions(weights: Mapping[str, float], *, judged: bool) -> Iterator[str]:
    if not weights:
        return
    if min(weights.values()) <= 0 or abs(sum(weights.values()) - 1) > 1e-6:
        yield f"reward.weights are to be above 0 and 1 in all, not {sum(weights.values()):g}"
    if "ruler" in weights and not judged:
        yield "reward.weights names ruler but judge.model is not set: name the judge's model too"
    if "ruler" not in weights and judged:
        yield "judge.model is set but reward.weights has no ruler: give the judge a weight, or leave it out"


def _default(model: type[BaseModel], name: str) -> Any:
    return model.model_fields[name].default


def _run_name(config: RunConfig) -> str:
    """The same command finds the same run again: server, base model and, unless it is 0, the seed."""
    parts = [*map(_folder_name, config.server), _folder_name(config.base_model.removeprefix("mcp-rl/"))]
    return "-".join([*parts, f"seed{config.seed}"] if config.seed else parts)


def _folder_name(text: str) -> str:
    """The text itself where it can be a folder, else what can be read of it and a hash that keeps it apart.

    Of a command, its words up to the first option and no variables, of a URL its host and path without what looks
    random: the rest may hold a secret.
    """
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,59}", text):
        return text
    place = re.sub(r"^https?://([^/?#]*@)?|[?#].*|/(?=[^/]*\d)[\w=-]{32,}", "", text)
    telling = re.sub(r"\s-.*|(^|\s)[\w-]+=\S*", "", place, flags=re.DOTALL)
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", telling).strip("-.")[:40].strip("-.")
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
