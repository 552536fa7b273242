"""Settings that are right one by one and cannot hold together, each as a sentence."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from mcp_rl.config.engine_arguments import argument_mistakes, variable_mistakes
from mcp_rl.config.loading import loading_contradictions, placed_contradictions
from mcp_rl.config.placing import placement_contradictions
from mcp_rl.config.playing import ScenarioConfig

if TYPE_CHECKING:
    from mcp_rl.config.run import RunConfig


def contradictions(config: "RunConfig") -> Iterator[str]:
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
    yield from loading_contradictions(config.unsloth, train)
    yield from placement_contradictions(config)
    yield from placed_contradictions(config)
    yield from _engine_contradictions(config)
    if pools.too_hard_at >= pools.solved_at:
        yield (
            f"curriculum.too_hard_at = {pools.too_hard_at:g} is not below curriculum.solved_at = {pools.solved_at:g}: "
            "a scenario would be too hard and solved at once"
        )
    if train.schedule in ("linear", "cosine") and train.decay_steps == 0:
        yield f'train.schedule = "{train.schedule}" ends at train.decay_steps, which is 0: say in how many steps'
    elif train.schedule in ("linear", "cosine") and train.warmup_steps >= train.decay_steps:
        yield (
            f"train.warmup_steps = {train.warmup_steps} leaves nothing of train.decay_steps = {train.decay_steps} for "
            "the rate to fall in"
        )
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


def _tools_contradictions(config: "RunConfig") -> Iterator[str]:
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


def _engine_contradictions(config: "RunConfig") -> Iterator[str]:
    engine = config.engine
    yield from argument_mistakes(engine.args)
    yield from variable_mistakes(engine.environment)
    of_start = [name for name in ("python", "args", "environment", "memory_share") if getattr(engine, name)]
    of_start += ["sharing"] if engine.sharing != "auto" else []
    of_vllm = [*(["url"] if engine.url else []), *of_start]
    if engine.kind == "local" and (name := next(iter(of_vllm), None)):
        yield f'engine.{name} is set but engine.kind = "local" is not vLLM: leave one of them out'
    if engine.url and (name := next(iter(of_start), None)):
        yield f"engine.url and engine.{name} are both set: a server that runs already is not started by us"
    if engine.sharing == "sleep" and config.train.max_staleness:
        yield (
            f'engine.sharing = "sleep" and train.max_staleness = {config.train.max_staleness}: an engine that sleeps '
            'while the learner works samples nothing ahead; take "split", or leave one of them out'
        )
    if engine.url and re.match(r"https?://[^/?#]+", engine.url) is None:
        yield f"engine.url = {engine.url!r} is no http address, such as http://127.0.0.1:8000/v1"
    if engine.url and re.match(r"[^#]*\?", engine.url):
        yield "engine.url holds a query, which may be a secret and is no part of a server's address: leave it out"
    if engine.url and re.match(r"https?://[^/?#]*@", engine.url):
        yield "engine.url holds a user name or password, which must not reach a file: set MCP_RL_ENGINE_KEY instead"


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
