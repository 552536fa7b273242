"""Contradictions between settings that are valid one by one, each as a sentence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.config.engine_arguments import argument_mistakes, variable_mistakes
from mcp_rl.config.loading import loading_contradictions, placed_contradictions
from mcp_rl.config.placing import placement_contradictions
from mcp_rl.config.playing import FEWEST_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_rl.config.run_settings import RunSettings


def contradictions(config: RunSettings) -> Iterator[str]:
    """Yield a sentence for each contradiction, which says what to change."""
    judge, scenarios, train, rollout = config.judge, config.scenarios, config.train, config.rollout
    pools = config.curriculum
    for name in ("base_url", "panel", "rubric", "rubric_file", "max_cost", "price"):
        if getattr(judge, name) and not judge.model:
            yield f"judge.{name} is set but judge.model is not: name the judge's model too"
    for name, url in (*(("server", text) for text in config.server), ("judge.base_url", judge.base_url or "")):
        if re.match(r"https?://[^/?#]*@", url):
            yield f"{name} holds a user name or password, which would reach a file: keep them in the environment"
    if judge.max_cost is not None and judge.max_cost <= 0:
        yield f"judge.max_cost = {judge.max_cost:g} allows no verdict: give US dollars above 0, or leave it out"
    if judge.rubric is not None and judge.rubric_file is not None:
        yield "judge.rubric and judge.rubric_file are both set: leave one of them out"
    if judge.price is not None and min(judge.price) < 0:
        yield "judge.price holds a negative price: give US dollars for a million tokens, 0 or more"
    yield from _weight_contradictions(config.reward.weights, judged=judge.model is not None)
    if scenarios.file and scenarios.source:
        yield "scenarios.file and scenarios.source are both set: leave one of them out"
    if len(set(config.trackers)) < len(config.trackers):
        yield "trackers names a tracker twice: name each once"
    if scenarios.file and scenarios.count not in (None, 720):  # which earlier runs kept as their default
        yield "scenarios.file and scenarios.count are both set: leave scenarios.count out, as the file decides it"
    count = scenarios.wanted(worded=False)
    if not scenarios.file and scenarios.val >= count:
        yield f"scenarios.val = {scenarios.val} leaves nothing to train on of scenarios.count = {count}"
    if scenarios.unsolvable + scenarios.without_tools >= 1:
        yield (
            f"scenarios.unsolvable = {scenarios.unsolvable:g} and scenarios.without_tools = "
            f"{scenarios.without_tools:g} leave nothing to solve: together they must stay below 1"
        )
    if rollout.max_user_cost is not None and rollout.user_model is None:
        yield "rollout.max_user_cost is set but rollout.user_model is not: name the model that plays users too"
    yield from _tools_contradictions(config)
    yield from loading_contradictions(config.unsloth, train)
    yield from placement_contradictions(config)
    yield from placed_contradictions(config)
    yield from _engine_contradictions(config)
    if pools.too_hard_at >= pools.solved_at:
        yield (
            f"curriculum.too_hard_at = {pools.too_hard_at:g} is not below curriculum.solved_at = {pools.solved_at:g}: "
            "a scenario would be too hard and solved at the same time"
        )
    if train.schedule in ("linear", "cosine") and train.decay_steps == 0:
        yield (
            f'train.schedule = "{train.schedule}" ends at train.decay_steps, which is 0: give it a step, or set '
            "train.schedule=constant"
        )
    elif train.schedule in ("linear", "cosine") and train.warmup_steps >= train.decay_steps:
        yield (
            f"train.warmup_steps = {train.warmup_steps} leaves nothing of train.decay_steps = {train.decay_steps} for "
            "the decay"
        )
    if train.importance_cap == 0 and train.max_staleness:
        yield (
            f"train.importance_cap = 0 leaves tokens of up to train.max_staleness = {train.max_staleness} steps ago "
            "uncorrected: give a cap, or leave train.importance_cap out"
        )
    fewest = rollout.groups_per_step if rollout.step_tokens is None else min(rollout.groups_per_step, FEWEST_GROUPS)
    if train.minibatches > fewest * rollout.group_size:
        many = "" if fewest == rollout.groups_per_step else f": {fewest * rollout.group_size} where episodes are long"
        yield f"train.minibatches = {train.minibatches} is more than the rollouts of a step{many}"
    if rollout.max_turn_tokens > rollout.max_tokens:
        yield (
            f"rollout.max_turn_tokens = {rollout.max_turn_tokens} is more than "
            f"rollout.max_tokens = {rollout.max_tokens}, the limit of the whole episode"
        )


def _tools_contradictions(config: RunSettings) -> Iterator[str]:
    tools = config.tools
    if "" in config.server:
        yield "server holds an empty name: name a server, a script, a command or a URL"
    if tools.record and tools.replay:
        yield "tools.record and tools.replay are both set: leave one of them out"
    if tools.isolation not in (None, "reset") and tools.reset_tool is not None:
        yield f'tools.reset_tool is set, and tools.isolation = "{tools.isolation}" resets nothing: leave one out'
    for tool, seconds in tools.deadlines.items():
        if seconds <= 0:
            yield f"tools.deadlines gives {tool} {seconds:g} seconds: give more than 0"


def _engine_contradictions(config: RunSettings) -> Iterator[str]:
    engine = config.engine
    yield from argument_mistakes(engine.args)
    yield from variable_mistakes(engine.environment)
    start_settings = [name for name in ("python", "args", "environment", "memory_share") if getattr(engine, name)]
    start_settings += ["sharing"] if engine.sharing != "auto" else []
    vllm_settings = [*(["url"] if engine.url else []), *start_settings]
    if engine.kind == "local" and (name := next(iter(vllm_settings), None)):
        yield f'engine.{name} is set, and engine.kind = "local" is not vLLM: leave one of them out'
    if engine.url and (name := next(iter(start_settings), None)):
        yield f"engine.url and engine.{name} are both set: a running server needs no start, so leave one of them out"
    if engine.sharing == "sleep" and config.train.max_staleness:
        yield (
            f'engine.sharing = "sleep" and train.max_staleness = {config.train.max_staleness}: an engine that sleeps '
            'while the learner works cannot sample ahead: take "split", or leave one of them out'
        )
    if engine.url and re.match(r"https?://[^/?#]+", engine.url) is None:
        yield f"engine.url = {engine.url!r} is not an http address such as http://127.0.0.1:8000/v1"
    if engine.url and re.match(r"[^#]*\?", engine.url):
        yield "engine.url holds a query, which may be a secret: leave it out"
    if engine.url and re.match(r"https?://[^/?#]*@", engine.url):
        yield "engine.url holds a user name or password, which would reach a file: set MCP_RL_ENGINE_KEY instead"


def _weight_contradictions(weights: Mapping[str, float], *, judged: bool) -> Iterator[str]:
    if not weights:
        return
    if min(weights.values()) <= 0 or abs(sum(weights.values()) - 1) > 1e-6:
        yield f"reward.weights must be above 0 and add up to 1, not {sum(weights.values()):g}"
    if "ruler" in weights and not judged:
        yield "reward.weights names ruler but judge.model is not set: name the judge's model too"
    if "ruler" not in weights and judged:
        yield "judge.model is set but reward.weights has no ruler: give the judge a weight, or leave judge.model out"
