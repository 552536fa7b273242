"""Bases quantised by bitsandbytes are loaded, trained with an adapter and sampled, on a CPU too: `make test-others`."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from mcp_rl.backends.base.base_model import make_learner, open_base
from mcp_rl.backends.base.options import plan_loading
from mcp_rl.backends.processes.in_process import token_logprobs
from mcp_rl.backends.samplers.weights import sampled_weights
from mcp_rl.config import TINY, TrainConfig, UnslothConfig
from mcp_rl.errors import ConfigError, EngineError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.low_rank import LowRank
from mcp_rl.learning.adapter import merged_weights
from mcp_rl.learning.disk.state import load_weights, write_weights
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.step import update
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
BITS = {"4-bit": UnslothConfig(load_in_4bit=True), "8-bit": UnslothConfig(load_in_8bit=True)}
CONFIG = TrainConfig(epochs=1, learning_rate=1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_a_quantised_base_is_described_and_loaded_again(bits: str) -> None:
    base = open_base(plan_loading(TINY, BITS[bits], CONFIG))
    assert base.loaded["quantisation"] == bits and base.loaded["dtype"] == "float32"
    assert base.loaded["versions"]["bitsandbytes"] and base.loaded["model_name"] == TINY
    again = plan_loading(TINY, UnslothConfig(), CONFIG, before=base.loaded)
    assert again.quantisation == bits
    assert open_base(again, base.loaded).loaded == base.loaded
    with pytest.raises(ConfigError, match=f"begun with quantisation = {bits}, and now none"):
        open_base(plan_loading(TINY, UnslothConfig(), CONFIG), base.loaded)


async def group_sampled(learner: Learner, engine: LocalEngine) -> TrajectoryGroup:
    trajectories = []
    for number in range(4):
        segment = Segment()
        prompt = list(range(20, 60, 3))
        async with engine.episode(seed=number) as episode:
            completion = await episode.generate(prompt, Sampling(max_tokens=12))
        segment.observe(prompt)
        segment.act(completion.token_ids, completion.logprobs, learner.step)
        trajectories.append(Trajectory(scenario_id="s", segments=[segment], reward=float(number % 2)))
    scenario = McpScenario(id="s", task_description="t", server_params=StdioServer(command="x"))
    return TrajectoryGroup(scenario=scenario, trajectories=trajectories)


async def test_an_adapter_on_4_bits_learns_and_its_swap_arrives() -> None:
    base = open_base(plan_loading(TINY, BITS["4-bit"], CONFIG))
    chat = ChatFormat(base.tokenizer)
    made = LocalEngine(base.model, stop_token_ids=chat.stop_token_ids, decode=chat.decode)
    learner = make_learner(base.model, TINY, CONFIG, plan=base.plan)
    async with made as engine:
        for _ in range(3):
            weights = sampled_weights(learner.model)
            assert weights and all(isinstance(weight, LowRank) for weight in weights.values())
            await engine.load_policy(weights, learner.step)
            group = await group_sampled(learner, engine)
            metrics = update(learner, [group])
            assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-3)
            assert metrics["logprob_difference_mean"] < 1e-3 and metrics["grad_norm"] > 0
        segment = group.trajectories[0].segments[0]
        stale = token_logprobs(learner, [segment.tokens])[0]
        moved = [abs(a - b) for a, b, s in zip(segment.logprobs[1:], stale, segment.sampled[1:], strict=True) if s]
        assert max(moved) > 1e-3, "the update changed nothing"


@pytest.mark.parametrize("bits", BITS)
def test_a_quantised_update_makes_rewarded_turns_likelier(bits: str, tmp_path: Path) -> None:
    base = open_base(plan_loading(TINY, BITS[bits], CONFIG))
    learner = make_learner(base.model, TINY, CONFIG, plan=base.plan)
    tokens = base.tokenizer.encode("The sum of 17 and 25 is 42.")
    segments = [Segment(), Segment()]
    for segment, turn in zip(segments, (tokens[6:], tokens[6:][::-1]), strict=True):
        segment.observe(tokens[:6])
        segment.act(turn, [0.0] * len(turn), 0)
    sequences = [segment.tokens for segment in segments]
    before = token_logprobs(learner, sequences)
    for segment, logprobs in zip(segments, before, strict=True):
        segment.logprobs[6:] = logprobs[5:]
    rewarded = [
        Trajectory(scenario_id="s", segments=[segment], reward=reward)
        for segment, reward in zip(segments, (1.0, 0.0), strict=True)
    ]
    scenario = McpScenario(id="s", task_description="t", server_params=StdioServer(command="x"))
    update(learner, [TrajectoryGroup(scenario=scenario, trajectories=rewarded)], check_sampler=bits == "4-bit")
    after = token_logprobs(learner, sequences)
    assert sum(after[0][5:]) > sum(before[0][5:]) and sum(after[1][5:]) < sum(before[1][5:])
    with pytest.raises(EngineError, match="cannot be merged"):
        merged_weights(learner.model)
    write_weights(learner.model, tmp_path)
    fresh = make_learner(open_base(base.plan).model, TINY, CONFIG, plan=base.plan)
    load_weights(fresh.model, tmp_path)
    assert isinstance(fresh.model, PeftModel)
    assert torch.allclose(torch.tensor(token_logprobs(fresh, sequences)[0]), torch.tensor(after[0]), atol=1e-4)
