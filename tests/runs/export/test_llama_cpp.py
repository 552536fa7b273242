"""GGUF files in llama.cpp itself. Needs xllamacpp and llama.cpp's converter: `make test-others`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcp_rl.cli import main
from tests.runs.export.trained import write_run

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None or "MCP_RL_GGUF_CONVERTER" not in os.environ, reason="llama.cpp is not installed"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.capitalize()} two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
    for name in ("add", "multiply")
]
ASKED = {"role": "user", "content": "Use multiply with a = 17 and b = 25."}
CALL = {"id": "x", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 17, "b": 25}'}}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [ASKED],
    [{"role": "system", "content": "Be brief — größer, ñ."}, ASKED],
    [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "x", "content": "425"},
    ],
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an output folder with the run `calc`."""
    out = tmp_path_factory.mktemp("out")
    write_run(out / "default" / "models" / "calc", "lora")
    return out


@contextmanager
def served(gguf: Path) -> Iterator[httpx.Client]:
    script = Path(__file__).with_name("llama_server.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(gguf)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), "llama.cpp did not load the file"
            with httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
                yield client
        finally:
            process.stdin.close()
            process.wait(60)


def asked(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def exported(place: Path, kind: str, *more: str) -> Path:
    out = place / "exports" / "-".join([kind, *more]).replace("--quantise-", "")
    assert main(["export", "calc", "--format", kind, "--out", str(out), "--output-dir", str(place), *more]) == 0
    return out


def test_llama_cpp_agrees_with_transformers(place: Path) -> None:
    merged, folder = exported(place, "merged"), exported(place, "gguf", "--quantise", "f32")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(merged), AutoTokenizer.from_pretrained(folder)
    with served(folder / "model.gguf") as client:
        for messages in CONVERSATIONS:
            plain = json.loads(json.dumps(messages))
            for call in (call for turn in plain for call in turn.get("tool_calls", [])):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            text = tokenizer.apply_chat_template(plain, tools=TOOLS, add_generation_prompt=True, tokenize=False)
            assert asked(client, "/apply-template", messages=messages, tools=TOOLS)["prompt"] == text
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert asked(client, "/tokenize", content=text, parse_special=True)["tokens"] == ids
            said = model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0, len(ids) :].tolist()
            theirs = asked(client, "/completion", prompt=ids, n_predict=40, temperature=0, return_tokens=True)
            assert theirs["tokens"] == said and theirs["stop_type"] == "eos"


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_smaller_weights_still_call_the_tool(kind: str, place: Path) -> None:
    with served(exported(place, "gguf", "--quantise", kind) / "model.gguf") as client:
        body = {"messages": [ASKED], "tools": TOOLS, "temperature": 0, "max_tokens": 60}
        said = asked(client, "/v1/chat/completions", **body)["choices"][0]
    assert said["finish_reason"] == "tool_calls"
    function = said["message"]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("multiply", {"a": 17, "b": 25})
