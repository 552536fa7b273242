"""vLLM serves an export as its model card says."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcp_rl.cli import main
from mcp_rl.config import TINY, EngineConfig
from mcp_rl.inference.vllm.arguments import ServingSpec, command, environment
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.inference.vllm.ports import free_port
from mcp_rl.inference.vllm.remote import RemoteServer
from mcp_rl.inference.vllm.scratch import Scratch
from mcp_rl.system.processes.spawn import spawned
from mcp_rl.tiny import weights_path
from tests.runs.export.trained import write_run

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
]


CARD = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Use add with a = 3 and b = 4."}],
    "tools": TOOLS,
    "temperature": 0,
    "max_tokens": 48,
}


@asynccontextmanager
async def served(python: Path, spec: ServingSpec, folder: Path) -> AsyncIterator[httpx.Client]:
    """Start vLLM with the arguments of the model card besides ours, whose servers have no parser of calls."""
    vllm, port = find_vllm(python), free_port()
    words = [*command(vllm, EngineConfig(), spec, port=port), *CARD]
    with closing(Scratch()) as scratch:
        variables = environment(vllm, EngineConfig(), spec, key="k", scratch=scratch.environment)
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        async with spawned(words, role="vllm", run=None, log=folder / "vllm.log", environment=variables):
            url = f"http://127.0.0.1:{port}"
            await RemoteServer(url, api_key="k").ready()
            with httpx.Client(
                base_url=url, headers={"Authorization": "Bearer k"}, timeout=300, trust_env=False
            ) as client:
                yield client


def call_in(answer: httpx.Response) -> tuple[str, Any]:
    assert answer.status_code == 200, answer.text
    call = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    return call["name"], json.loads(call["arguments"])


async def test_an_exported_adapter_is_loaded_and_calls_a_tool(vllm_python: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "default" / "models" / "calc", "lora", TINY)
    assert main(["export", "calc", "--output-dir", str(tmp_path)]) == 0
    folder = tmp_path / "default" / "exports" / "calc-2-adapter"
    assert " ".join(CARD) in (folder / "README.md").read_text()
    async with served(
        vllm_python, ServingSpec(str(weights_path()), TINY, lora_rank=16, max_context=1024), tmp_path
    ) as client:
        loaded = client.post("/v1/load_lora_adapter", json={"lora_name": "exported", "lora_path": str(folder)})
        assert loaded.status_code == 200, loaded.text
        answer = client.post("/v1/chat/completions", json={"model": "exported", **ASKED})
    assert call_in(answer) == ("add", {"a": 3, "b": 4})


async def test_a_merged_export_says_what_transformers_says(vllm_python: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "default" / "models" / "calc", "lora", TINY)
    assert main(["export", "calc", "--format", "merged", "--output-dir", str(tmp_path)]) == 0
    folder = tmp_path / "default" / "exports" / "calc-2-merged"
    assert " ".join(CARD) in (folder / "README.md").read_text()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(ASKED["messages"], tools=TOOLS, add_generation_prompt=True, return_dict=False)
    said = model.generate(torch.tensor([ids]), max_new_tokens=48, do_sample=False)[0, len(ids) :].tolist()
    async with served(vllm_python, ServingSpec(str(folder), "calc", max_context=1024), tmp_path) as client:
        assert call_in(client.post("/v1/chat/completions", json={"model": "calc", **ASKED})) == (
            "add",
            {"a": 3, "b": 4},
        )
        asked = {"model": "calc", "prompt": ids, "temperature": 0, "max_tokens": 48, "return_token_ids": True}
        answer = client.post("/v1/completions", json=asked).json()
    assert answer["choices"][0]["token_ids"] == said
