"""`model.openai_client()`: a user's own agent loop over a model in training."""

from pathlib import Path
from typing import Any

import openai
import pytest

from mcp_rl.backends.local import LocalBackend
from mcp_rl.config import LoraConfig, TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.model import TrainableModel
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup
from tests.inference.openai_api.conftest import TOOLS

SCENARIO = McpScenario(task_description="Add 3 and 4.", server_params=StdioServer(command="unused"))


async def play(client: openai.AsyncOpenAI, name: str, seed: int) -> tuple[list[dict[str, Any]], Segment]:
    """Ask, call the tool and ask again; return the messages and the exact tokens."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Do something with 31 and 4."}]
    segment = Segment()
    for turn in range(2):
        said = await client.chat.completions.create(
            **{"model": name, "messages": messages, "tools": TOOLS, "seed": seed + turn, "logprobs": True},
            extra_body={"return_token_ids": True},
        )
        [choice] = said.choices
        prompt, sampled = said.model_extra["prompt_token_ids"], choice.model_extra["token_ids"]
        assert prompt[: len(segment.tokens)] == segment.tokens  # it only grows at its end
        segment.observe(prompt[len(segment.tokens) :])
        logprobs = [token.logprob for token in choice.logprobs.content]
        segment.act(sampled, logprobs, choice.model_extra["policy_version"])
        messages.append(choice.message.model_dump(exclude_none=True))
        if not choice.message.tool_calls:
            break
        for call in choice.message.tool_calls:
            result = str(len(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return messages, segment


async def test_a_users_own_loop_trains_the_policy(tmp_path: Path) -> None:
    model = TrainableModel("calc-001", "demo", "mcp-rl/tiny", base_path=tmp_path)
    with pytest.raises(ConfigError, match="no backend yet"):
        model.openai_client()
    config = TrainConfig(checkpoint_every=10, learning_rate=5e-3, lora=LoraConfig(rank=4, alpha=8))
    async with LocalBackend(in_process=True, config=config, max_context=512) as backend:
        await model.register(backend)
        client = model.openai_client(max_retries=0)
        assert [card.id async for card in await client.models.list()] == ["calc-001", "calc-001@0"]
        group = TrajectoryGroup(scenario=SCENARIO)
        for seed in range(4):
            messages, segment = await play(client, "calc-001@0", 10 * seed)
            reward = float(seed % 2)
            group.trajectories.append(
                Trajectory(scenario_id=SCENARIO.id, segments=[segment], messages=messages, reward=reward)
            )
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "max_tokens": 8}
        before = await client.chat.completions.create(model="calc-001", temperature=0, **asked)
        trained = await backend.train(model, [group])
        assert trained.metrics["trajectories_trained"] == 4
        assert trained.metrics["logprob_difference_max"] < 1e-4  # the learner sees what was sampled
        after = await client.chat.completions.create(model="calc-001@1", temperature=0, **asked)
        with pytest.raises(openai.NotFoundError, match="calc-001, calc-001@1"):
            await client.chat.completions.create(model="calc-001@0", **asked)
        assert (before.system_fingerprint, after.system_fingerprint) == ("policy-0", "policy-1")
        assert before.choices[0].logprobs.content[0].logprob != after.choices[0].logprobs.content[0].logprob
        stream = await client.chat.completions.create(model="calc-001", stream=True, **asked)
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason in ("stop", "length")
    with pytest.raises(openai.InternalServerError, match="no model yet"):
        await client.chat.completions.create(model="calc-001", **asked)


async def test_abandoning_a_stream_ends_its_turn(tiny: Any) -> None:
    from mcp_rl.inference.openai_api.in_process import openai_client

    client = openai_client(tiny.service)
    stream = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], temperature=2.0, stream=True
    )
    async for _ in stream:
        break
    await stream.close()
    assert tiny.service._in_flight == 0
    body = b'{"model": "tiny", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'
    reply = await tiny.service.chat(body)
    assert tiny.service._in_flight == 1
    await reply.events.aclose()  # before anything was read
    assert tiny.service._in_flight == 0
    with pytest.raises(
        openai.NotFoundError, match="/v1/embeddings does not exist here; available: /health, /v1/models, "
    ):
        await client.embeddings.create(model="tiny", input="x")
