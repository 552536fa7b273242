"""With vLLM too, a turn ends at every end of its base, and the likeliest tokens are the in-process engine's."""

from pathlib import Path
from typing import Any

import pytest

from mcp_rl.backends.samplers.opened import opened_models
from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.config import EngineConfig, PlacementConfig
from mcp_rl.evaluation.models import ModelSpec
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.openai_api.in_process import openai_client
from mcp_rl.inference.openai_api.served import fixed_model
from mcp_rl.inference.openai_api.service import Service
from tests.two_ends import OTHER, OWN, write_base

ASKED: list[Any] = [{"role": "user", "content": "What is 6 times 7?"}]


async def test_turns_end_as_the_base_says_and_go_on_as_its_template(vllm_config: EngineConfig, tmp_path: Path) -> None:
    base = str(write_base(tmp_path / "base"))
    spec = ModelSpec("two", "base", base)
    greedy = Sampling(temperature=0, max_tokens=60, top_logprobs=3)
    async with opened_models([spec], vllm_config, PlacementConfig(), tmp_path, lambda line: None) as opened:
        [(engine, chat)] = opened.models
        assert chat.stop_token_ids == (OWN, OTHER)
        async with engine.episode(seed=0) as episode:
            said = await episode.generate(chat.initial(ASKED, []), greedy)
        client = openai_client(Service([fixed_model(["two"], engine, chat)]))
        asked: dict[str, Any] = {"model": "two", "temperature": 0, "extra_body": {"return_token_ids": True}}
        first = await client.chat.completions.create(**asked, messages=ASKED, max_tokens=60)
        answer = first.choices[0].message
        more = [*ASKED, answer.model_dump(exclude_none=True), {"role": "user", "content": "And 7 times 8?"}]
        then = await client.chat.completions.create(**asked, messages=more, max_tokens=60)
    assert (said.token_ids[-1], said.finish) == (OTHER, "stop")
    assert first.choices[0].model_extra["token_ids"] == said.token_ids and first.choices[0].finish_reason == "stop"
    assert "endoftext" not in answer.content
    so_far = first.model_extra["prompt_token_ids"] + said.token_ids
    prompt = then.model_extra["prompt_token_ids"]
    assert prompt[: len(so_far)] == so_far and prompt[len(so_far)] == OWN
    async with LocalPolicies(base) as policies, policies.engine.episode(seed=0) as episode:
        ours = await episode.generate(chat.initial(ASKED, []), greedy)
    assert said.token_ids == ours.token_ids
    for theirs, known in zip(said.top_logprobs, ours.top_logprobs, strict=True):
        assert [id for id, _ in theirs] == [id for id, _ in known]
        assert [value for _, value in theirs] == pytest.approx([value for _, value in known], abs=1e-4)
