"""Small random models, learners and episodes; nothing is downloaded."""

import random

import torch
from transformers import PreTrainedModel

from mcp_rl.config import LoraConfig, TrainConfig
from mcp_rl.learning.adapter import add_adapter
from mcp_rl.learning.forward.logprobs import sampled_logprobs
from mcp_rl.learning.forward.tree import build_tree
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.forward.tree_batch import TreeBatch
from mcp_rl.learning.learner import Learner
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup
from tests.learning.architectures import VOCABULARY, architecture

qwen2, llama = architecture("Qwen2"), architecture("Llama")


def make_learner(
    base: PreTrainedModel | None = None,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    touched: bool = True,
    **settings: object,
) -> Learner:
    """Make a learner of a random model; `touched` gives its adapter random weights, so that it differs from the
    base."""
    plain = {"epochs": 1, "minibatches": 1, "scale_by_std": False, "schedule": "constant", "learning_rate": 1e-2}
    config = TrainConfig.model_validate({"lora": LoraConfig(rank=4, alpha=8), **plain, **settings})
    base = base or qwen2()
    use_tree_attention(base)
    lora = config.lora
    adapted = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="base", seed=seed)
    learner = Learner(adapted, config, seed=seed, temperature=temperature)
    if touched:
        torch.manual_seed(seed)
        for name, parameter in learner.parameters.items():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    return learner


def make_groups(
    learner: Learner, *, seed: int = 0, groups: int = 3, size: int = 4, version: int | None = None
) -> list[TrajectoryGroup]:
    """Make groups that share a system prompt, two turns each, with the learner's own logprobs."""
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    system = tokens(20)
    result = []
    for number in range(groups):
        request = tokens(6)
        trajectories = []
        for _ in range(size):
            segment = Segment()
            segment.observe(system + request)
            for _ in range(2):
                turn = tokens(draw.randrange(3, 9))
                segment.act(turn, [0.0] * len(turn), learner.step if version is None else version)
                segment.observe(tokens(4))
            trajectories.append(Trajectory(scenario_id=f"s{number}", segments=[segment], reward=draw.random()))
        scenario = McpScenario(id=f"s{number}", task_description="t", server_params=StdioServer(command="x"))
        result.append(TrajectoryGroup(scenario=scenario, trajectories=trajectories))
    for group in result:
        for trajectory in group:
            set_logprobs(learner, trajectory.segments[0])
    return result


@torch.no_grad()
def set_logprobs(learner: Learner, segment: Segment) -> None:
    """Set the logprobs that an exact sampler would have recorded."""
    tree = build_tree([segment.tokens])
    where = [i for i, sampled in enumerate(segment.sampled) if sampled]
    batch = TreeBatch.of(tree, torch.tensor(where) - 1, torch.tensor([segment.tokens[i] for i in where]))
    logprobs, _ = sampled_logprobs(learner.model, batch, learner.temperature)
    for i, value in zip(where, logprobs.tolist(), strict=True):
        segment.logprobs[i] = value
