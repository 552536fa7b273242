"""vLLM serves an export as its model card says."""

from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcp_rl.cli import main
from mcp_rl.config import TINY, EngineConfig
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.inference.vllm.arguments import ServingSpec
from mcp_rl.inference.vllm.server import VllmServer
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


ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Use add with a = 3 and b = 4."}],
    "tools": TOOLS,
    "tool_choice": "none",  # our servers have no parser of calls, so the text of the call comes back
    "skip_special_tokens": False,
    "temperature": 0,
    "max_tokens": 48,
}


def client_of(server: VllmServer) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=300, trust_env=False)


def call_in(answer: httpx.Response) -> tuple[str, Any]:
    assert answer.status_code == 200, answer.text
    (call,) = parse_completion(answer.json()["choices"][0]["message"]["content"]).calls
    return call.name, call.arguments


def test_an_exported_adapter_is_loaded_and_calls_a_tool(vllm_server: VllmServer, tmp_path: Path) -> None:
    write_run(tmp_path / "default" / "models" / "calc", "lora", TINY)
    assert main(["export", "calc", "--output-dir", str(tmp_path)]) == 0
    folder = tmp_path / "default" / "exports" / "calc-2-adapter"
    with client_of(vllm_server) as client:
        loaded = client.post("/v1/load_lora_adapter", json={"lora_name": "exported", "lora_path": str(folder)})
        assert loaded.status_code == 200, loaded.text
        try:
            answer = client.post("/v1/chat/completions", json={"model": "exported", **ASKED})
        finally:
            client.post("/v1/unload_lora_adapter", json={"lora_name": "exported"})
    assert call_in(answer) == ("add", {"a": 3, "b": 4})


async def test_a_merged_export_says_what_transformers_says(vllm_config: EngineConfig, tmp_path: Path) -> None:
    write_run(tmp_path / "default" / "models" / "calc", "lora", TINY)
    assert main(["export", "calc", "--format", "merged", "--output-dir", str(tmp_path)]) == 0
    folder = tmp_path / "default" / "exports" / "calc-2-merged"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(ASKED["messages"], tools=TOOLS, add_generation_prompt=True, return_dict=False)
    said = model.generate(torch.tensor([ids]), max_new_tokens=48, do_sample=False)[0, len(ids) :].tolist()
    server = VllmServer(
        ServingSpec(str(folder), "calc", max_context=1024), config=vllm_config, log=tmp_path / "vllm.log"
    )
    async with server:
        with client_of(server) as client:
            assert call_in(client.post("/v1/chat/completions", json={"model": "calc", **ASKED})) == (
                "add",
                {"a": 3, "b": 4},
            )
            asked = {"model": "calc", "prompt": ids, "temperature": 0, "max_tokens": 48, "return_token_ids": True}
            answer = client.post("/v1/completions", json=asked).json()
    assert answer["choices"][0]["token_ids"] == said
