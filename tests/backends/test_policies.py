"""Policies of one base are sampled one after another, each as it was trained, and the base stays unchanged."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_rl.backends.base.base_model import load_base
from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.config import TINY
from mcp_rl.errors import CheckpointError
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.policy import fingerprint_of
from mcp_rl.learning.adapter import add_adapter, merged_weights
from mcp_rl.tiny import weights_path

pytestmark = pytest.mark.asyncio


def adapter(folder: Path, seed: int, targets: tuple[str, ...] = ("q_proj", "down_proj")) -> str:
    """Write an adapter with PEFT; return its folder and the fingerprint of its weights."""
    base, _ = load_base(TINY)
    model = add_adapter(base, rank=4, alpha=8, targets=targets, base_name=TINY, seed=seed)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(str(folder))
    return fingerprint_of(merged_weights(model))


async def said(policies: LocalPolicies) -> list[int]:
    prompt = policies.chat.initial([{"role": "user", "content": "Add 3 and 4."}], [])
    async with policies.engine.episode(seed=1) as episode:
        return (await episode.generate(prompt, Sampling(temperature=0.0, max_tokens=12))).token_ids


async def test_each_adapter_is_sampled_and_the_base_is_unchanged(tmp_path: Path) -> None:
    prints = [adapter(tmp_path / str(seed), seed) for seed in (1, 2)]
    async with LocalPolicies(TINY) as policies:
        before = await said(policies)
        sampled = []
        for version, (seed, known) in enumerate(zip((1, 2), prints, strict=True), 1):
            await policies.use(tmp_path / str(seed), version)
            assert (policies.engine.fingerprint, policies.engine.version) == (known, version)
            sampled.append(await said(policies))
        assert before not in sampled and sampled[0] != sampled[1]
        await policies.use(None, 0)
        assert await said(policies) == before


async def test_a_whole_model_is_sampled_as_a_policy_of_its_base(tmp_path: Path) -> None:
    model, _ = load_base(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    model.save_pretrained(tmp_path / "whole")
    async with LocalPolicies(TINY) as policies:
        before = await said(policies)
        await policies.use(tmp_path / "whole", 1)
        after = await said(policies)
        await policies.use(None, 0)
        assert await said(policies) == before
    async with LocalPolicies(str(_with_tokenizer(tmp_path / "whole"))) as alone:
        assert await said(alone) == after != before


def _with_tokenizer(folder: Path) -> Path:
    for file in weights_path().iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"r": 8}, "Cannot load the adapter"),
        ({"target_modules": ["q_proj", "down_proj", "up_proj"]}, "missing adapter keys"),
        ({"r": 10**9}, r"weights are of the ranks \[4\], and it says \[1000000000\]"),  # terabytes, made at once
        ({"rank_pattern": {"q_proj": 10**9}}, r"and it says \[4, 1000000000\]"),
        ({"target_modules": "(.*)*(.*)*(.*)*x"}, "Cannot load the adapter"),  # matched for ever
        ({"rank_pattern": {"(.*)*x": 4}}, "names layers by an expression"),
        ({"layer_replication": [[0, 1]] * 1000}, "it has layer_replication, which no LoRA needs"),
        ({"peft_type": "IA3"}, "it is of type 'IA3', and only LORA is loaded"),
        ({"lora_alpha": {}}, "Cannot load the adapter"),
    ],
)
async def test_a_misfitting_adapter_leaves_the_base_unchanged(
    changed: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    good = adapter(tmp_path / "good", 1)
    shutil.copytree(tmp_path / "good", tmp_path / "bad")
    about = json.loads((tmp_path / "bad" / "adapter_config.json").read_text())
    (tmp_path / "bad" / "adapter_config.json").write_text(json.dumps({**about, **changed}))
    async with LocalPolicies(TINY) as policies:
        before = await said(policies)
        with pytest.raises(CheckpointError, match=sentence) as caught:
            await policies.use(tmp_path / "bad", 1)
        assert "\n" not in str(caught.value)
        for version, (folder, known) in enumerate([(None, ""), (tmp_path / "good", good), (None, "")], 1):
            await policies.use(folder, version)
            assert (policies.engine.fingerprint == known) if folder else (await said(policies) == before)
