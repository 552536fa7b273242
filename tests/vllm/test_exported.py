"""What is exported is served by vLLM as its model card says."""

import json
from pathlib import Path

import httpx

from mcp_rl.cli import main
from mcp_rl.config import TINY
from mcp_rl.inference.vllm.server import VllmServer
from tests.export.trained import write_run

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


def test_an_exported_adapter_is_loaded_and_calls_a_tool(vllm_server: VllmServer, tmp_path: Path) -> None:
    write_run(tmp_path / "default" / "models" / "calc", "lora", TINY)
    assert main(["export", "calc", "--output-dir", str(tmp_path)]) == 0
    folder = tmp_path / "default" / "exports" / "calc-2-adapter"
    headers = {"Authorization": f"Bearer {vllm_server.api_key}"}
    with httpx.Client(base_url=vllm_server.url, headers=headers, timeout=300, trust_env=False) as client:
        loaded = client.post("/v1/load_lora_adapter", json={"lora_name": "exported", "lora_path": str(folder)})
        assert loaded.status_code == 200, loaded.text
        try:
            asked = {
                "model": "exported",
                "messages": [{"role": "user", "content": "Use add with a = 3 and b = 4."}],
                "tools": TOOLS,
                "temperature": 0,
                "max_tokens": 48,
            }
            answer = client.post("/v1/chat/completions", json=asked)
            assert answer.status_code == 200, answer.text
        finally:
            client.post("/v1/unload_lora_adapter", json={"lora_name": "exported"})
    call = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"a": 3, "b": 4})
