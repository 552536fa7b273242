"""The learner's probabilities of known tokens, with which the sampler is checked."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.processes.in_process import InProcessLearner
from mcp_rl.config import TINY
from mcp_rl.tiny import weights_path


async def test_logprobs_are_those_of_the_policy_as_it_moves(tmp_path: Path) -> None:
    learner = InProcessLearner(LocalSettings(base_model=TINY, run=tmp_path / "run", title="test/policy"))
    await learner.open()
    sequences = [[5, 99, 41, 7, 300], [8, 8, 1200, 17], [(37 * i + 5) % 900 for i in range(150)]]
    before = await learner.token_logprobs(sequences)
    with torch.no_grad():
        for name, parameter in learner.learner.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    after = await learner.token_logprobs(sequences)
    (tmp_path / "policy").mkdir()
    await learner.write_policy(tmp_path / "policy")

    base = AutoModelForCausalLM.from_pretrained(weights_path())
    for found, expected in zip(before, _logprobs(base, sequences), strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
    policy = PeftModel.from_pretrained(base, str(tmp_path / "policy"))
    for found, expected, old in zip(after, _logprobs(policy, sequences), before, strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
        assert max(abs(new - was) for new, was in zip(found, old, strict=True)) > 0.01


@torch.no_grad()
def _logprobs(model: torch.nn.Module, sequences: list[list[int]]) -> list[list[float]]:
    logits = [model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1) for ids in sequences]
    return [
        rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        for rows, ids in zip(logits, sequences, strict=True)
    ]
