"""`mcp-rl serve` with vLLM: the same protocol, rendering and answers as with the in-process engine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import openai
import psutil
import pytest
from safetensors.numpy import load_file, save_file

from mcp_rl.backends.base.options import trained_options
from mcp_rl.backends.local import LocalBackend
from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.config import LoraConfig, TrainConfig, UnslothConfig
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.model import TrainableModel
from mcp_rl.runs.serve import prepare, run_serving
from mcp_rl.tiny import weights_path

NUMBER = {"type": "number"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "multiply", "parameters": PARAMETERS}},
]
ASKED: list[Any] = [{"role": "user", "content": "Use add with a 3 and b 4."}]
EXACT = {"return_token_ids": True}


@asynccontextmanager
async def served(*words: str) -> AsyncIterator[str]:
    """Yield the address of `mcp-rl serve`."""
    said: list[str] = []
    job = prepare(words, project=Path(".mcp_rl/default"), port=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_serving, job, said.append)
        while not job.serving:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        yield re.findall(r"http://\S+/v1", next(line for line in said if line.startswith("Serving")))[0]
        tasks.cancel_scope.cancel()


async def trained(folder: Path, **loading: Any) -> Path:
    """Write an adapter that changes the output, on a base loaded as `loading` says; return its folder."""
    import torch

    model = TrainableModel("calc-001", "default", "mcp-rl/tiny", base_path=folder / ".mcp_rl")
    config = TrainConfig(checkpoint_every=1, lora=LoraConfig(rank=4, alpha=8))
    options = UnslothConfig(**loading)
    async with LocalBackend(in_process=True, config=config, keep=5, unsloth=options) as backend:
        await model.register(backend)
        torch.manual_seed(1)
        with torch.no_grad():
            for name, weight in backend.learner.model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.1)
        backend.learner.step = 1
        return await backend.save(model)


@pytest.fixture
def key(vllm_server: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_RL_ENGINE_KEY", vllm_server.api_key)


async def test_base_and_adapter_say_the_same_with_both_engines(
    vllm_server: VllmServer, key: None, tmp_path: Path
) -> None:
    adapter = await trained(tmp_path)
    said: dict[str, Any] = {}
    async with (
        served("calc-001", "mcp-rl/tiny", f"engine.url={vllm_server.url}/v1") as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        assert [m.id async for m in await client.models.list()] == ["calc-001", "calc-001@1", "mcp-rl/tiny"]
        for name in ("calc-001@1", "mcp-rl/tiny"):
            said[name] = await client.chat.completions.create(
                model=name,
                messages=ASKED,
                tools=TOOLS,
                temperature=0,
                max_tokens=40,
                logprobs=True,
                extra_body=EXACT,
            )
        [call] = said["mcp-rl/tiny"].choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 3, "b": 4})
        stream = await client.chat.completions.create(
            model="mcp-rl/tiny", messages=ASKED, tools=TOOLS, temperature=0, stream=True
        )
        deltas = [chunk.choices[0].delta for chunk in [chunk async for chunk in stream]]
        arguments = "".join(c.function.arguments for delta in deltas for c in delta.tool_calls or [])
        assert arguments == call.function.arguments
        message = said["mcp-rl/tiny"].choices[0].message
        history = [*ASKED, message, {"role": "tool", "tool_call_id": call.id, "content": "7<|im_end|>"}]
        then = await client.chat.completions.create(
            model="mcp-rl/tiny", messages=history, tools=TOOLS, temperature=0, extra_body=EXACT
        )
    async with LocalPolicies("mcp-rl/tiny", gang=False) as policies:
        prompt = policies.chat.initial(ASKED, TOOLS)
        for name, folder in (("calc-001@1", adapter), ("mcp-rl/tiny", None)):
            await policies.use(folder, 0)
            async with policies.engine.episode(seed=0) as episode:
                wanted = await episode.generate(prompt, Sampling(temperature=0, max_tokens=40))
            choice = said[name].choices[0]
            assert said[name].model_extra["prompt_token_ids"] == prompt
            assert choice.model_extra["token_ids"] == wanted.token_ids
            assert [t.logprob for t in choice.logprobs.content] == pytest.approx(wanted.logprobs, abs=1e-4)
        sampled = said["mcp-rl/tiny"].choices[0].model_extra["token_ids"]
        given = policies.chat.continuation([{"role": "tool", "content": "7<|im_end|>"}])
        assert then.model_extra["prompt_token_ids"] == [*prompt, *sampled, *given]
    each = [[token.logprob for token in answer.choices[0].logprobs.content] for answer in said.values()]
    assert max(abs(a - b) for a, b in zip(*each, strict=False)) > 2e-3  # the adapter is there
    async with vllm_server.client() as http:  # no adapter stays in a server that others run
        assert "serve-" not in (await http.get("/v1/models")).text


async def test_an_adapter_is_served_on_its_training_base(
    vllm_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    shutil.copytree(weights_path(), other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] *= 1.5
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    adapter = await trained(tmp_path, model_name=str(other))
    words = ["calc-001@1", "engine.kind=vllm", f"engine.python={vllm_python}", "engine.max_context=512"]
    async with (
        served(*words) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        [choice] = (
            await client.chat.completions.create(
                model="calc-001@1", messages=ASKED, tools=TOOLS, temperature=0, max_tokens=20, logprobs=True,
                extra_body=EXACT,
            )
        ).choices  # fmt: skip
    said = [token.logprob for token in choice.logprobs.content]
    found = []
    for options in (trained_options("mcp-rl/tiny", adapter), UnslothConfig()):
        async with LocalPolicies("mcp-rl/tiny", options, gang=False) as policies:
            await policies.use(adapter, 1)
            async with policies.engine.episode(seed=0) as episode:
                prompt = policies.chat.initial(ASKED, TOOLS)
                found.append(await episode.generate(prompt, Sampling(temperature=0, max_tokens=20)))
    on_other, on_tiny = found
    assert choice.model_extra["token_ids"] == on_other.token_ids
    assert said == pytest.approx(on_other.logprobs, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(on_other.logprobs, on_tiny.logprobs, strict=False)) > 1e-2


async def test_litellm_calls_tools_of_a_model_that_vllm_samples(vllm_server: VllmServer, key: None) -> None:
    import litellm

    async with served("mcp-rl/tiny", f"engine.url={vllm_server.url}/v1") as url:
        asked: dict[str, Any] = {
            "messages": ASKED,
            "tools": TOOLS,
            "temperature": 0,
            "api_base": url,
            "api_key": "none",
        }
        for provider in ("hosted_vllm", "openai"):
            whole = await litellm.acompletion(model=f"{provider}/mcp-rl/tiny", **asked)
            [call] = whole.choices[0].message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 3, "b": 4})
            stream = await litellm.acompletion(model=f"{provider}/mcp-rl/tiny", stream=True, **asked)
            built = litellm.stream_chunk_builder([chunk async for chunk in stream])
            assert built.choices[0].message.tool_calls[0].function.arguments == call.function.arguments


def test_the_command_starts_vllm_and_leaves_nothing_behind(vllm_python: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mcp_rl", "serve", "mcp-rl/tiny", "--port", "0", "--engine", "vllm"]
    words += [f"engine.python={vllm_python}", "engine.max_context=512"]
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        _serve_and_end(words, tmp_path, {**os.environ, "TMPDIR": temporary})
        assert [path.name for path in Path(temporary).iterdir() if "torchinductor" not in path.name] == []


def _serve_and_end(words: list[str], tmp_path: Path, environment: dict[str, str]) -> None:
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "mcp-rl evaluate" not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            assert "its log is .mcp_rl/default/serving/logs/vllm.log" in said
            url = re.search(r"http://127\.0\.0\.1:\d+/v1", said.partition("Serving")[2])
            assert url is not None
            client = openai.OpenAI(base_url=url[0], api_key="none", max_retries=0)
            answer = client.chat.completions.create(model="mcp-rl/tiny", messages=ASKED, tools=TOOLS, temperature=0)
            assert answer.choices[0].message.tool_calls[0].function.name == "add"
            assert client.models.list().data[0].model_extra["max_model_len"] == 512
            vllm = [p for p in psutil.Process(process.pid).children(recursive=True) if "api_server" in str(p.cmdline())]
            vllm[-1].kill()
            patient = openai.OpenAI(base_url=url[0], api_key="none", max_retries=60)
            again = patient.chat.completions.create(model="mcp-rl/tiny", messages=ASKED, tools=TOOLS, temperature=0)
            assert again.choices[0].message.tool_calls[0].function == answer.choices[0].message.tool_calls[0].function
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=120)[0].strip().endswith("Stopped.")
        finally:
            process.kill()
    assert process.returncode == 0 and children
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
